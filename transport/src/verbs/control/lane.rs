//! The resources of a connection on the device, from the queue pair to the rings, and the order they are released in.
//!
//! ```text
//!  Lane      seat, share of the CQ, grant places, queue pair     before connect or accept
//!  Wiring    receive memory, transmit ring, Negotiated          when both hellos are known
//!  drop      queue pair (by the control thread) ─► registrations ─► share of the CQ ─► seat (the port is notified)
//! ```
//! Mappings may go before registrations: a registration pins its pages by itself. The memory of rings and slabs outlives
//! both (`rings`).

use std::{mem::ManuallyDrop, sync::Arc, time::Duration};

use gimmal_rdma::{
    id::{CmId, ConnectParams, IdKey, IdOption, QpRequest, QpType},
    verbs::{Cq, DeviceLimits, LocalBytes, Mr, Qp, RecvList, RemoteBytes},
};

use rustix::param::page_size;

use crate::{
    Capabilities, ConnId, DataPath, Hello, Negotiated, PortConfig, PortError, Receives, RejectReason, Trust,
    frame::FRAME_WORD_BYTES,
    hello::Feature,
    proof::Session,
    verbs::{
        control::{
            cq_room::CqShare,
            ports,
            shared::{PortDevice, Seat, Shared},
        },
        data::wr_id::{GOODBYE, Kind, WrId, receive_id},
        memory::{
            grant::GrantPlaces,
            pulse::PulsePage,
            purpose::Purpose,
            rings::{End, Room, Shape},
        },
        srq::queue::{Reserve, SharedQueue},
    },
};

/// The step that fails when the CM cannot make a queue pair.
pub(crate) const CREATE_QP: &str = "rdma_create_qp";

/// Names an id, and which use of its address is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Handle {
    pub(crate) key: IdKey,
    pub(crate) serial: u64,
}

/// What the device must release before the seat is free. Fields drop in this order.
#[derive(Debug)]
pub(crate) struct Holdings {
    registrations: Vec<Arc<Mr>>,
    /// The page that the peer reads our pulse from, until it is deregistered.
    pulse: Option<Arc<PulsePage>>,
    /// Its reserve of shared receives.
    reserve: Option<Reserve>,
    pub(crate) cq: Arc<Cq>,
    /// Its share of that.
    _share: CqShare,
    pub(crate) grants: GrantPlaces,
    pub(crate) device: Arc<PortDevice>,
    pub(crate) seat: Seat,
}

impl Holdings {
    /// Deregisters the memory that the destroyed queue pair used. The seat is free when the rest is dropped.
    pub(crate) fn deregister(&mut self) {
        self.registrations.clear();
        self.pulse = None;
    }

    /// Returns where the peer finds our pulse, for the grant.
    pub(crate) fn pulse(&self) -> RemoteBytes {
        self.pulse.as_ref().map_or(RemoteBytes { address: 0, rkey: 0 }, |page| page.place())
    }

    pub(crate) fn queue(&self) -> Option<&Arc<SharedQueue>> {
        self.reserve.as_ref().map(|reserve| &reserve.queue)
    }

    /// Releases the receive of the peer's grant, which has arrived.
    pub(crate) fn opened(&mut self) {
        if let Some(reserve) = &mut self.reserve {
            reserve.opened();
        }
    }
}

/// The licence to post on a connection's queue pair, and what that uses. The control thread destroys both with the id. Where
/// it can't any more, dropping a lane leaks what the queue pair uses, as the id leaks the queue pair.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) qp: Qp,
    pub(crate) holdings: ManuallyDrop<Holdings>,
}

