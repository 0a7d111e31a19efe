//! An established connection: the result of the rendezvous, which a port adopts.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use super::segment::Segment;
use crate::{
    Credentials, Hello, Negotiated, PortConfig, RejectReason, Trust,
    goodbye::{CLOSED, LACKS, PANICKED},
    hello::Feature,
    mem::Region,
    negotiated::Capabilities,
    peer,
    sync::atomic::Ordering,
};

/// Our end: the socket, and the segment that we write. Dropping it closes, in a way that the peer can tell from death.
#[derive(Debug)]
pub(super) struct End {
    pub(super) socket: OwnedFd,
    pub(super) own: Segment<Arc<Region>>,
    /// Where what the peer writes is copied to, when it is not trusted.
    pub(super) mirror: Option<Box<Segment<Region>>>,
}

impl End {
    /// Closes because this process could not take what the peer passed.
    pub(super) fn tell_lack(&self) {
        self.close(LACKS);
    }

    /// Closes because this worker panicked.
    pub(super) fn tell_panic(&self) {
        self.close(PANICKED);
    }

    fn close(&self, how: u64) {
        let closing = self.own.closing();
        if closing.load(Ordering::Relaxed) == 0 {
            // SYNC POINT: end closed. What was published before is seen by whoever sees this.
            closing.store(how, Ordering::Release);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close(CLOSED);
        // Also when a forked child still has the descriptor.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A connection that belongs to no port's slots yet. Dropping it closes it.
#[derive(Debug)]
pub struct ShmLink {
    pub(super) end: End,
    /// The peer's segment; the passive side has to wait for it.
    pub(super) peer: Option<Segment<Region>>,
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) handshake_timeout: Duration,
}

impl ShmLink {
    /// Closes because this process has no place for it.
    pub(crate) fn tell_lack(self) {
        self.end.tell_lack();
    }
}

/// What shared memory can do.
pub(super) const CAPABILITIES: Capabilities = Capabilities {
    ring: true,
    credit_words: true,
    arrivals: false,
    bulk_in_place: true,
    atomics: true,
    transfers_in_post: false,
    responder_resources: u8::MAX,
    initiator_depth: u8::MAX,
    inline_bytes: 0,
    message_bytes: u64::MAX,
    timers: false,
};

/// What a port with `config` says first.
pub(super) fn hello(config: &PortConfig, nonce: u128) -> Hello {
    Hello {
        features: Feature::RING
            .and(Feature::ATTENDED, config.attended)
            .and(Feature::NUMBERED, true)
            .and(Feature::CHECKSUM, config.checksum),
        ring_bytes: config.ring_bytes,
        slot_bytes: config.slot_bytes,
        arrivals: config.arrivals,
        responder_resources: config.responder_resources,
        initiator_depth: config.initiator_depth,
        lane: 0,
        service: 0,
        nonce,
    }
}

/// What the two hellos come to.
pub(super) fn settle(
    config: &PortConfig,
    ours: &Hello,
    theirs: &Hello,
    device: String,
    peer: Option<&Credentials>,
    trust: Trust,
) -> Result<Negotiated, RejectReason> {
    if !theirs.features.has(Feature::RING) {
        return Err(RejectReason::BadHello { field: 7 });
    }
    let negotiated = Negotiated::settle("shm", &CAPABILITIES, config, ours, theirs)?;
    negotiated.check_pages(rustix::param::page_size())?;
    let (peer, credentials) = (peer::describe(peer), peer.copied());
    Ok(Negotiated { device, peer, credentials, bulk_in_place: trust == Trust::Peer, ..negotiated })
}
