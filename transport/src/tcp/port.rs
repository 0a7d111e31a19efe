//! The data side: every TCP connection of one poll thread.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use rustix::event::epoll;

use super::{gate::TcpGate, link::TcpLink, table::Table};
use crate::{
    AccessError, Batch, BulkError, CloseReason, ConnId, Credit, CreditView, Limit, LoanError, Look, Port,
    PortConfig, PortCounters, PortError, Position, Pulled, Pulse, Refused, Staged, Time, Transfer, Wait,
    Waker,
    kernel::{system, system_io},
    mem::{Exposed, Loan, Offer, OneSided, Remote, Run, RxFrame},
    sync::Doorbell,
};

/// The doorbell in the epoll set: the name of no connection.
const DOORBELL: u64 = u64::MAX;
/// What `arrivals` says where receives are not counted: half of everything, so that sums do not wrap.
const ARRIVALS: u64 = u64::MAX / 2;
/// After so many looks there is a look around, at what no look sees: some 5 us where a thread spins.
const LOOK_AROUND: u32 = 16;

/// Connections of one thread over TCP.
#[derive(Debug)]
pub struct TcpPort {
    pub(super) table: Table,
    /// Where in `active` the next frame is looked for, and how many were passed since it was last said that there is none.
    turn: usize,
    passed: usize,
    /// Looks since the last look around.
    looks: u32,
    armed: bool,
    /// A poll looks around. It was armed since the last one, so what woke its owner may be a connection that no round looks at;
    /// or there were many looks.
    is_due: bool,
}

impl TcpPort {
    pub(super) fn open(config: &PortConfig) -> Result<Self, PortError> {
        config.check()?;
        let bell = Arc::new(Doorbell::new().map_err(|error| system_io("eventfd", &error))?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let data = epoll::EventData::new_u64(DOORBELL);
        epoll::add(&epoll, &*bell, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        let table = Table::new(TcpGate::new(config.clone(), bell), epoll);
        Ok(Self { table, turn: 0, passed: 0, looks: 0, armed: false, is_due: false })
    }

    /// The next slot with frames to read, once round.
    #[inline]
    fn next_open(&mut self, limit: usize) -> Option<u32> {
        while self.passed < self.table.active.len() && limit > 0 {
            let Some(&index) = self.table.active.get(self.turn) else {
                self.turn = 0;
                continue;
            };
            self.turn += 1;
            self.passed += 1;
            if self.table.look(index) {
                return Some(index);
            }
            // One that parks or ends leaves its place to the last, which is looked at in this round, too.
            if self.table.active.get(self.turn - 1) != Some(&index) {
                self.turn -= 1;
                self.passed -= 1;
            }
        }
        self.passed = 0;
        None
    }

    /// Whether a poll would find something, or has to be made soon.
    fn has_events(&mut self) -> bool {
        self.looks += 1;
        if self.looks >= LOOK_AROUND {
            self.looks = 0;
            self.is_due |= self.table.has_others();
        }
        self.is_due || !self.table.news.is_empty() || !self.table.listed.is_empty()
    }
}

impl Port for TcpPort {
    type Link = TcpLink;
    type Gate = TcpGate;
    type Direct = Self;

    fn gate(&self) -> TcpGate {
        self.table.gate.clone()
    }

    fn adopt(&mut self, link: TcpLink, now: Time) -> Result<ConnId, PortError> {
        self.table.adopt(link, now)
    }

    #[inline]
    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        let (live, counters) = self.table.open(conn).ok_or(Refused::Closed)?;
        if live.is_ending() {
            return Err(Refused::Closed);
        }
        let Some(staged) = fill(live.out.place(payload_bytes)?) else { return Ok(None) };
        if staged.payload_bytes > payload_bytes {
            return Ok(Some(live.out.committed()));
        }
        counters.frames_sent += 1;
        let (end, begins) = live.out.commit(staged.payload_bytes, staged.tag);
        if begins {
            counters.doorbells += 1;
            self.table.list(conn.index());
            self.table.unpark(conn.index());
        }
        Ok(Some(end))
    }

    #[inline]
    fn flush(&mut self) {
        if self.table.listed.is_empty() {
            return;
        }
        for index in &self.table.listed {
            if let Some(live) = &mut self.table.slots[*index as usize].live {
                live.out.flush();
            }
        }
        self.table.push(false);
    }

    #[inline]
    fn credit(&mut self, conn: ConnId) -> CreditView {
        let Some((live, _)) = self.table.open(conn) else { return CreditView::default() };
        let peer = Some(Credit { bytes: live.out.credit(), arrivals: ARRIVALS });
        CreditView { completed: live.out.completed(), peer, arrivals: ARRIVALS }
    }

    #[inline]
    fn return_credit(&mut self, conn: ConnId, credit: Credit) {
        if let Some((live, _)) = self.table.open(conn) {
            live.rx.release(credit.bytes);
            if live.rx.is_credit_due() {
                self.table.list(conn.index());
            }
        }
    }

    #[inline]
    fn release(&mut self, _conn: ConnId, frame: RxFrame) {
        drop(frame);
    }

    fn poll(&mut self, now: Time, batch: &mut Batch) {
        self.disarm();
        self.table.now = now;
        let is_late = self.table.deadline() <= now;
        if std::mem::take(&mut self.is_due) || self.table.has_more || self.table.active.is_empty() || is_late
        {
            self.table.look_around(now);
        }
        self.table.tell_old_credit(now);
        if !self.table.listed.is_empty() {
            self.table.push(true);
        }
        if !self.table.news.is_empty() {
            self.table.tell(batch);
        }
    }

    #[inline]
    fn next_run(&mut self, limit: Limit) -> Look {
        let most = match limit {
            Limit::Frames(most) => most,
            Limit::One => usize::MAX,
        };
        if let Some(index) = self.next_open(most)
            && let Some(live) = &self.table.slots[index as usize].live
        {
            return Look::Run(live.rx.run(live.id, most));
        }
        if self.has_events() { Look::Events } else { Look::Nothing }
    }

    #[inline]
    fn end_run(&mut self, run: &mut Run, _may_leave: bool) -> bool {
        // It may have been closed since.
        if let Some(slot) = self.table.slots.get_mut(run.conn().index() as usize)
            && let Some(live) = &mut slot.live
            && let Some(taken) = live.rx.end_run(run)
        {
            slot.counters.frames_received += u64::from(taken);
        }
        false
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason, _now: Time) {
        if self.table.slot(conn).is_some() {
            self.table.finish(conn.index(), reason);
        }
    }

    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let (live, _) = self.table.open(conn)?;
        let pulse = live.pulse(now);
        self.table.list(conn.index());
        pulse
    }