impl Lane {
    /// Makes the queue pair of `id`, which is bound to a device, for the port behind `shared`, with the receive for
    /// the peer's grant posted. Its receives are where `receives` says.
    pub(crate) fn new(id: &mut CmId, shared: &Arc<Shared>, receives: Receives) -> Result<Self, PortError> {
        let device = shared.device(id)?;
        let seat = shared.sit(&device)?;
        let config = &shared.config;
        let is_sharing = device.shares(shared, receives)?;
        let (mut request, (cq, share, reserve)) = place(receives, is_sharing, |is_sharing| {
            let request = queue_sizes(config, &device, is_sharing)?;
            Ok((request, device.place(shared, &request, is_sharing)?))
        })?;
        request.srq = reserve.as_ref().map(|reserve| reserve.queue.srq());
        let grants = device.grant_places(seat.0.conn.index())?;
        let pulse = Some(device.pulse()?);
        let qp = loop {
            match id.create_qp(&device.pd, &cq, &cq, request) {
                Ok(qp) => break qp,
                // Too many inline bytes is EINVAL, and no driver says how many would do: step down.
                Err(libc::EINVAL) if request.inline_bytes > 0 => {
                    request.inline_bytes = inline_step(request.inline_bytes);
                }
                Err(errno) => return Err(PortError::System { step: CREATE_QP, errno }),
            }
        };
        let registrations = Vec::new();
        let holdings = Holdings { registrations, pulse, reserve, cq, _share: share, grants, device, seat };
        let lane = Self { qp, holdings: ManuallyDrop::new(holdings) };
        if let Some(queue) = lane.holdings.queue() {
            shared.name_seat(lane.conn(), queue.number, lane.qp.number());
        } else if let Err(error) = lane.post_grant_receive() {
            lane.destroy(id);
            return Err(error);
        }
        Ok(lane)
    }

    /// Destroys the queue pair, which is that of `id`. Returns what it used.
    pub(crate) fn destroy(self, id: &mut CmId) -> Holdings {
        id.destroy_qp(self.qp);
        ManuallyDrop::into_inner(self.holdings)
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.holdings.seat.0.conn
    }

    pub(crate) fn iwarp(&self) -> bool {
        self.holdings.device.limits.iwarp
    }

    /// Records the device's port, the peer and the RNR timer, once the queue pair is established.
    pub(crate) fn describe(&self, id: &CmId, peer: &str, rnr_timer: u8, negotiated: &mut Negotiated) {
        let device = &self.holdings.device;
        let port = ports::device_port(id, &self.qp, &device.context, &device.known_ports, self.iwarp());
        negotiated.device = format!("{} port {}", port.device, port.number);
        negotiated.port = Some(port);
        peer.clone_into(&mut negotiated.peer);
        negotiated.rnr_timer = self.set_rnr_timer(rnr_timer);
    }

    /// Sets the ACK timeout of `id`, except over iWARP. Returns the one in force.
    pub(crate) fn set_ack_timeout(&self, id: &CmId, exponent: Option<u8>) -> Option<u8> {
        let exponent = exponent.filter(|_| !self.iwarp())?;
        let set = id.set(IdOption::AckTimeout(exponent));
        set.inspect_err(|errno| tracing::warn!(errno, exponent, "the ACK timeout stays the CM's")).ok()?;
        Some(exponent)
    }

    /// Replaces the CM's RNR timer of 655 ms, except over iWARP. Returns the one in force.
    fn set_rnr_timer(&self, code: u8) -> Option<u8> {
        if self.iwarp() {
            return None;
        }
        let set = self.qp.set_rnr_timer(code);
        set.inspect_err(|errno| tracing::warn!(errno, code, "the RNR timer stays the CM's, which is 655 ms"))
            .ok()?;
        Some(code)
    }

    fn post_grant_receive(&self) -> Result<(), PortError> {
        let mut list = RecvList::new(1);
        list.push(WrId::new(Kind::GrantReceive, self.conn(), 0), Some(self.holdings.grants.incoming()));
        list.post(&self.qp).map_err(|error| PortError::System { step: "ibv_post_recv", errno: error.errno })
    }

