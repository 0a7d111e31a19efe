//! One adopted connection: its halves, its phase, and what a completion does to it.

use std::{sync::Arc, time::Duration};

use gimmal_rdma::verbs::{Completion, Flags, LocalBytes, RemoteBytes, STATUS_FLUSHED, SendList};

use crate::{
    CloseReason, ConnId, DataPath, Event, Negotiated, PortConfig, PortCounters, Refused, Time, Violation,
    proof::Session,
    verbs::{
        control::{
            lane::{Handle, Lane, LinkParts},
            shared::Fate,
        },
        data::{
            peer_pulse::PeerPulse,
            pulls::{Ended, Pulls, What},
            rx::Rx,
            tx::Tx,
            wr_id::{Kind, WrId},
        },
        memory::{
            grant::{GRANT_BYTES_MAX, Grant},
            rings::Room,
        },
    },
};

/// The phase of a connection.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The peer's grant has not arrived. At `nudge` we make the peer's device look for ours.
    Opening { deadline: Time, nudge: Time },
    /// Frames may travel.
    Open,
    /// A post failed. The connection closes at that time, unless the CM or a completion reports the cause earlier.
    Failed { step: &'static str, errno: i32, at: Time },
    /// Closing, with the first cause.
    Closing(Closing),
}

/// The state of a closing connection. Each stage has a deadline.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) reason: CloseReason,
    pub(crate) stage: Stage,
    pub(crate) deadline: Time,
    /// With shared receives: until when the device may still use one that it took for this queue pair.
    pub(crate) receives_until: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Lingering,
    Draining,
    Destroying,
}

impl Phase {
    /// Returns when the phase ends or goes on without an event, as of `now`.
    pub(crate) fn deadline(&self, now: Time) -> Time {
        match self {
            Self::Opening { deadline, nudge } => (*deadline).min(*nudge),
            Self::Open => Time::NEVER,
            Self::Failed { at, .. } => *at,
            Self::Closing(closing) if closing.stage == Stage::Draining && now < closing.receives_until => {
                closing.deadline.min(closing.receives_until)
            }
            Self::Closing(closing) => closing.deadline,
        }
    }
}

/// How long the active side of iWARP waits for the peer's grant before each nudge.
const NUDGE: Duration = Duration::from_millis(100);
/// How long a failed post waits for the report of its cause.
const CAUSE_WAIT: Duration = Duration::from_millis(200);

/// One adopted connection: its halves, its phase, and what a completion does to it.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) handle: Handle,
    /// `None` once it is handed over for destruction: then nothing can be posted.
    pub(crate) lane: Option<Lane>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) phase: Phase,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(crate) pulls: Pulls,
    pub(crate) pulse: PeerPulse,
    pub(crate) transfers_in_post: bool,
    /// The ring size of the peer's hello, which its grant must repeat.
    peer_ring_bytes: u32,
    /// The peer's grant has arrived, so frames may be handed out.
    pub(crate) opened: bool,
    /// A send was flushed, so none leaves any more.
    pub(crate) flushed: bool,
    /// Whether the port's lists have it.
    pub(crate) is_dirty: bool,
    pub(crate) is_pulling: bool,
    pub(crate) is_owing: bool,
    /// The id of its receives, with slot 0, while frames are handed out.
    run_id: WrId,
    on_ring: bool,
    negotiated: Arc<Negotiated>,
    ours: Grant,
    session: Option<Session>,
    active: bool,
}

