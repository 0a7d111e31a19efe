//! The data side: every shared-memory connection of one poll thread.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use rustix::event::epoll;

use super::{
    gate::ShmGate,
    link::ShmLink,
    live::ARRIVALS,
    table::{Slot, Stage, Table, live},
};
use crate::{
    AccessError, Batch, CloseReason, ConnId, Credit, CreditView, Event, Limit, Look, Port, PortConfig,
    PortCounters, PortError, Position, Pulled, Pulse, Refused, Staged, Time, Transfer, Wait, Waker,
    kernel::{system, system_io},
    mem::{Exposed, Loan, Offer, OneSided, Remote, Run, RxFrame},
    sync::{
        Doorbell,
        wake::{announce, settle, withdraw},
    },
};

/// The doorbell in the epoll set: the name of no connection.
const DOORBELL: u64 = u64::MAX;

/// Connections of one thread over shared memory.
#[derive(Debug)]
pub struct ShmPort {
    pub(super) table: Table,
    /// Where in `active` the next frame is looked for, and how many were passed since it was last said that there is
    /// none.
    turn: usize,
    passed: usize,
    /// Runs were taken since the last poll.
    ran: bool,
    armed: bool,
}

impl ShmPort {
    pub(super) fn open(config: &PortConfig) -> Result<Self, PortError> {
        config.check()?;
        let bell = Arc::new(Doorbell::new().map_err(|error| system_io("eventfd", &error))?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let data = epoll::EventData::new_u64(DOORBELL);
        epoll::add(&epoll, &*bell, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        Ok(Self {
            table: Table::new(ShmGate::new(config.clone(), bell), epoll),
            turn: 0,
            passed: 0,
            ran: false,
            armed: false,
        })
    }

    /// After the first commit since a flush: the next one sees to it, and its answer is looked for.
    #[inline]
    fn began(&mut self, conn: ConnId, parked: bool) {
        self.table.unflushed.push(conn.index());
        if parked {
            self.table.unpark(conn.index() as usize);
        }
    }

    /// The next slot with frames to read, once round.
    #[inline(always)]
    fn next_open(&mut self, limit: usize) -> Option<usize> {
        let watches = self.table.active.len() == 1;
        while self.passed < self.table.active.len() && limit > 0 {
            let Some(&index) = self.table.active.get(self.turn) else {
                self.turn = 0;
                continue;
            };
            let index = index as usize;
            let Stage::Live(live) = &mut self.table.slots.get_mut(index)?.stage else { return None };
            self.turn += 1;
            self.passed += 1;
            if live.has_frame(watches) {
                return Some(index);
            }
            // Its peer has closed, and it is read to the end.
            if let Some(reason) = live.ending.take() {
                self.table.finish(index, reason);
            }
        }
        self.passed = 0;
        None
    }

    /// The next run of at most `limit` frames.
    #[inline(always)]
    fn lend(&mut self, limit: usize) -> Look {
        if self.passed == self.table.active.len() {
            // As most of the time: all were asked.
            self.passed = 0;
        } else if let Some(slot) = self.next_open(limit)
            && let Some(Slot { stage: Stage::Live(live), .. }) = self.table.slots.get(slot)
            && let Some(run) = live.run(limit)
        {
            return Look::Run(run);
        }
        if self.has_events() { Look::Events } else { Look::Nothing }
    }

    /// Whether a poll would find something, or has to be made soon.
    #[inline]
    fn has_events(&self) -> bool {
        self.armed
            || self.table.greetings > 0
            || !self.table.credits.is_empty()
            || !self.table.news.is_empty()
    }

    /// Wakes peers that may sleep while frames were published for them.
    fn ring(&mut self) {
        settle();
        let Table { unflushed, credits, slots, .. } = &mut self.table;
        for &index in &*unflushed {
            let Slot { stage: Stage::Live(live), counters, .. } = &mut slots[index as usize] else {
                continue;
            };
            if !live.ring() {
                credits.push(index);
            }
            live.flushed();
            counters.doorbells += 1;
        }
        unflushed.clear();
        if !credits.is_empty() {
            self.ring_credits();
        }
    }

    /// Wakes peers that may sleep while credit was published for them.
    #[cold]
    fn ring_for_credit(&mut self) {
        settle();
        self.ring_credits();
    }

    /// Rings where credit was published, or where it failed before. What fails again stays for the next time.
    #[inline]
    fn ring_credits(&mut self) {
        let Table { credits, slots, .. } = &mut self.table;
        credits.retain(|&index| match &mut slots[index as usize].stage {
            Stage::Live(live) => !live.ring(),
            _ => false,
        });
    }

    fn withdraw(&mut self) {
        self.armed = false;
        for &index in &self.table.active {
            if let Stage::Live(live) = &self.table.slots[index as usize].stage {
                withdraw(live.armed());
            }
        }
        self.table.gate.shared.waker.disarm();
    }
}

impl Port for ShmPort {
    type Link = ShmLink;
    type Gate = ShmGate;
    type Direct = Self;
    const IN_MEMORY: bool = true;

    fn gate(&self) -> ShmGate {
        self.table.gate.clone()
    }

    fn adopt(&mut self, link: ShmLink, now: Time) -> Result<ConnId, PortError> {
        self.table.adopt(link, now)
    }

    #[inline]
    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        let (live, counters) = live(&mut self.table.slots, conn).ok_or(Refused::Closed)?;
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
        if !self.table.unflushed.is_empty() || !self.table.credits.is_empty() {
            self.ring();
        }
    }

    #[inline]
    fn credit(&mut self, conn: ConnId) -> CreditView {
        let Some(live) = self.table.live(conn) else { return CreditView::default() };
        let peer = Some(live.peer_credit());
        CreditView { completed: live.committed(), peer, arrivals: ARRIVALS }
    }

    #[inline]
    fn return_credit(&mut self, conn: ConnId, credit: Credit) {
        if let Some(live) = self.table.live(conn) {
            live.return_credit(credit.bytes);
            if self.table.credits.last() != Some(&conn.index()) {
                self.table.credits.push(conn.index());
            }
        }
    }

    #[inline]
    fn release(&mut self, _conn: ConnId, frame: RxFrame) {
        drop(frame);
    }

    #[inline]
    fn poll(&mut self, now: Time, batch: &mut Batch) {
        if self.armed {
            self.disarm();
        }
        if !self.table.credits.is_empty() {
            self.ring_for_credit();
        }
        if !self.table.news.is_empty() {
            self.table.tell(batch);
        }
        let brought = std::mem::take(&mut self.ran);
        self.table.keep_pace(now, brought);
        if !self.table.news.is_empty() {
            self.table.tell(batch);
        }
    }

    #[inline(always)]
    fn next_run(&mut self, limit: Limit) -> Look {
        match limit {
            Limit::Frames(most) => self.lend(most),
            Limit::One => self.lend(usize::MAX),
        }
    }

    #[inline(always)]
    fn end_run(&mut self, run: &mut Run, _may_leave: bool) -> bool {
        self.ran = true;
        let index = run.conn().index() as usize;
        // It may have been closed since.
        if let Some(Slot { stage: Stage::Live(live), counters, .. }) = self.table.slots.get_mut(index)
            && let Some((taken, broken)) = live.end_run(run)
        {
            counters.frames_received += u64::from(taken);
            if let Some(violation) = broken {
                self.table.finish(index, violation.into());
            }
        }
        false
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason, _now: Time) {
        let Some(slot) = self.table.slot(conn) else { return };
        let first = match &slot.stage {
            Stage::Live(live) => live.ending.clone(),
            _ => None,
        };
        self.table.finish(conn.index() as usize, first.unwrap_or(reason));
    }

    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        Some(Pulse { beat: self.table.live(conn)?.beat()?, at: now })
    }