    /// Makes this side's hello. A side that trusts nobody grants no ring.
    pub(crate) fn hello(&self, config: &PortConfig, trust: Trust, nonce: u128) -> Hello {
        let limits = &self.holdings.device.limits;
        let queue = self.holdings.queue().map(|queue| queue.sizes);
        let (depth, responders) = depths(config, queue.is_some());
        Hello {
            features: Feature::default()
                .and(Feature::RING, !limits.iwarp && trust == Trust::Peer && queue.is_none())
                .and(Feature::SHARED, queue.is_some())
                .and(Feature::ATTENDED, config.attended)
                .and(Feature::NUMBERED, true)
                .and(Feature::CHECKSUM, config.checksum),
            ring_bytes: queue.map_or(config.ring_bytes, |sizes| sizes.ring_bytes()),
            slot_bytes: queue.map_or(config.slot_bytes, |sizes| sizes.slot_bytes),
            arrivals: queue.map_or(config.arrivals, |sizes| sizes.arrivals()),
            responder_resources: responders.min(limits.responder_resources),
            initiator_depth: depth.min(limits.initiator_depth),
            lane: 0,
            service: 0,
            nonce,
        }
    }

    /// Settles the terms, and makes and posts the memory they ask for. Timers are the caller's to fill in.
    pub(crate) fn wire(
        &mut self,
        shared: &Shared,
        ours: &Hello,
        theirs: &Hello,
    ) -> Result<Wiring, WireError> {
        let config = &shared.config;
        let inline = u16::try_from(self.qp.inline_bytes).unwrap_or(u16::MAX);
        let caps = capabilities(&self.holdings.device.limits, inline);
        let negotiated = Negotiated::settle("verbs", &caps, config, ours, theirs)?;
        negotiated.check_pages(page_size())?;
        let mut wiring = Wiring {
            rx: None,
            rx_lkey: 0,
            rx_rkey: 0,
            tx: None,
            tx_lkey: 0,
            peer_ring_bytes: theirs.ring_bytes,
            transfers_in_post: caps.transfers_in_post,
            negotiated,
        };
        if self.holdings.queue().is_none() {
            self.wire_own(shared, &mut wiring)?;
        }
        Ok(wiring)
    }

    /// The memory of a connection that shares none.
    fn wire_own(&mut self, shared: &Shared, wiring: &mut Wiring) -> Result<(), WireError> {
        let (config, pd) = (&shared.config, &self.holdings.device.pd);
        let transmit = Shape::Ring { bytes: wiring.negotiated.transmit_bytes(page_size()) };
        let mut tx = shared.rings.take(transmit, End::Transmit)?;
        let tx_registration = tx.registered(pd)?;
        // And a word: a run looks for a frame behind the last.
        let slots = usize::from(config.arrivals) + GOODBYE;
        let slab_bytes = slots * config.slot_bytes as usize + FRAME_WORD_BYTES;
        let (shape, purpose) = match wiring.negotiated.path {
            DataPath::Ring => (Shape::Ring { bytes: config.ring_bytes as usize }, Purpose::ReceiveRing),
            DataPath::SendRecv => (Shape::Slab { bytes: slab_bytes }, Purpose::Local),
        };
        let rx = shared.rings.take(shape, End::Receive)?;
        let rx_registration = Arc::new(Mr::new(pd, &rx.region, purpose.rights()).map_err(PortError::from)?);
        (wiring.tx, wiring.rx) = (Some(tx), Some(rx));
        wiring.tx_lkey = tx_registration.lkey();
        (wiring.rx_lkey, wiring.rx_rkey) = (rx_registration.lkey(), rx_registration.rkey());
        self.holdings.registrations.extend([tx_registration, rx_registration]);
        Ok(self.post_receives(config, wiring)?)
    }