    fn counters(&self, conn: ConnId) -> PortCounters {
        let Some(slot) = self.table.slot(conn) else { return PortCounters::default() };
        let account = self.table.gate.shared.accounts.of(conn);
        account.map_or(slot.counters, |account| account.counted(slot.counters))
    }
}

impl Transfer for TcpPort {
    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused> {
        let memory = Arc::clone(&self.table.gate.shared.memory);
        let (live, _) = self.table.open(conn).ok_or(Refused::Closed)?;
        if live.is_ending() {
            return Err(Refused::Closed);
        }
        if live.negotiated.responder_resources.granted == 0 {
            return Err(Refused::NoReads);
        }
        let (key, len) = (loan.ticket(), loan.len() as u64);
        if !loan.is_of(&memory) || !memory.offer(key, conn, len) {
            return Err(Refused::Foreign);
        }
        Ok(Offer { address: 0, key, len })
    }

    fn pull(&mut self, conn: ConnId, offer: Offer, token: u64) -> Result<Option<Pulled>, Refused> {
        let shared = Arc::clone(&self.table.gate.shared);
        let (live, _) = self.table.open(conn).ok_or(Refused::Closed)?;
        if live.negotiated.initiator_depth.granted == 0 {
            return Err(Refused::NoReads);
        }
        let limit = shared.config.bulk_bytes_max;
        let in_words = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        if offer.len > limit {
            return Err(Refused::TooLarge { bytes: in_words(offer.len), limit: in_words(limit) });
        }
        if live.requests.is_full() {
            return Err(Refused::Full);
        }
        let account = shared.accounts.of(conn).ok_or(Refused::Closed)?;
        match shared.memory.allocate(&account, in_words(offer.len)) {
            Ok(into) => live.requests.pull(offer, token, into),
            Err(error) => return Ok(Some(Err(BulkError::Memory(LoanError::Port(error))))),
        }
        self.table.list(conn.index());
        self.table.unpark(conn.index());
        Ok(None)
    }

    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let exposures = Arc::clone(&self.table.gate.shared.exposures);
        let (live, _) = self.table.open(conn).ok_or(AccessError::Closed)?;
        if live.is_ending() {
            return Err(AccessError::Closed);
        }
        let len = exposures.show(exposed.key(), conn).ok_or(AccessError::NotExposed)?;
        Ok(Remote::new(Offer { address: 0, key: exposed.key(), len }))
    }

    fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let Some((live, _)) = self.table.open(conn) else { return Err((AccessError::Closed, op)) };
        if live.negotiated.initiator_depth.granted == 0 {
            return Err((AccessError::Off, op));
        }
        if let Err(error) = op.check(&remote, live.negotiated.atomics) {
            return Err((error, op));
        }
        if live.requests.is_full() {
            return Err((AccessError::Full, op));
        }
        live.requests.access(remote, op, token)?;
        self.table.list(conn.index());
        self.table.unpark(conn.index());
        Ok(())
    }
}

impl Wait for TcpPort {
    fn arm(&mut self) -> bool {
        self.table.push(true);
        let live = |index: &u32| self.table.slots[*index as usize].live.as_ref();
        // An event loop was told once of all that the last look at the epoll set left there.
        let has_work = self.table.has_more
            || !self.table.news.is_empty()
            || self.table.listed.iter().filter_map(live).any(|live| !live.is_blocked)
            || self.table.active.iter().filter_map(live).any(|live| live.has_come());
        if has_work {
            return false;
        }
        self.table.let_all_rest();
        (self.armed, self.is_due) = (true, true);
        self.table.watch_blocked(true);
        self.table.gate.shared.waker.arm();
        true
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.table.watch_blocked(false);
            self.table.gate.shared.waker.disarm();
        }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.table.epoll.as_fd()
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.table.gate.shared.waker)
    }

    fn deadline(&self) -> Time {
        self.table.deadline()
    }
}