impl Conn {
    pub(crate) fn new(parts: LinkParts, config: &PortConfig, now: Time) -> Self {
        let LinkParts { handle, lane, wiring, active, handshake_timeout, session } = parts;
        let negotiated = wiring.negotiated;
        let on_ring = negotiated.path == DataPath::Ring;
        let ours = Grant {
            ring_bytes: negotiated.rx_ring_bytes,
            address: wiring.rx.as_ref().filter(|_| on_ring).map_or(0, Room::address),
            rkey: if on_ring { wiring.rx_rkey } else { 0 },
            pulse: lane.holdings.pulse(),
        };
        let queue = lane.holdings.queue().map(Arc::clone);
        let nudge = if active && lane.iwarp() { now.plus(NUDGE) } else { Time::NEVER };
        let id = lane.conn();
        Self {
            id,
            handle,
            fate: Arc::clone(&lane.holdings.seat.0),
            lane: Some(lane),
            phase: Phase::Opening { deadline: now.plus(handshake_timeout), nudge },
            tx: Tx::new(id, wiring.tx, wiring.tx_lkey, &negotiated, config),
            rx: Rx::new(wiring.rx, wiring.rx_lkey, &negotiated, queue),
            pulls: Pulls::new(negotiated.initiator_depth.granted),
            pulse: PeerPulse::UNKNOWN,
            transfers_in_post: wiring.transfers_in_post,
            peer_ring_bytes: wiring.peer_ring_bytes,
            opened: false,
            flushed: false,
            is_dirty: false,
            is_pulling: false,
            is_owing: false,
            run_id: WrId::NONE,
            on_ring,
            negotiated: Arc::new(negotiated),
            ours,
            session,
            active,
        }
    }

    /// Returns the memory that it received into and sent from, but for memory in which a frame is still held.
    pub(crate) fn into_rooms(self) -> impl Iterator<Item = Room> {
        [self.tx.into_room(), self.rx.into_room()].into_iter().flatten()
    }

    /// Records a failed post. The queue pair is in error, and the cause will be reported.
    pub(crate) fn fail_post(&mut self, step: &'static str, errno: i32, now: Time) {
        if matches!(self.phase, Phase::Opening { .. } | Phase::Open) {
            self.phase = Phase::Failed { step, errno, at: now.plus(CAUSE_WAIT) };
        }
    }

    /// Adds it to the connections with transfers to post.
    pub(crate) fn list_pulls(&mut self, pulling: &mut Vec<usize>) {
        if !std::mem::replace(&mut self.is_pulling, true) {
            pulling.push(self.id.index() as usize);
        }
    }