    /// All receives that the hello promised and one for the goodbye, before the peer can send anything that needs one.
    fn post_receives(&self, config: &PortConfig, wiring: &Wiring) -> Result<(), PortError> {
        let mut list = RecvList::new(usize::from(config.arrivals) + GOODBYE);
        for slot in 0..=config.arrivals {
            list.push(receive_id(self.conn(), slot), wiring.slot(slot));
        }
        list.post(&self.qp).map_err(|error| PortError::System { step: "ibv_post_recv", errno: error.errno })
    }

    /// What the CM is told with `private`, which begins with our hello. Never more than the peer's hello or, on IB, its request allows;
    /// iWARP's events carry these two numbers swapped or not at all.
    pub(crate) fn params(
        &self,
        ours: &Hello,
        private: Vec<u8>,
        theirs: Option<(&Hello, u8, u8)>,
    ) -> ConnectParams {
        let (mut responder_resources, mut initiator_depth) = (ours.responder_resources, ours.initiator_depth);
        if let Some((theirs, event_responder, event_depth)) = theirs {
            responder_resources = responder_resources.min(theirs.initiator_depth);
            initiator_depth = initiator_depth.min(theirs.responder_resources);
            if !self.iwarp() {
                responder_resources = responder_resources.min(event_responder);
                initiator_depth = initiator_depth.min(event_depth);
            }
        }
        ConnectParams::new(private, responder_resources, initiator_depth)
    }
}

/// Why [`Lane::wire`] failed.
#[derive(Debug)]
pub(crate) enum WireError {
    Terms(RejectReason),
    Port(PortError),
}

impl From<RejectReason> for WireError {
    fn from(reason: RejectReason) -> Self {
        Self::Terms(reason)
    }
}

impl From<PortError> for WireError {
    fn from(error: PortError) -> Self {
        Self::Port(error)
    }
}

/// The memory of a connection, and what both sides agreed on.
#[derive(Debug)]
pub(crate) struct Wiring {
    /// Receive ring, or slab of slots; `None` where they are shared.
    pub(crate) rx: Option<Room>,
    pub(crate) rx_lkey: u32,
    pub(crate) rx_rkey: u32,
    /// `None`: it is lent one when it has something to send.
    pub(crate) tx: Option<Room>,
    pub(crate) tx_lkey: u32,
    /// As the peer's hello said.
    pub(crate) peer_ring_bytes: u32,
    pub(crate) transfers_in_post: bool,
    pub(crate) negotiated: Negotiated,
}

impl Wiring {
    /// The memory of a receive; a ring needs none.
    pub(crate) fn slot(&self, slot: u16) -> Option<LocalBytes> {
        if self.negotiated.path == DataPath::Ring {
            return None;
        }
        let bytes = self.negotiated.rx_slot_bytes;
        let (region, at) = (&self.rx.as_ref()?.region, usize::from(slot) * bytes as usize);
        // SAFETY: registered until the queue pair is destroyed, and nothing has arrived before the connection is
        // established, so nobody refers to it.
        Some(unsafe { LocalBytes::of(region, at, bytes, self.rx_lkey) })
    }
}

/// An established connection that was not adopted yet, as the control thread hands it out.
#[derive(Debug)]
pub(crate) struct LinkParts {
    pub(crate) handle: Handle,
    pub(crate) lane: Lane,
    pub(crate) wiring: Wiring,
    /// The active side sends its grant first.
    pub(crate) active: bool,
    pub(crate) handshake_timeout: Duration,
    /// The handshake of a shared key, where there is one.
    pub(crate) session: Option<Session>,
}

/// Makes what `make` makes for a connection that `is_sharing`, or for one with its own receives where that fails and sharing was
/// not asked for by name.
fn place<R>(
    receives: Receives,
    is_sharing: bool,
    mut make: impl FnMut(bool) -> Result<R, PortError>,
) -> Result<R, PortError> {
    match make(is_sharing) {
        Err(error) if is_sharing && receives != Receives::Shared => {
            tracing::debug!(%error, "no shared receives for a connection: it has its own");
            make(false)
        }
        made => made,
    }
}

