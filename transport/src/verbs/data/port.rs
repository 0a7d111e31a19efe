//! The data side: every connection of one poll thread.
//!
//! Read `conn`, `tx`, `rx`, `pulls` and `close` first: the port only finds the connection and keeps the lists.
//! A completion names its connection by index and generation. It is kept while that is not adopted yet.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use gimmal_rdma::verbs::{Completion, Cq, Harvest, RecvList, SendList};
use rustix::event::epoll;

use crate::{
    Batch, CloseReason, ConnId, Credit, CreditView, Event, Instant, Limit, Look, PortConfig, PortCounters,
    PortError, Position, Pulse, Refused, Staged, Time, Violation,
    kernel::{system, system_io},
    mem::{Run, RxFrame, run::IN_RING},
    pieces::Pieces,
    provider::{Port, Wait},
    sync::doorbell::{Doorbell, Waker},
    verbs::{
        control::{gate::VerbsGate, link::VerbsLink, mailbox::ControlHandle, shared::Shared},
        data::{
            close::Step,
            conn::Conn,
            down::Down,
            pulls::What,
            rx::Begun,
            table::{Owing, Slot, conn_in, list_once, open_in},
        },
        memory::{pulse, rings::Room},
        srq::slots::{Place, SharedSlots},
    },
};

/// How long dropping a port waits for its queue pairs to be destroyed.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// The data side: every connection of one poll thread.
#[derive(Debug)]
pub struct VerbsPort {
    pub(crate) gate: VerbsGate,
    pub(crate) slots: Vec<Slot>,
    pub(crate) adopted: u32,
    /// Each with the number of connections on it. A queue without connections is not kept.
    pub(crate) cqs: Vec<(Arc<Cq>, u32)>,
    pub(crate) next_cq: usize,
    /// Completions taken from a queue and not handled yet.
    pub(crate) harvest: Harvest,
    pub(crate) early: Vec<Completion>,
    /// The chain that is being read.
    pub(crate) begun: Option<Begun>,
    /// Queues in a row that returned less than they were asked for, since [`Port::next_run`] last found none.
    pub(crate) emptied: usize,
    /// Connections with staged chains, READs to post, receives to post (`owing`), deadlines.
    pub(crate) dirty: Vec<usize>,
    pub(crate) pulling: Vec<usize>,
    pub(crate) owing: Owing,
    pub(crate) waiting: Vec<usize>,
    /// The length of the next piece where a post moves the bytes.
    pub(crate) pieces: Pieces,
    /// Connections that the CM reports as down, until earlier arrivals are handled.
    pub(crate) down: Down,
    /// The time of the last poll.
    pub(crate) now: Time,
    /// Events for the next batch.
    pub(crate) backlog: VecDeque<Event>,
    /// The shared receives of each completion queue that has any.
    pub(crate) shared: Vec<SharedSlots>,
    /// Connections of which shared receives are posted again and not granted again yet.
    pub(crate) read: Vec<ConnId>,
    /// The last look was for one frame.
    pub(crate) takes_one: bool,
    /// Registered transmit rings that no connection uses.
    pub(crate) spare: Vec<Room>,
    pub(crate) sends: SendList,
    pub(crate) recvs: RecvList,
    pub(crate) epoll: OwnedFd,
}