    pub(crate) fn has_atomics(&self) -> bool {
        self.negotiated.atomics
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Returns why frames for `id` are refused, when this is another connection or not open.
    #[cold]
    pub(crate) fn refusal(&self, id: ConnId) -> Refused {
        let is_opening = self.id == id && matches!(self.phase, Phase::Opening { .. });
        if is_opening { Refused::Full } else { Refused::Closed }
    }

    /// Returns whether frames that arrived are handed out: not before the grant, nor after a local close.
    #[inline(always)]
    pub(crate) fn delivers(&self) -> bool {
        self.opened && !matches!(&self.phase, Phase::Closing(Closing { reason: CloseReason::Local, .. }))
    }

    /// Follows a change of [`Conn::delivers`].
    pub(crate) fn look_at_runs(&mut self) {
        self.run_id = if self.delivers() { WrId::new(Kind::Receive, self.id, 0) } else { WrId::NONE };
    }

    /// Sends the grant of the active side. The passive side answers with its own.
    pub(crate) fn start(&mut self, now: Time, list: &mut SendList) {
        if self.active {
            self.send_grant(now, list);
        }
    }

    fn send_grant(&mut self, now: Time, list: &mut SendList) {
        let Some(lane) = &self.lane else { return };
        let (bytes, len) = self.ours.seal(self.session.as_ref(), self.active);
        let from = lane.holdings.grants.write(&bytes, len);
        // On a ring whatever is signalled next tells that it arrived: nobody wakes up for it.
        let signalled = self.negotiated.path == DataPath::SendRecv;
        list.send(WrId::new(Kind::Grant, self.id, 0), from, Flags { signalled, inline: false });
        match list.post(&lane.qp) {
            Ok(()) if signalled => self.tx.posted_signal(None),
            Ok(()) => {}
            Err(error) => self.fail_post("ibv_post_send", error.errno, now),
        }
    }

    /// Makes the peer's device look at what it has from us, and sets the time of the next nudge.
    ///
    /// siw's passive side sends its MPA reply before it moves the socket under the queue pair. What we send between
    /// the two waits in the socket, noticed by nobody until something else arrives: a write of no bytes, which uses
    /// no receive and touches no memory. It takes the place of the grant in the send queue, so that has left before.
    pub(crate) fn nudge(&mut self, now: Time, list: &mut SendList) {
        let Phase::Opening { nudge, .. } = &mut self.phase else { return };
        *nudge = now.plus(NUDGE);
        let Some(lane) = self.lane.as_ref().filter(|_| self.tx.has_no_signals()) else { return };
        tracing::debug!(conn = ?self.id, "no answer to the grant: the peer is nudged");
        let nowhere = RemoteBytes { address: 0, rkey: 0 };
        let flags = Flags { signalled: true, inline: false };
        list.write(WrId::new(Kind::Nudge, self.id, 0), LocalBytes::NONE, nowhere, flags);
        match list.post(&lane.qp) {
            Ok(()) => self.tx.posted_signal(None),
            Err(error) => self.fail_post("ibv_post_send", error.errno, now),
        }
    }

    /// Handles a completion other than a chain. Returns at most one event.
    ///
    /// # Errors
    /// Why the connection must be closed.
    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        done: &Completion,
        now: Time,
        list: &mut SendList,
        counters: &mut PortCounters,
    ) -> Result<Option<Event>, CloseReason> {
        let id = WrId::from_bits(done.wr_id);
        let Some(kind) = id.kind() else { return Ok(None) };
        if done.status != 0 {
            return self.on_failure(kind, id.slot(), done);
        }
        match kind {
            Kind::GrantReceive => {
                let Some(lane) = &self.lane else { return Ok(None) };
                let bytes = lane.holdings.grants.read(done.bytes);
                return self.on_grant(&bytes, done.with_imm, now, list);
            }
            // The first message is the grant: here nothing but that says so.
            Kind::Shared if matches!(self.phase, Phase::Opening { .. }) => {
                let bytes = self.rx.landed(done.bytes, GRANT_BYTES_MAX);
                return self.on_grant(&bytes, done.with_imm, now, list);
            }
            // A chain of no bytes is the goodbye; everything before it was handed out.
            Kind::Receive | Kind::Shared
                if self.opened && (if done.with_imm { done.imm } else { done.bytes }) == 0 =>
            {
                return Err(CloseReason::Peer);
            }
            // A chain is not brought here.
            Kind::Receive | Kind::Shared if self.delivers() => {
                let imm = done.with_imm.then_some(done.imm);
                self.count_receive(counters);
                return Err(self.rx.refused(done.bytes, imm).into());
            }
            Kind::Receive | Kind::Shared => {
                // The first receive takes the first message, so a frame can never come before the grant.
                if matches!(self.phase, Phase::Opening { .. }) {
                    return Err(Violation::Malformed { what: "frame before the grant" }.into());
                }
            }
            Kind::Chain | Kind::Grant | Kind::Goodbye | Kind::Read | Kind::Nudge => {
                counters.signals += 1;
                let transfer = (kind == Kind::Read).then_some(id.slot());
                let done = self.tx.signalled(transfer).and_then(|signal| signal.transfer);
                return Ok(done.and_then(|(slot, bytes)| self.transferred(slot, bytes, counters)));
            }
        }
        Ok(None)
    }

    /// Counts the receive of a chain.
    #[inline]
    pub(crate) fn count_receive(&self, counters: &mut PortCounters) {
        if self.on_ring {
            counters.receives_with_imm += 1;
        } else {
            counters.receives += 1;
        }
    }

    /// Returns the bytes of the chain that `done` delivered, if it delivered one whose frames may be handed out.
    #[inline(always)]
    pub(crate) fn chain(&self, done: &Completion) -> Option<u32> {
        // One decision for all three: each is 0 as it should be.
        let other_id = WrId::from_bits(done.wr_id).without_slot().bits() ^ self.run_id.bits();
        let is_chain = other_id | u64::from(done.status) | u64::from(done.with_imm ^ self.on_ring) == 0;
        is_chain.then_some(if self.on_ring { done.imm } else { done.bytes })
    }

