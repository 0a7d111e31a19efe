//! The data side: every shared-memory connection of one poll thread.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::event::epoll;

use super::{
    bulk::Known,
    gate::{ShmGate, check},
    link::ShmLink,
    live::{ARRIVALS, Live},
    look::{DOORBELL, Pace},
    pace::{ONE_STRIDE_MAX, STRIDE_MAX},
    park::Parked,
    slot::{self, Slot, Stage},
};
use crate::{
    AccessError, Batch, BulkError, CloseReason, ConnId, Credit, Event, Limit, Look, Port, PortConfig,
    PortCounters, PortError, Position, Pulse, Refused, Staged, Time, Waker,
    kernel::{system, system_io},
    mem::{Bulk, Exposed, Loan, Offer, OneSided, Remote, Run, RxFrame},
    sync::{
        Doorbell,
        wake::{announce, settle, withdraw},
    },
};

/// Connections of one thread over shared memory.
#[derive(Debug)]
pub struct ShmPort {
    pub(super) gate: ShmGate,
    pub(super) epoll: OwnedFd,
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    /// Slots that are polled.
    pub(super) active: Vec<u32>,
    /// Where in `active` the next frame is looked for, and how many were passed since it was last said that there is
    /// none.
    turn: usize,
    passed: usize,
    /// Frames may be kept back on the connection whose run is lent.
    keeps: bool,
    /// Slots with frames that were committed since the last flush.
    unflushed: Vec<u32>,
    /// Slots whose peer may sleep and wait for the credit that we gave.
    pub(super) credits: Vec<u32>,
    /// Events that are not about frames.
    pub(super) news: VecDeque<Event>,
    pub(super) greetings: usize,
    pub(super) pace: Pace,
    pub(super) parked: Parked,
    known: Known,
    /// Runs were taken since the last poll.
    ran: bool,
    armed: bool,
    /// Number of the last sleep, of this port or of a parked connection.
    pub(super) epoch: u64,
}

