//! The data side: slots of connections, reservations, staged chains. What happens to them is the world's.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use super::{
    config::{Misuse, SimDevice},
    conn::{Inbound, Side},
    connect::Link,
    gate::SimGate,
    halves::Posted,
    runs::Begun,
    world::Shared,
};
use gimmal_transport::{
    AccessError, Batch, Chain, CloseReason, ConnId, Credit, CreditView, Event, Exposed, FrameWord, Limit,
    Loan, Look, Negotiated, Offer, OneSided, Port, PortConfig, PortCounters, PortError, Position, Pulled,
    Pulse, Refused, Remote, Run, RxFrame, Staged, Time, Transfer, Violation, Wait, Waker,
    frame::{FRAME_WORD_BYTES, span},
    parts::{Arena, Copies},
    sync::Doorbell,
};

/// EINVAL.
const INVALID: i32 = 22;

#[derive(Debug)]
struct Slot {
    generation: u32,
    local: Option<Local>,
    /// Of the connection that was here last.
    last: Option<(ConnId, PortCounters)>,
}

/// What the port keeps of a connection.
#[derive(Debug)]
struct Local {
    conn: u64,
    side: Side,
    negotiated: Option<Arc<Negotiated>>,
    open: bool,
    scratch: Vec<u8>,
    staged: Vec<Posted>,
    position: u64,
}

impl Local {
    /// Stages what was composed in the scratch. Whether it rides on the chain before it, which has room for it.
    fn stage(&mut self, staged: &Staged, chain_bytes_max: usize) -> bool {
        let Staged { payload_bytes, tag, chain } = *staged;
        let bytes = span(payload_bytes);
        let fits = self.staged.last().is_some_and(|last| last.bytes.len() + bytes <= chain_bytes_max);
        let is_extended = chain == Chain::Extend && fits;
        if !is_extended {
            self.staged.push(Posted { start: self.position, bytes: Vec::new(), frames: 0, signals: None });
        }
        if let Some(last) = self.staged.last_mut() {
            let end = last.bytes.len() + bytes;
            last.bytes.extend_from_slice(&FrameWord::new(payload_bytes, tag).bits().to_le_bytes());
            last.bytes.extend_from_slice(&self.scratch[..payload_bytes]);
            last.bytes.resize(end, 0);
            last.frames += 1;
        }
        self.position += bytes as u64;
        is_extended
    }
}

/// The data side; see [`Port`].
#[derive(Debug)]
pub struct SimPort {
    shared: Arc<Shared>,
    id: u64,
    copies: Arc<Copies>,
    config: PortConfig,
    doorbell: Waker,
    slots: Vec<Slot>,
    free: Vec<u32>,
    dirty: Vec<ConnId>,
    /// Ends whose receives are to be posted again.
    owing: Vec<(u64, Side)>,
    begun: Option<Begun>,
    /// Ends of which chains were read, until a look finds none: their shared receives are granted again then.
    read: Vec<(u64, Side)>,
    /// The last look was for one frame.
    takes_one: bool,
    arena: Arena,
}

impl SimPort {
    pub(super) fn new(
        shared: &Arc<Shared>,
        device: &SimDevice,
        config: &PortConfig,
    ) -> Result<Self, PortError> {
        config.check()?;
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let doorbell =
            Doorbell::new().map_err(|error| PortError::System { step: "eventfd", errno: errno(error) })?;
        let doorbell = Arc::new(doorbell);
        let id = shared.with(|world| {
            world.setup("ibv_create_cq")?;
            world.setup("ibv_reg_mr of the pool")?;
            Ok::<_, PortError>(world.add_port(Arc::clone(&doorbell), config, device))
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            id,
            config: config.clone(),
            doorbell,
            copies: Arc::default(),
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            owing: Vec::new(),
            begun: None,
            read: Vec::new(),
            takes_one: false,
            arena: Arena::default(),
        })
    }

    fn local(&self, conn: ConnId) -> Option<&Local> {
        let slot = self.slots.get(conn.index() as usize)?;
        slot.local.as_ref().filter(|_| slot.generation == conn.generation())
    }