impl VerbsPort {
    pub(crate) fn open(config: &PortConfig, control: Arc<ControlHandle>) -> Result<Self, PortError> {
        let bell = Arc::new(Doorbell::new().map_err(|error| system_io("eventfd", &error))?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        epoll::add(&epoll, &*bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        let room = usize::from(config.sends.max(config.arrivals).max(config.shared.sends))
            + usize::from(config.initiator_depth)
            + 2;
        let connections = config.connections as usize;
        Ok(Self {
            gate: VerbsGate { shared: Shared::new(config, bell), control },
            slots: Vec::new(),
            adopted: 0,
            cqs: Vec::new(),
            next_cq: 0,
            harvest: Harvest::new(),
            early: Vec::new(),
            begun: None,
            emptied: 0,
            dirty: Vec::with_capacity(connections),
            pulling: Vec::with_capacity(connections),
            owing: Owing { conns: Vec::with_capacity(connections), are_many: false },
            waiting: Vec::with_capacity(connections),
            pieces: Pieces::default(),
            down: Down::default(),
            now: Time::default(),
            backlog: VecDeque::new(),
            read: Vec::new(),
            takes_one: false,
            shared: Vec::new(),
            spare: Vec::new(),
            sends: SendList::new(room),
            recvs: RecvList::new(room),
            epoll,
        })
    }

    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        conn_in(&mut self.slots, id)
    }

    pub(crate) fn begin_close(&mut self, index: usize, reason: CloseReason, now: Time) {
        let is_reading = self.is_reading(index);
        let Some(conn) = self.slots.get_mut(index).and_then(|slot| slot.conn.as_deref_mut()) else { return };
        conn.begin_close(reason, now, &mut self.sends, &self.gate.control);
        if !is_reading {
            // Often there is nothing to wait for. It is never gone yet: that takes another thread.
            conn.step_close(now, &self.gate.control);
        }
        list_once(&mut self.waiting, index);
    }

    /// Returns whether a chain of the connection at `index` is being read.
    pub(crate) fn is_reading(&self, index: usize) -> bool {
        self.begun.is_some_and(|begun| begun.conn.index() as usize == index)
    }

    fn watch(&mut self, cq: &Arc<Cq>) -> Result<(), PortError> {
        if let Some((_, users)) = self.cqs.iter_mut().find(|(known, _)| Arc::ptr_eq(known, cq)) {
            *users += 1;
            return Ok(());
        }
        epoll::add(&self.epoll, cq.fd(), epoll::EventData::new_u64(1), epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        self.cqs.push((Arc::clone(cq), 1));
        Ok(())
    }

    /// Releases the completion queue of a slot whose connection is gone. The queue goes with its last connection.
    pub(crate) fn unwatch(&mut self, index: usize) {
        let Some(cq) = self.slots[index].cq.take() else { return };
        let Some(at) = self.cqs.iter().position(|(known, _)| Arc::ptr_eq(known, &cq)) else { return };
        self.cqs[at].1 -= 1;
        if self.cqs[at].1 == 0 {
            self.cqs.swap_remove(at);
            // A notification that is still armed must not wake whoever waits for others.
            let _ = epoll::delete(&self.epoll, cq.fd());
            self.give_back_rings();
        }
    }

    /// Returns whether something is pending, other than the rest of a run.
    #[inline]
    fn has_news(&self) -> bool {
        !self.harvest.is_empty()
            || self.gate.shared.has_notes()
            || !self.down.is_empty()
            || !self.backlog.is_empty()
    }

    /// Returns whether a poll would find something, or is due soon.
    #[inline]
    fn has_events(&self) -> bool {
        self.has_news() || !(self.waiting.is_empty() && self.pulling.is_empty())
    }

    /// Posts the staged chains of `conn`, if nothing else is staged or pending. Returns whether all of them left.
    #[inline]
    fn flush_answer(&mut self, conn: ConnId) -> bool {
        let is_last = self.harvest.is_empty() && self.emptied >= self.cqs.len();
        if !is_last || self.dirty.as_slice() != [conn.index() as usize] {
            return false;
        }
        let is_done = self.flush_one(conn.index() as usize);
        if is_done {
            self.dirty.clear();
        }
        is_done
    }

    /// Returns whether a poll would find something without asking the device.
    fn has_work(&self) -> bool {
        let has_pulls = |&index: &usize| {
            let conn = self.slots[index].conn.as_deref();
            conn.is_some_and(|conn| conn.pulls.can_post())
        };
        self.has_news() || self.begun.is_some() || self.pulling.iter().any(has_pulls)
    }
}

impl Port for VerbsPort {
    type Link = VerbsLink;
    type Gate = VerbsGate;
    type Direct = Self;

    fn gate(&self) -> VerbsGate {
        self.gate.clone()
    }

    fn adopt(&mut self, link: VerbsLink, now: Time) -> Result<ConnId, PortError> {
        let limit = self.gate.shared.config.connections;
        if self.adopted >= limit {
            let value = u64::from(limit) + 1;
            return Err(PortError::Limit { field: "connections", value, limit: limit.into() });
        }
        let whole = "a link has its parts until it is adopted";
        let cq = Arc::clone(link.cq().expect(whole));
        // While the link is whole: when this fails, its drop destroys the queue pair.
        self.watch(&cq)?;
        let parts = link.into_parts().expect(whole);
        let id = parts.lane.conn();
        let index = id.index() as usize;
        let shares = parts.lane.holdings.queue().map(|queue| (Arc::clone(queue), parts.lane.qp.number()));
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        if self.slots[index].conn.is_some() {
            // Its seat is free, so its queue pair is gone: only its last events are not told yet.
            self.finish(index, Step::Gone);
        }
        let mut conn = Box::new(Conn::new(*parts, &self.gate.shared.config, now));
        conn.start(now, &mut self.sends);
        self.slots[index] =
            Slot { conn: Some(conn), last: Some(id), counters: PortCounters::default(), cq: Some(cq) };
        self.adopted += 1;
        list_once(&mut self.waiting, index);
        if let Some((queue, qp)) = shares {
            self.join(&queue, qp, index);
        }
        self.look_again_at_early();
        // It may have gone down before it was adopted; the note was for nobody then.
        self.gate.shared.note(id);
        Ok(id)
    }

    #[inline(always)]
    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        let mut open = open_in(&mut self.slots, conn)?;
        if let Some(shape) = open.0.tx.wants_ring() {
            self.lend_ring(conn, shape)?;
            open = open_in(&mut self.slots, conn)?;
        }
        let (open, counters) = open;
        let frame = open.tx.reserve(payload_bytes)?;
        let Some(staged) = fill(frame.payload) else { return Ok(None) };
        if staged.payload_bytes > payload_bytes {
            return Ok(Some(open.tx.head()));
        }
        frame.begin(staged.payload_bytes, staged.tag);
        counters.frames_sent += 1;
        if !std::mem::replace(&mut open.is_dirty, true) {
            self.dirty.push(conn.index() as usize);
        }
        Ok(Some(open.tx.commit(staged.payload_bytes, staged.chain)))
    }

    #[inline]
    fn flush(&mut self) {
        self.flush_dirty();
        self.repost_many();
    }

    #[inline]
    fn credit(&mut self, conn: ConnId) -> CreditView {
        let view = |conn: &mut Conn| CreditView {
            completed: conn.tx.completed(),
            peer: None,
            arrivals: conn.rx.arrivals(),
        };
        self.conn(conn).map_or_else(CreditView::default, view)
    }

    fn return_credit(&mut self, _: ConnId, _: Credit) {}

    fn take_back(&mut self, conn: ConnId, receives: u64) -> Result<(), Violation> {
        open_in(&mut self.slots, conn).map_or(Ok(()), |(open, _)| open.rx.take_back(receives))
    }

    #[inline]
    fn release(&mut self, conn: ConnId, frame: RxFrame) {
        if frame.slot() == IN_RING {
            return;
        }
        if let Some(place) = Place::parse(frame.slot()) {
            return self.release_shared(conn, frame, place);
        }
        let index = conn.index() as usize;
        let slot = self.slots.get_mut(index).and_then(|slot| slot.conn.as_deref_mut());
        let Some(open) = slot.filter(|open| open.id == conn) else { return };
        open.rx.release(frame);
        self.owing.note(index, open);
    }

    fn poll(&mut self, now: Time, batch: &mut Batch) {
        self.turn(now, batch);
    }

    #[inline(always)]
    fn next_run(&mut self, limit: Limit) -> Look {
        let most = match limit {
            Limit::Frames(most) => most,
            Limit::One => usize::MAX,
        };
        self.takes_one = limit == Limit::One;
        match self.chain_run(most) {
            Some(run) => Look::Run(run),
            None if self.has_events() => Look::Events,
            None => Look::Nothing,
        }
    }

    #[inline]
    fn end_run(&mut self, run: &mut Run, may_leave: bool) -> bool {
        let left = may_leave && self.flush_answer(run.conn());
        self.end_chain_run(run);
        left
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason, now: Time) {
        if self.conn(conn).is_some() {
            self.begin_close(conn.index() as usize, reason, now);
        }
    }

    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let (open, _) = open_in(&mut self.slots, conn).ok()?;
        let last = open.pulse.last?;
        if open.pulse.is_asked {
            return Some(last);
        }
        if open.pulls.is_full() {
            return None;
        }
        let sink = open.lane.as_ref()?.holdings.device.sinks.allocate(pulse::WORD_BYTES).ok()?;
        open.pulls.add(now.0, What::Pulse, sink.loan, sink.lkey, open.pulse.place);
        open.pulse.is_asked = true;
        open.list_pulls(&mut self.pulling);
        Some(last)
    }