/// Queue sizes, each a sum with reasons:
/// - sends: chains of frames, READs up to the depth we ask for, one grant or nudge, one goodbye;
/// - receives: those guaranteed to the peer, one for its grant, one for its goodbye; none of its own where they are shared.
fn queue_sizes<'a>(
    config: &PortConfig,
    device: &PortDevice,
    shared: bool,
) -> Result<QpRequest<'a>, PortError> {
    let depth = depths(config, shared).0.min(device.limits.initiator_depth);
    let inline_bytes =
        if shared { config.inline_bytes.min(SHARED_INLINE_BYTES) } else { config.inline_bytes };
    let request = QpRequest {
        send_entries: u32::from(sends_for(config, shared)) + u32::from(depth) + 2,
        recv_entries: if shared { 0 } else { u32::from(config.arrivals) + 2 },
        pieces: 1,
        inline_bytes: inline_bytes.into(),
        srq: None,
        kind: QpType::Rc,
        create_flags: None,
    };
    let limit = device.limits.qp_entries;
    for (field, value) in [
        ("send queue entries (sends + initiator_depth + 2)", request.send_entries),
        ("receive queue entries (arrivals + 2)", request.recv_entries),
    ] {
        if value > limit {
            return Err(PortError::Limit { field, value: value.into(), limit: limit.into() });
        }
    }
    Ok(request)
}

/// A connection that shares its receives has a small queue pair: the kernel's part of one grows with this.
const SHARED_INLINE_BYTES: u16 = 64;

/// Send queue entries for frames.
pub(crate) fn sends_for(config: &PortConfig, shared: bool) -> u16 {
    if shared { config.shared.sends } else { config.sends }
}

/// READs that we ask for, and that we let the peer ask for.
fn depths(config: &PortConfig, shared: bool) -> (u8, u8) {
    let most = if shared { config.shared.depth } else { u8::MAX };
    (config.initiator_depth.min(most), config.responder_resources.min(most))
}

/// The capabilities of the contract, with the inline bytes a queue pair was granted.
const fn capabilities(limits: &DeviceLimits, inline_bytes: u16) -> Capabilities {
    Capabilities {
        ring: !limits.iwarp,
        credit_words: false,
        arrivals: true,
        bulk_in_place: false,
        atomics: limits.atomics,
        transfers_in_post: limits.software,
        responder_resources: limits.responder_resources,
        initiator_depth: limits.initiator_depth,
        inline_bytes,
        message_bytes: 1 << 23,
        timers: !limits.iwarp,
    }
}

/// The next lower number of inline bytes to try: siw has 80.
const fn inline_step(bytes: u32) -> u32 {
    match bytes {
        129.. => 128,
        81..=128 => 80,
        65..=80 => 64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asks_for_shared_receives_by_name_is_refused_without_them() {
        let lacks = || PortError::Limit { field: "shared receives", value: 2, limit: 1 };
        let none_shared = |is_sharing| if is_sharing { Err(lacks()) } else { Ok("own") };
        assert_eq!(place(Receives::SharedAbove(0), true, none_shared), Ok("own"));
        assert_eq!(place(Receives::Shared, true, none_shared), Err(lacks()));
        let none = |_| Err::<&str, _>(lacks());
        assert_eq!(place(Receives::SharedAbove(0), true, none), Err(lacks()));
        assert_eq!(place(Receives::Own, false, none), Err(lacks()));
        let any = |is_sharing| Ok(if is_sharing { "shared" } else { "own" });
        assert_eq!(place(Receives::SharedAbove(0), true, any), Ok("shared"));
    }

    #[test]
    fn inline_steps_end() {
        let mut bytes = 4096;
        let mut steps = Vec::new();
        while bytes > 0 {
            bytes = inline_step(bytes);
            steps.push(bytes);
        }
        assert_eq!(steps, [128, 80, 64, 0]);
    }
}