    fn local_mut(&mut self, conn: ConnId) -> Option<&mut Local> {
        let slot = self.slots.get_mut(conn.index() as usize)?;
        slot.local.as_mut().filter(|_| slot.generation == conn.generation())
    }

    fn negotiated(&self, conn: ConnId) -> Option<&Negotiated> {
        self.local(conn)?.negotiated.as_deref()
    }

    fn open_end(&self, conn: ConnId) -> Result<(u64, Side), Refused> {
        self.local(conn)
            .filter(|local| local.open)
            .map(|local| (local.conn, local.side))
            .ok_or(Refused::Closed)
    }

    fn claim(&mut self, link: &mut Link) -> Option<(ConnId, u64, Side)> {
        let (conn, side) = link.take()?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, local: None, last: None });
            u32::try_from(self.slots.len() - 1).expect("`connections` is a u32 and was checked")
        });
        let position = self.shared.with(|world| world.config.first_position);
        let slot = &mut self.slots[index as usize];
        let local = Local {
            conn,
            side,
            negotiated: None,
            open: false,
            scratch: Vec::new(),
            staged: Vec::new(),
            position,
        };
        slot.local = Some(local);
        Some((ConnId::new(index, slot.generation), conn, side))
    }

    /// Nobody is in the slot any more.
    fn vacate(&mut self, conn: ConnId, counters: PortCounters) {
        if let Some(slot) = self.slots.get_mut(conn.index() as usize) {
            slot.local = None;
            slot.generation = slot.generation.wrapping_add(1);
            slot.last = Some((conn, counters));
            self.free.push(conn.index());
        }
    }

    fn opened(&mut self, conn: ConnId, negotiated: &Arc<Negotiated>) {
        if let Some(local) = self.local_mut(conn) {
            local.open = true;
            local.scratch = vec![0; negotiated.frame_bytes_max as usize];
            local.negotiated = Some(Arc::clone(negotiated));
        }
    }

    fn event(&mut self, conn: ConnId, inbound: Inbound, counters: PortCounters) -> Option<Event> {
        Some(match inbound {
            Inbound::Opened(negotiated) => {
                self.opened(conn, &negotiated);
                Event::Opened { conn, negotiated }
            }
            // They come by runs.
            Inbound::Frame { .. } => return None,
            Inbound::Pulled { token, result } => Event::Pulled { conn, token, result },
            Inbound::Accessed { token, result } => Event::Accessed { conn, token, result },
            Inbound::Closed(reason) => {
                if let Some((id, side)) = self.local(conn).map(|local| (local.conn, local.side)) {
                    self.shared.with(|world| world.leave_shared(id, side));
                }
                self.vacate(conn, counters);
                Event::Closed { conn, reason }
            }
        })
    }
}

impl SimPort {
    /// Posts what was committed.
    fn post_staged(&mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(conn) = (!self.dirty.is_empty()).then(|| self.dirty.remove(0)) {
            let Some(local) = self.local_mut(conn) else { continue };
            let (id, side) = (local.conn, local.side);
            let staged = std::mem::take(&mut local.staged);
            shared.with(|world| {
                for chain in staged {
                    world.post(id, side, chain);
                }
            });
        }
    }

    /// Posts the receives again that ended: by the end of a turn, as a device's port does it.
    fn repost(&mut self) {
        for (id, side) in self.owing.drain(..) {
            self.shared.with(|world| world.repost(id, side));
        }
    }
}

impl SimPort {
    /// [`Port::next_run`].
    fn lend_run(&mut self, limit: usize) -> Option<Run> {
        self.no_run_is_out();
        let Self { shared, id, arena, .. } = self;
        let lent = shared.with(|world| world.lend_run(*id, limit, arena));
        let Some((begun, run)) = lent else {
            self.grant_again();
            return None;
        };
        self.begun = Some(begun);
        Some(run)
    }

    /// Grants shared receives again whose chains were read: those of one turn together, as over a device.
    fn grant_again(&mut self) {
        for (id, side) in self.read.drain(..) {
            self.shared.with(|world| world.grant_again(id, side));
        }
    }