impl ShmPort {
    pub(super) fn open(config: &PortConfig) -> Result<Self, PortError> {
        check(config)?;
        let bell = Arc::new(Doorbell::new().map_err(|error| system_io("eventfd", &error))?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let data = epoll::EventData::new_u64(DOORBELL);
        epoll::add(&epoll, &*bell, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        // Room for what grows with connections, so that the data path finds it.
        let room = config.connections.min(1024) as usize;
        Ok(Self {
            gate: ShmGate::new(config.clone(), bell),
            epoll,
            slots: Vec::with_capacity(room),
            free: Vec::with_capacity(room),
            active: Vec::with_capacity(room),
            turn: 0,
            passed: 0,
            keeps: false,
            unflushed: Vec::with_capacity(room),
            credits: Vec::with_capacity(room),
            news: VecDeque::with_capacity(room),
            greetings: 0,
            pace: Pace::new(),
            parked: Parked::default(),
            known: Known::default(),
            ran: false,
            armed: false,
            epoch: 0,
        })
    }

    /// Its slot, as long as it lives or has not been told of its end.
    #[inline]
    fn slot(&mut self, conn: ConnId) -> Option<&mut Slot> {
        self.slots.get_mut(conn.index() as usize).filter(|slot| slot.is_of(conn))
    }

    #[inline]
    pub(super) fn live(&mut self, conn: ConnId) -> Option<&mut Live> {
        slot::live(&mut self.slots, conn).map(|(live, _)| live)
    }

    /// After the first commit since a flush: the next one sees to it, and its answer is looked for.
    #[inline]
    fn began(&mut self, conn: ConnId, parked: bool) {
        self.unflushed.push(conn.index());
        if parked {
            self.unpark(conn.index() as usize);
        }
    }

    /// Ends what is in a slot; its `Closed` comes by a poll.
    pub(super) fn finish(&mut self, index: usize, reason: CloseReason) {
        let slot = &mut self.slots[index];
        let (index, end) = match std::mem::replace(&mut slot.stage, Stage::Ended) {
            Stage::Live(mut live) => {
                live.show();
                self.parked.count -= usize::from(live.parked);
                (live.id().index(), live.end)
            }
            Stage::Greeting(greeting) => {
                self.greetings -= 1;
                (greeting.index, greeting.end)
            }
            other => {
                slot.stage = other;
                return;
            }
        };
        let conn = ConnId::new(index, slot.generation);
        if reason == CloseReason::WorkerPanicked {
            end.tell_panic();
        }
        // Already gone from the set when the peer has hung up.
        let _ = epoll::delete(&self.epoll, &end.socket);
        drop(end);
        for list in [&mut self.active, &mut self.unflushed, &mut self.credits] {
            list.retain(|other| *other != index);
        }
        self.gate.open().remove(conn);
        tracing::debug!(?conn, %reason, "closed");
        self.news.push_back(Event::Closed { conn, reason });
    }

    /// Hands out the news, as far as there is room.
    #[cold]
    fn tell(&mut self, batch: &mut Batch) {
        while batch.room() > 0
            && let Some(event) = self.news.pop_front()
        {
            match &event {
                Event::Opened { conn, .. } if self.live(*conn).is_some() => self.active.push(conn.index()),
                Event::Closed { conn, .. } => {
                    self.slots[conn.index() as usize].stage = Stage::Free;
                    self.free.push(conn.index());
                }
                _ => {}
            }
            batch.push(event);
        }
    }

    /// The next slot with frames to read, once round.
    #[inline(always)]
    fn next_open(&mut self, limit: usize) -> Option<usize> {
        let watches = self.active.len() == 1;
        while self.passed < self.active.len() && limit > 0 {
            let Some(&index) = self.active.get(self.turn) else {
                self.turn = 0;
                continue;
            };
            let index = index as usize;
            let Stage::Live(live) = &mut self.slots.get_mut(index)?.stage else { return None };
            self.turn += 1;
            self.passed += 1;
            if live.has_frame(watches) {
                return Some(index);
            }
            if live.ending.is_some() {
                self.over(index);
            }
        }
        self.passed = 0;
        None
    }

    /// The next run of at most `limit` frames, of a connection whose stride is at most `stride_max`.
    #[inline(always)]
    fn lend(&mut self, limit: usize, stride_max: u32) -> Look {
        if self.passed == self.active.len() {
            // As most of the time: all were asked.
            self.passed = 0;
        } else if let Some(slot) = self.next_open(limit)
            && let Some(Slot { stage: Stage::Live(live), .. }) = self.slots.get_mut(slot)
            && let Some(run) = live.run(limit, stride_max)
        {
            self.keeps = live.keeps();
            return Look::Run(run);
        }
        if self.has_events() { Look::Events } else { Look::Nothing }
    }

    /// Whether a poll would find something, or has to be made soon.
    #[inline]
    fn has_events(&self) -> bool {
        self.armed || self.greetings > 0 || !self.credits.is_empty() || !self.news.is_empty()
    }

    /// A connection whose peer has closed, and which was read to the end.
    #[cold]
    fn over(&mut self, index: usize) {
        if let Stage::Live(live) = &mut self.slots[index].stage {
            let reason = live.ending.take().unwrap_or(CloseReason::Peer);
            self.finish(index, reason);
        }
    }

    /// Shows what is kept back until the run ends that is lent.
    fn show(&mut self) {
        for &index in &self.unflushed {
            if let Stage::Live(live) = &mut self.slots[index as usize].stage {
                live.show();
            }
        }
    }

    /// Wakes peers that may sleep while frames were published for them.
    fn ring(&mut self) {
        if self.keeps {
            self.show();
        }
        settle();
        drain_live(&mut self.unflushed, &mut self.slots, |live, counters| {
            live.flush();
            counters.doorbells += 1;
        });
        if !self.credits.is_empty() {
            drain_live(&mut self.credits, &mut self.slots, |live, _| live.ring());
        }
    }

    /// Wakes peers that may sleep while credit was published for them.
    #[cold]
    fn ring_for_credit(&mut self) {
        settle();
        drain_live(&mut self.credits, &mut self.slots, |live, _| live.ring());
    }

    fn withdraw(&mut self) {
        self.armed = false;
        for slot in &self.slots {
            if let Stage::Live(live) = &slot.stage
                && !live.parked
            {
                withdraw(live.armed());
            }
        }
        self.gate.waker().disarm();
    }
}

impl Port for ShmPort {
    type Link = ShmLink;
    type Gate = ShmGate;
    type Direct = Self;
    const IN_MEMORY: bool = true;

    fn gate(&self) -> ShmGate {
        self.gate.clone()
    }

    fn adopt(&mut self, link: ShmLink, now: Time) -> Result<ConnId, PortError> {
        self.take_in(link, now)
    }

    #[inline]
    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        let (live, counters) = slot::live(&mut self.slots, conn).ok_or(Refused::Closed)?;
        let Some(staged) = fill(live.place(payload_bytes)?) else { return Ok(None) };
        if staged.payload_bytes > payload_bytes {
            return Ok(Some(live.committed()));
        }
        counters.frames_sent += 1;
        let (end, begins) = live.commit(staged.payload_bytes, staged.tag);
        if begins {
            let parked = live.parked;
            self.began(conn, parked);
        }
        Ok(Some(end))
    }

    #[inline]
    fn flush(&mut self) {
        if !self.unflushed.is_empty() || !self.credits.is_empty() {
            self.ring();
        }
    }

    #[inline]
    fn completed(&mut self, conn: ConnId) -> Position {
        self.live(conn).map_or_else(Position::default, |live| live.committed())
    }

    #[inline]
    fn peer_credit(&mut self, conn: ConnId) -> Option<Credit> {
        self.live(conn).map(Live::peer_credit)
    }

    #[inline]
    fn return_credit(&mut self, conn: ConnId, credit: Credit) {
        if let Some(live) = self.live(conn) {
            live.return_credit(credit.bytes);
            if self.credits.last() != Some(&conn.index()) {
                self.credits.push(conn.index());
            }
        }
    }

    fn arrivals(&self, _conn: ConnId) -> u64 {
        ARRIVALS
    }

    #[inline]
    fn release(&mut self, _conn: ConnId, frame: RxFrame) {
        drop(frame);
    }

    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused> {
        let (live, _) = slot::live(&mut self.slots, conn).ok_or(Refused::Closed)?;
        live.offer(&mut self.known, self.gate.pool(), loan)
    }

    fn pull(&mut self, conn: ConnId, offer: Offer, token: u64) -> Result<(), Refused> {
        let result = self.look_up(conn, offer)?;
        self.news.push_back(Event::Pulled { conn, token, result });
        Ok(())
    }

    fn next_pulled(&mut self, conn: ConnId) -> Option<(u64, Result<Bulk, BulkError>)> {
        if !matches!(self.news.front(), Some(Event::Pulled { conn: whose, .. }) if *whose == conn) {
            return None;
        }
        match self.news.pop_front() {
            Some(Event::Pulled { token, result, .. }) => Some((token, result)),
            _ => None,
        }
    }

    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        self.show_exposed(conn, exposed)
    }

    fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        self.make_access(conn, remote, op, token)
    }

    #[inline]
    fn poll(&mut self, now: Time, batch: &mut Batch) {
        if self.armed {
            self.disarm();
        }
        if !self.credits.is_empty() {
            self.ring_for_credit();
        }
        if !self.news.is_empty() {
            self.tell(batch);
        }
        let brought = std::mem::take(&mut self.ran);
        self.keep_pace(now, brought);
        if !self.news.is_empty() {
            self.tell(batch);
        }
    }

    #[inline(always)]
    fn next_run(&mut self, limit: Limit) -> Look {
        match limit {
            Limit::Frames(most) => self.lend(most, STRIDE_MAX),
            Limit::One => self.lend(usize::MAX, ONE_STRIDE_MAX),
        }
    }

    #[inline(always)]
    fn end_run(&mut self, run: &mut Run, _may_leave: bool) -> bool {
        (self.ran, self.keeps) = (true, false);
        let index = run.conn().index() as usize;
        // It may have been closed since.
        if let Some(Slot { stage: Stage::Live(live), counters, .. }) = self.slots.get_mut(index)
            && let Some((taken, broken)) = live.end_run(run)
        {
            counters.frames_received += u64::from(taken);
            if let Some(violation) = broken {
                self.finish(index, violation.into());
            }
        }
        false
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason, _now: Time) {
        let Some(slot) = self.slot(conn) else { return };
        let first = match &mut slot.stage {
            Stage::Live(live) => live.ending.take(),
            _ => None,
        };
        self.finish(conn.index() as usize, first.unwrap_or(reason));
    }

    fn arm(&mut self) -> bool {
        if !self.credits.is_empty() {
            self.ring_for_credit();
        }
        if !self.news.is_empty() {
            return false;
        }
        self.epoch += 1;
        self.armed = true;
        for slot in &self.slots {
            if let Stage::Live(live) = &slot.stage
                && !live.parked
            {
                announce(live.armed(), self.epoch);
            }
        }
        self.gate.waker().arm();
        settle();
        let work = self.slots.iter_mut().any(|slot| match &mut slot.stage {
            Stage::Live(live) => live.has_work(),
            _ => false,
        });
        if work {
            self.withdraw();
        }
        !work
    }

    fn disarm(&mut self) {
        if self.armed {
            self.withdraw();
            self.read_sockets();
        }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn waker(&self) -> Waker {
        Arc::clone(self.gate.waker())
    }

    fn deadline(&self) -> Time {
        if self.greetings == 0 { Time::NEVER } else { self.pace.greeting_at }
    }

    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        Some(Pulse { beat: self.live(conn)?.beat()?, at: now })
    }

    fn counters(&self, conn: ConnId) -> PortCounters {
        let slot = self.slots.get(conn.index() as usize).filter(|slot| slot.is_of(conn));
        slot.map_or_else(PortCounters::default, |slot| slot.counters)
    }
}

fn drain_live(list: &mut Vec<u32>, slots: &mut [Slot], act: impl Fn(&mut Live, &mut PortCounters)) {
    for &index in &*list {
        let slot = &mut slots[index as usize];
        if let Stage::Live(live) = &mut slot.stage {
            act(live, &mut slot.counters);
        }
    }
    list.clear();
}
