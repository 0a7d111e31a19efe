//! A request to connect: answered with a segment, or with a reason.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::io::Errno;

use super::{
    gate::ShmGate,
    link::{End, ShmLink, hello, settle},
    mirror::mirror,
    segment::Segment,
    socket,
};
use crate::{
    AcceptError, Credentials, Hello, Incoming, ListenOptions, Refusal, RejectReason, Trust, hello::Feature,
    kernel::system, peer,
};

/// One request. Dropping it rejects.
#[derive(Debug)]
pub struct ShmIncoming {
    /// `None` once it was answered.
    socket: Option<OwnedFd>,
    hello: Hello,
    device: String,
    peer: Option<Credentials>,
    handshake_timeout: Duration,
    trust: Trust,
}

impl ShmIncoming {
    pub(super) fn new(socket: OwnedFd, hello: Hello, device: String, options: &ListenOptions) -> Self {
        let peer = peer::of(&socket).ok();
        Self {
            socket: Some(socket),
            hello,
            device,
            peer,
            handshake_timeout: options.handshake_timeout,
            trust: options.trust,
        }
    }
}

impl Incoming for ShmIncoming {
    type Gate = ShmGate;
    type Link = ShmLink;

    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> String {
        peer::describe(self.peer.as_ref())
    }

    fn accept(mut self, gate: &ShmGate) -> Result<ShmLink, AcceptError> {
        let config = &gate.shared.config;
        let mut ours = hello(config, self.hello.nonce);
        // What it proved before it was handed out; without a key a hello that says so is refused.
        ours.features = ours.features.and(Feature::KEYED, self.hello.features.has(Feature::KEYED));
        let settled = settle(config, &ours, &self.hello, self.device.clone(), self.peer.as_ref(), self.trust);
        let negotiated = settled.map_err(|reason| {
            self.answer(&reason.into());
            AcceptError::Rejected(reason)
        })?;
        // On failure `self` is dropped, and says that we are overloaded.
        let node = gate.shared.node;
        let (own, fd) = node.place(|| Segment::create(self.hello.ring_bytes))?;
        let mirror = node.place(|| mirror(self.trust, negotiated.rx_ring_bytes))?;
        let own = own.pulsing();
        let socket = self.socket.as_ref().ok_or(AcceptError::Gone { errno: 0 })?;
        socket::send_with(socket, &ours.encode(), fd.as_fd()).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => AcceptError::Gone { errno: errno.raw_os_error() },
            errno => AcceptError::Port(system("sendmsg")(errno)),
        })?;
        let socket = self.socket.take().ok_or(AcceptError::Gone { errno: 0 })?;
        let end = End { socket, own, mirror };
        Ok(ShmLink {
            end,
            peer: None,
            negotiated: Arc::new(negotiated),
            handshake_timeout: self.handshake_timeout,
        })
    }

    fn refuse(mut self, refusal: Refusal) {
        self.answer(&refusal);
    }
}

impl ShmIncoming {
    fn answer(&mut self, refusal: &Refusal) {
        if let Some(socket) = self.socket.take() {
            socket::refuse(&socket, refusal);
        }
    }
}

impl Drop for ShmIncoming {
    fn drop(&mut self) {
        self.answer(&RejectReason::Overloaded.into());
    }
}
