//! A request to connect: answered with a hello, or with a reason.

use std::{sync::Arc, time::Duration};

use rustix::io::Errno;

use super::{
    gate::TcpGate,
    link::{Rings, TcpLink, hello, settle},
    socket,
    wire::Wire,
};
use crate::{
    AcceptError, Hello, Incoming, ListenOptions, Refusal, RejectReason, hello::Feature, kernel::system,
};

/// One request. Dropping it rejects.
#[derive(Debug)]
pub struct TcpIncoming {
    /// `None` once it was answered.
    wire: Option<Wire>,
    hello: Hello,
    peer: String,
    handshake_timeout: Duration,
}

impl TcpIncoming {
    pub(super) fn new(wire: Wire, hello: Hello, options: &ListenOptions) -> Self {
        let peer = socket::name(socket::remote(wire.socket()));
        Self { wire: Some(wire), hello, peer, handshake_timeout: options.handshake_timeout }
    }

    fn answer(&mut self, refusal: &Refusal) {
        if let Some(mut wire) = self.wire.take() {
            wire.refuse(refusal);
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
        let wire = self.wire.as_ref().ok_or(AcceptError::Gone { errno: 0 })?;
        let negotiated = settle(config, &ours, &self.hello, wire).map_err(|reason| {
            self.answer(&reason.into());
            AcceptError::Rejected(reason)
        })?;
        // On failure `self` is dropped, and says that we are overloaded.
        let rings = Rings::new(gate, &negotiated)?;
        let mut wire = self.wire.take().ok_or(AcceptError::Gone { errno: 0 })?;
        wire.say(&ours.encode()).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT => {
                AcceptError::Gone { errno: errno.raw_os_error() }
            }
            errno => AcceptError::Port(system("send")(errno)),
        })?;
        let (negotiated, handshake_timeout) = (Arc::new(negotiated), self.handshake_timeout);
        Ok(TcpLink { wire, rings, is_granted: false, negotiated, handshake_timeout })
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