    /// Returns the bytes of the chain that a completion of a shared receive delivered, if it delivered one.
    pub(crate) fn shared_chain(&self, done: &Completion) -> Option<u32> {
        let is_chain = done.status == 0 && !done.with_imm && done.bytes > 0 && self.delivers();
        is_chain.then_some(done.bytes)
    }

    /// Handles a completed piece of a transfer.
    fn transferred(&mut self, slot: u16, bytes: u32, counters: &mut PortCounters) -> Option<Event> {
        match self.pulls.what(slot) {
            Some(What::Bulk) => {
                counters.reads += 1;
                counters.reads_peak = counters.reads_peak.max(self.pulls.outstanding().into());
                counters.read_bytes += u64::from(bytes);
            }
            Some(What::Pulse) => {}
            _ => counters.accesses += 1,
        }
        let (token, ended) = self.pulls.arrived(slot, bytes)?;
        Some(match ended {
            Ended::Pulled(bulk) => Event::Pulled { conn: self.id, token, result: Ok(bulk) },
            Ended::Accessed(accessed) => Event::Accessed { conn: self.id, token, result: Ok(accessed) },
            Ended::Pulse(seen) => {
                self.pulse.arrived(seen);
                return None;
            }
        })
    }

    fn on_failure(&mut self, kind: Kind, slot: u16, done: &Completion) -> Result<Option<Event>, CloseReason> {
        if !matches!(kind, Kind::Receive | Kind::GrantReceive | Kind::Shared) {
            self.flushed = true;
        }
        if done.status == STATUS_FLUSHED {
            // Says only that the queue pair is in error: the cause comes by the CM, or came before.
            return Ok(None);
        }
        let operation = match (kind, self.negotiated.path) {
            (Kind::Receive | Kind::GrantReceive | Kind::Shared, _) => "receive",
            (Kind::Chain | Kind::Goodbye, DataPath::Ring) => "RDMA WRITE with immediate",
            (Kind::Chain | Kind::Goodbye, DataPath::SendRecv) | (Kind::Grant, _) => "SEND",
            (Kind::Read, _) => match self.pulls.what(slot) {
                Some(What::Bulk) => "RDMA READ",
                Some(What::Pulse) => "RDMA READ of the pulse",
                _ => "one-sided operation",
            },
            (Kind::Nudge, _) => "RDMA WRITE",
        };
        Err(CloseReason::Work { operation, status: done.status, vendor: done.vendor })
    }

    /// Handles the peer's grant, its first message.
    fn on_grant(
        &mut self,
        bytes: &[u8],
        with_imm: bool,
        now: Time,
        list: &mut SendList,
    ) -> Result<Option<Event>, CloseReason> {
        if !matches!(self.phase, Phase::Opening { .. }) {
            return Ok(None);
        }
        if with_imm {
            return Err(Violation::Malformed { what: "grant" }.into());
        }
        let grant = Grant::open(bytes, self.peer_ring_bytes, self.session.as_ref(), !self.active)?;
        self.tx.set_remote(grant.remote());
        if self.pulls.depth() > 0 {
            self.pulse = PeerPulse::at(grant.pulse);
        }
        if !self.active {
            self.send_grant(now, list);
            if !matches!(self.phase, Phase::Opening { .. }) {
                return Ok(None);
            }
        }
        self.opened = true;
        self.phase = Phase::Open;
        self.look_at_runs();
        if let Some(lane) = &mut self.lane {
            lane.holdings.opened();
        }
        Ok(Some(Event::Opened { conn: self.id, negotiated: Arc::clone(&self.negotiated) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deadline that has passed would keep a worker awake.
    #[test]
    fn who_drains_waits_for_what_is_ahead() {
        let [start, receives_until, deadline] =
            [0, 20, 500].map(|ms| Time(0).plus(Duration::from_millis(ms)));
        let reason = CloseReason::Peer;
        let phase = Phase::Closing(Closing { reason, stage: Stage::Draining, deadline, receives_until });
        assert_eq!(phase.deadline(start), receives_until);
        assert_eq!(phase.deadline(receives_until), deadline);
        assert_eq!(phase.deadline(receives_until.plus(Duration::from_millis(1))), deadline);
    }
}