    /// [`Port::end_run`].
    fn run_ended(&mut self, run: &Run) {
        let Some(begun) = self.begun.take() else { return };
        let port = self.id;
        if self.shared.with(|world| world.end_run(port, begun, run)) {
            self.owing.push((begun.conn, begun.side));
        }
        self.read.push((begun.conn, begun.side));
        // A caller that takes single frames may not look again for long.
        if self.takes_one && self.shared.with(|world| world.choose(port, true)).is_none() {
            self.grant_again();
        }
    }

    /// What comes next is asked for.
    fn no_run_is_out(&mut self) {
        if self.begun.take().is_some() {
            self.shared.with(|world| world.misuse(Misuse::OpenRun));
        }
    }

    /// Whether what is staged leaves when a run ends: as over a device, and not every time.
    fn leave_early(&mut self, conn: ConnId) -> bool {
        let rings = self.negotiated(conn).is_some_and(|negotiated| !negotiated.credit_words);
        let leaves = rings
            && self.dirty.as_slice() == [conn]
            && self.shared.with(|world| !world.config.shuffle || world.rng.below(2) == 0);
        if leaves {
            self.post_staged();
        }
        leaves
    }
}

impl Port for SimPort {
    type Link = Link;
    type Gate = SimGate;
    type Direct = Self;

    fn gate(&self) -> SimGate {
        SimGate { shared: Arc::clone(&self.shared), port: self.id, copies: Arc::clone(&self.copies) }
    }

    fn adopt(&mut self, mut link: Link, now: Time) -> Result<ConnId, PortError> {
        if !link.may_go_to(self.id) {
            return Err(PortError::System { step: "adopt on another port than the gate's", errno: INVALID });
        }
        let used = self.slots.len() - self.free.len();
        let limit = self.config.connections;
        if used >= limit as usize {
            return Err(PortError::Limit {
                field: "connections",
                value: used as u64 + 1,
                limit: limit.into(),
            });
        }
        self.shared.with(|world| world.setup("ibv_post_recv"))?;
        let Some((id, conn, side)) = self.claim(&mut link) else {
            return Err(PortError::System { step: "adopt", errno: INVALID });
        };
        let port = self.id;
        self.shared.with(|world| {
            world.advance(now);
            world.adopted(conn, side, id, port);
        });
        Ok(id)
    }

    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        let (id, side) = self.open_end(conn)?;
        let outstanding = self.shared.with(|world| world.outstanding(id, side))?;
        let sends = self.config.sends.into();
        let local = self.local_mut(conn).ok_or(Refused::Closed)?;
        let negotiated = local.negotiated.clone().ok_or(Refused::Closed)?;
        let limit = local.scratch.len().saturating_sub(FRAME_WORD_BYTES);
        if payload_bytes > limit {
            return Err(Refused::TooLarge { bytes: payload_bytes, limit });
        }
        // Shared memory has no queue of sends: there, room in the ring is all that is needed.
        if negotiated.arrivals_count && outstanding + local.staged.len() as u64 >= sends {
            return Err(Refused::Full);
        }
        let Some(staged) = fill(&mut local.scratch[..payload_bytes]) else { return Ok(None) };
        if staged.payload_bytes > payload_bytes {
            return Ok(Some(Position(local.position)));
        }
        let is_extended = local.stage(&staged, negotiated.chain_bytes_max as usize);
        let position = local.position;
        let room = u64::from(negotiated.tx_ring_bytes);
        self.shared.with(|world| {
            let done = world.conns.get(&id).map_or(position, |conn| conn.ends[side].tx.completed);
            if position > done + room {
                world.misuse(Misuse::TransmitOverrun { bytes: position - done - room });
            }
            if staged.chain == Chain::Extend && !is_extended {
                world.misuse(Misuse::BadExtend);
            }
        });
        if !self.dirty.contains(&conn) {
            self.dirty.push(conn);
        }
        Ok(Some(Position(position)))
    }

    fn flush(&mut self) {
        self.post_staged();
        self.repost();
    }

    fn credit(&mut self, conn: ConnId) -> CreditView {
        let Some(local) = self.local(conn) else { return CreditView::default() };
        let (id, side) = (local.conn, local.side);
        let in_words = local.negotiated.as_ref().is_some_and(|negotiated| negotiated.credit_words);
        self.shared.with(|world| {
            let Some(end) = world.conns.get(&id).map(|conn| &conn.ends[side]) else {
                return CreditView::default();
            };
            CreditView {
                completed: Position(end.tx.completed),
                peer: in_words.then_some(end.peer_credit),
                arrivals: end.rx.arrivals,
            }
        })
    }

    fn return_credit(&mut self, conn: ConnId, credit: Credit) {
        if let Ok((id, side)) = self.open_end(conn) {
            self.shared.with(|world| world.return_credit(id, side, credit));
        }
    }

    fn take_back(&mut self, conn: ConnId, receives: u64) -> Result<(), Violation> {
        let Ok((id, side)) = self.open_end(conn) else { return Ok(()) };
        self.shared.with(|world| world.take_back(id, side, receives))
    }

    fn release(&mut self, conn: ConnId, frame: RxFrame) {
        if let Some((id, side)) = self.local(conn).map(|local| (local.conn, local.side)) {
            self.shared.with(|world| {
                world.release(id, side, (frame.end(), frame.slot()), &frame);
                world.grant_again(id, side);
            });
        }
    }

    fn poll(&mut self, now: Time, batch: &mut Batch) {
        self.no_run_is_out();
        self.repost();
        let (shared, port) = (Arc::clone(&self.shared), self.id);
        shared.with(|world| world.turn(port, now));
        while batch.room() > 0 {
            let Some((conn, inbound, counters)) = shared.with(|world| world.next_for(port)) else { break };
            let event = self.event(conn, inbound, counters);
            event.into_iter().for_each(|event| batch.push(event));
        }
    }

    fn next_run(&mut self, limit: Limit) -> Look {
        let most = match limit {
            Limit::Frames(most) => most,
            Limit::One => usize::MAX,
        };
        self.takes_one = limit == Limit::One;
        // What is due is brought by a poll, which moves time.
        self.lend_run(most).map_or(Look::Events, Look::Run)
    }

    fn end_run(&mut self, run: &mut Run, may_leave: bool) -> bool {
        let left = may_leave && self.leave_early(run.conn());
        self.run_ended(run);
        left
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason, now: Time) {
        let Some(local) = self.local_mut(conn) else { return };
        local.open = false;
        local.staged.clear();
        let (id, side) = (local.conn, local.side);
        self.shared.with(|world| {
            world.advance(now);
            world.hang_up(id, side, reason);
        });
    }

    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let (id, _) = self.open_end(conn).ok()?;
        Some(Pulse { beat: self.shared.with(|world| world.beat(id))?, at: now })
    }

    fn counters(&self, conn: ConnId) -> PortCounters {
        if let Some(local) = self.local(conn) {
            let (id, side) = (local.conn, local.side);
            return self.shared.with(|world| world.counters(id, side));
        }
        let slot = self.slots.get(conn.index() as usize);
        slot.and_then(|slot| slot.last)
            .filter(|(id, _)| *id == conn)
            .map_or_else(PortCounters::default, |last| last.1)
    }
}