    fn counters(&self, conn: ConnId) -> PortCounters {
        let slot = self.slots.get(conn.index() as usize).filter(|slot| slot.last == Some(conn));
        let counters = slot.map(|slot| slot.counters).unwrap_or_default();
        let place = self.gate.shared.seated_at(conn);
        place.map_or(counters, |(_, account)| account.counted(counters))
    }
}

impl Wait for VerbsPort {
    fn arm(&mut self) -> bool {
        self.gate.shared.bell.arm();
        let mut quiet = !self.has_work();
        for (cq, _) in &self.cqs {
            // A queue that cannot be armed would never wake us.
            quiet = quiet && cq.arm().is_ok();
        }
        // What completed before the notification was armed raises none.
        quiet = quiet && !self.fetch(&mut 0);
        if !quiet {
            self.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        for (cq, _) in &self.cqs {
            cq.quiet();
        }
        self.gate.shared.bell.disarm();
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.gate.shared.bell)
    }

    fn deadline(&self) -> Time {
        let at = |&index: &usize| {
            self.slots[index].conn.as_deref().map_or(Time::NEVER, |conn| conn.phase.deadline(self.now))
        };
        self.waiting.iter().map(at).min().unwrap_or(Time::NEVER)
    }
}

impl Drop for VerbsPort {
    fn drop(&mut self) {
        for conn in self.slots.iter_mut().filter_map(|slot| slot.conn.as_deref_mut()) {
            conn.hand_over(&self.gate.control);
        }
        let limit = Instant::now() + DROP_WAIT;
        for slot in &mut self.slots {
            let Some(conn) = slot.conn.take() else { continue };
            while !conn.fate.is_destroyed() {
                if Instant::now() >= limit {
                    tracing::error!(conn = ?conn.id, "a queue pair was not destroyed in time; its memory is leaked");
                    // The device may still write the sinks of its pulls.
                    std::mem::forget(conn);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
