//! An established connection: the result of the handshake, which a port adopts.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use rustix::fs::MemfdFlags;

use super::{gate::TcpGate, record::Record, socket, wire::Wire};
use crate::{
    Hello, Negotiated, PortConfig, PortError, RejectReason,
    goodbye::LACKS,
    hello::Feature,
    kernel::{mapping, memory_file},
    mem::{Access, Region},
    negotiated::Capabilities,
};

/// A connection that belongs to no port's slots yet. Dropping it closes it.
#[derive(Debug)]
pub struct TcpLink {
    pub(super) wire: Wire,
    pub(super) rings: Rings,
    /// Whether the grant has been said; the passive side waits for it.
    pub(super) is_granted: bool,
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) handshake_timeout: Duration,
}

impl TcpLink {
    /// Closes because this process has no place for it.
    pub(crate) fn tell_lack(mut self) {
        let _ = self.wire.say(&Record::Goodbye { how: LACKS }.encode());
        self.wire.end();
    }
}

/// The two rings of a connection, each mapped twice.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) tx: Region,
    pub(super) rx: Region,
}

impl Rings {
    /// Those of a connection on the port behind `gate`.
    pub(super) fn new(gate: &TcpGate, negotiated: &Negotiated) -> Result<Self, PortError> {
        gate.shared
            .node
            .place(|| Ok(Self { tx: ring(negotiated.tx_ring_bytes)?, rx: ring(negotiated.rx_ring_bytes)? }))
    }
}

fn ring(bytes: u32) -> Result<Region, PortError> {
    let bytes = bytes as usize;
    let fd = memory_file("gimmal-tcp-ring", bytes, MemfdFlags::empty())?;
    Region::ring(fd.as_fd(), 0, bytes, Access::ReadWrite).map_err(|error| mapping(&error))
}

/// What TCP can do.
const CAPABILITIES: Capabilities = Capabilities {
    ring: true,
    credit_words: true,
    arrivals: false,
    bulk_in_place: false,
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

/// What the two hellos come to, over `wire`.
pub(super) fn settle(
    config: &PortConfig,
    ours: &Hello,
    theirs: &Hello,
    wire: &Wire,
) -> Result<Negotiated, RejectReason> {
    if !theirs.features.has(Feature::RING) {
        return Err(RejectReason::BadHello { field: 7 });
    }
    let negotiated = Negotiated::settle("tcp", &CAPABILITIES, config, ours, theirs)?;
    negotiated.check_pages(rustix::param::page_size())?;
    let socket = wire.socket();
    let (device, peer) = (socket::describe(socket), socket::name(socket::remote(socket)));
    Ok(Negotiated { device, peer, secured: wire.secured(), emulated: true, ..negotiated })
}