impl Transfer for SimPort {
    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused> {
        let (id, side) = self.open_end(conn)?;
        self.shared.with(|world| world.offer(id, side, loan))
    }

    fn pull(&mut self, conn: ConnId, offer: Offer, token: u64) -> Result<Option<Pulled>, Refused> {
        let (id, side) = self.open_end(conn)?;
        self.shared.with(|world| world.pull((self.id, id, side), offer, token))
    }

    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let (id, side) = self.open_end(conn).map_err(|_| AccessError::Closed)?;
        self.shared.with(|world| world.show(id, side, exposed))
    }

    fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let Ok((id, side)) = self.open_end(conn) else { return Err((AccessError::Closed, op)) };
        self.shared.with(|world| world.access(id, side, remote, op, token))
    }
}

impl Wait for SimPort {
    fn arm(&mut self) -> bool {
        self.doorbell.arm();
        let port = self.id;
        let busy = self.shared.with(|world| world.has_work(port));
        if busy {
            self.doorbell.disarm();
        }
        !busy
    }

    fn disarm(&mut self) {
        self.doorbell.disarm();
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.doorbell)
    }

    fn deadline(&self) -> Time {
        self.shared.with(|world| world.deadline(self.id))
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        let port = self.id;
        self.shared.with(|world| world.port_dropped(port));
    }
}