    fn counters(&self, conn: ConnId) -> PortCounters {
        let Some(slot) = self.table.slot(conn) else { return PortCounters::default() };
        let account = self.table.gate.shared.accounts.of(conn);
        account.map_or(slot.counters, |account| account.counted(slot.counters))
    }
}

impl Transfer for ShmPort {
    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused> {
        let (live, _) = live(&mut self.table.slots, conn).ok_or(Refused::Closed)?;
        if live.ending.is_some() {
            return Err(Refused::Closed);
        }
        if live.negotiated.responder_resources.granted == 0 {
            return Err(Refused::NoReads);
        }
        live.passed.offer(&live.end.socket, &self.table.gate.shared.pool, loan)
    }

    fn pull(&mut self, conn: ConnId, offer: Offer, _token: u64) -> Result<Option<Pulled>, Refused> {
        let config = &self.table.gate.shared.config;
        let (limit, piece_bytes) = (config.bulk_bytes_max, u64::from(config.bulk_piece_bytes));
        let known = self.table.live(conn).ok_or(Refused::Closed)?;
        if known.negotiated.initiator_depth.granted == 0 {
            return Err(Refused::NoReads);
        }
        if offer.len > limit {
            let in_words = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(Refused::TooLarge { bytes: in_words(offer.len), limit: in_words(limit) });
        }
        if !known.passed.has(&offer) {
            // It was sent before the offer, so it is there.
            self.table.read_socket_until(conn, |live| live.passed.has(&offer));
        }
        let (live, counters) = live(&mut self.table.slots, conn).ok_or(Refused::Closed)?;
        let shared = &self.table.gate.shared;
        let copies =
            live.is_mirrored().then(|| shared.accounts.of(conn).ok_or(Refused::Closed)).transpose()?;
        let result = live.passed.bulk(offer, copies.as_ref(), &shared.waker);
        if result.is_ok() && copies.is_some() {
            counters.reads += offer.len.div_ceil(piece_bytes);
            counters.read_bytes += offer.len;
        } else if result.is_ok() {
            counters.in_place_bytes += offer.len;
        }
        Ok(Some(result))
    }

    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let (live, _) = live(&mut self.table.slots, conn).ok_or(AccessError::Closed)?;
        if live.ending.is_some() {
            return Err(AccessError::Closed);
        }
        // A peer that was granted no reads makes no operation, and takes no memory for one.
        let may_use = live.negotiated.responder_resources.granted > 0;
        live.shown.show(&live.end.socket, &self.table.gate.shared.exposures, exposed, may_use)
    }

    fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let Some(known) = self.table.live(conn) else { return Err((AccessError::Closed, op)) };
        if known.negotiated.initiator_depth.granted == 0 {
            return Err((AccessError::Off, op));
        }
        if let Err(error) = op.check(&remote, known.negotiated.atomics) {
            return Err((error, op));
        }
        // It was sent before the peer could tell of it, so it is there.
        self.table.read_socket_until(conn, |live| live.shown.has(&remote));
        let Some((live, counters)) = live(&mut self.table.slots, conn) else {
            return Err((AccessError::Closed, op));
        };
        let result = live.shown.access(&remote, op);
        counters.accesses += u64::from(result.is_ok());
        self.table.news.push_back(Event::Accessed { conn, token, result });
        Ok(())
    }
}

impl Wait for ShmPort {
    fn arm(&mut self) -> bool {
        if !self.table.credits.is_empty() {
            self.ring_for_credit();
        }
        // A doorbell that could not be sent is tried again.
        if !self.table.news.is_empty() || self.table.has_more || !self.table.credits.is_empty() {
            return false;
        }
        self.table.epoch += 1;
        self.armed = true;
        // Parked connections are armed already, each by a number of its own, and their peers ring: they are not touched.
        let Table { active, slots, epoch, gate, .. } = &mut self.table;
        for &index in &*active {
            if let Stage::Live(live) = &slots[index as usize].stage {
                announce(live.armed(), *epoch);
            }
        }
        gate.shared.waker.arm();
        settle();
        let work = active.iter().any(|&index| match &mut slots[index as usize].stage {
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
            self.table.read_sockets();
        }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.table.epoll.as_fd()
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.table.gate.shared.waker)
    }

    fn deadline(&self) -> Time {
        let greeting_at = if self.table.greetings == 0 { Time::NEVER } else { self.table.pace.greeting_at };
        greeting_at.min(self.table.gate.shared.pool.sweep_at(self.table.swept))
    }
}
