//! A request to connect: answered with a hello, or with a reason.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::io::Errno;

use super::{
    gate::TcpGate,
    link::{Rings, TcpLink, hello, settle},
    socket,
};
use crate::{
    AcceptError, Hello, Incoming, ListenOptions, Refusal, RejectReason, hello::Feature, kernel::system,
};

/// One request. Dropping it rejects.
#[derive(Debug)]
pub struct TcpIncoming {
    /// `None` once it was answered.
    socket: Option<OwnedFd>,
    hello: Hello,
    peer: String,
    handshake_timeout: Duration,
}

impl TcpIncoming {
    pub(super) fn new(socket: OwnedFd, hello: Hello, options: &ListenOptions) -> Self {
        let peer = socket::name(socket::remote(&socket));
        Self { socket: Some(socket), hello, peer, handshake_timeout: options.handshake_timeout }
    }

    fn answer(&mut self, refusal: &Refusal) {
        if let Some(socket) = self.socket.take() {
            socket::refuse(&socket, refusal);
        }
    }
}

impl Incoming for TcpIncoming {
    type Gate = TcpGate;
    type Link = TcpLink;

    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn accept(mut self, gate: &TcpGate) -> Result<TcpLink, AcceptError> {
        let config = &gate.shared.config;
        let mut ours = hello(config, self.hello.nonce);
        // What it proved before it was handed out; without a key a hello that says so is refused.
        ours.features = ours.features.and(Feature::KEYED, self.hello.is_keyed());
        let socket = self.socket.as_ref().ok_or(AcceptError::Gone { errno: 0 })?;
        let negotiated = settle(config, &ours, &self.hello, socket).map_err(|reason| {
            self.answer(&reason.into());
            AcceptError::Rejected(reason)
        })?;
        // On failure `self` is dropped, and says that we are overloaded.
        let rings = Rings::new(gate, &negotiated)?;
        let socket = self.socket.take().ok_or(AcceptError::Gone { errno: 0 })?;
        socket::say(&socket, &ours.encode()).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT => {
                AcceptError::Gone { errno: errno.raw_os_error() }
            }
            errno => AcceptError::Port(system("send")(errno)),
        })?;
        let (negotiated, handshake_timeout) = (Arc::new(negotiated), self.handshake_timeout);
        Ok(TcpLink { socket, rings, is_granted: false, negotiated, handshake_timeout })
    }

    fn refuse(mut self, refusal: Refusal) {
        self.answer(&refusal);
    }
}

impl Drop for TcpIncoming {
    fn drop(&mut self) {
        self.answer(&RejectReason::Overloaded.into());
    }
}
