//! Bulk in the world: what is on offer, and who reads it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    config::{FaultKind, Misuse, Step},
    conn::{Inbound, Life, Side},
    path::flip,
    transfers::{LoanState, Pull},
    world::{Happening, Shared, World},
};
use gimmal_transport::{
    BulkError, LoanError, Offer, PortError, Pulled, Refused, Violation,
    mem::{Bulk, Debit, Loan, LoanHome, Release},
};

/// Tells the world that a loan was dropped.
pub(super) struct Home(pub(super) Weak<Shared>);

impl LoanHome for Home {
    fn give_back(&self, ticket: u64) {
        if let Some(shared) = self.0.upgrade() {
            shared.with(|world| world.loan_dropped(ticket));
        }
    }
}

impl World {
    pub(super) fn loan_made(&mut self, conn: u64, side: Side, debit: Debit) -> u64 {
        let ticket = self.fresh();
        self.loans.insert(
            ticket,
            LoanState { conn, at: 0, side, bytes: None, readers: 0, lent: Vec::new(), _debit: debit },
        );
        ticket
    }

    /// Counts memory for bulk of one end.
    pub(super) fn count(&self, conn: u64, side: Side, bytes: usize) -> Result<Debit, LoanError> {
        let conn = self.conns.get(&conn).ok_or(LoanError::Closed)?;
        Ok(conn.ends[side].account.take(bytes as u64)?)
    }

    pub(super) fn loan_lies_at(&mut self, ticket: u64, at: usize) {
        if let Some(loan) = self.loans.get_mut(&ticket) {
            loan.at = at;
        }
    }

    fn loan_dropped(&mut self, ticket: u64) {
        let Some(loan) = self.loans.remove(&ticket) else { return };
        let reads = loan.readers > 0 || loan.lent.iter().any(|release| !release.is_done());
        let open = self.conns.get(&loan.conn).is_some_and(|conn| conn.ends[loan.side].life == Life::Open);
        if reads && open {
            self.misuse(Misuse::LoanReused);
        }
    }

    /// Copies what is offered: it must not change from here on, so a copy is the same.
    pub(super) fn offer(&mut self, conn: u64, side: Side, loan: &Loan) -> Result<Offer, Refused> {
        let end = self.conns.get(&conn).map(|conn| &conn.ends[side]).ok_or(Refused::Closed)?;
        let negotiated = end.negotiated.as_ref().ok_or(Refused::Closed)?;
        if negotiated.responder_resources.granted == 0 {
            return Err(Refused::NoReads);
        }
        match self.loans.get_mut(&loan.ticket()) {
            Some(state) if (state.conn, state.side, state.at) == (conn, side, loan.as_ptr().addr()) => {
                state.bytes = Some(Arc::from(&**loan));
                Ok(Offer { address: 0, key: loan.ticket(), len: loan.len() as u64 })
            }
            _ => Err(Refused::Foreign),
        }
    }

    /// Starts a pull of one end, whose port is named first. Its result, if it is over.
    pub(super) fn pull(
        &mut self,
        (port, conn, side): (u64, u64, Side),
        offer: Offer,
        token: u64,
    ) -> Result<Option<Pulled>, Refused> {
        let end = self.conns.get(&conn).map(|conn| &conn.ends[side]);
        // What is over already ends no more pulls, although its port was not told yet.
        let end = end.filter(|end| end.life == Life::Open).ok_or(Refused::Closed)?;
        let negotiated = end.negotiated.as_ref().ok_or(Refused::Closed)?;
        if negotiated.initiator_depth.granted == 0 {
            return Err(Refused::NoReads);
        }
        let as_usize = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let limit = end.config.bulk_bytes_max;
        if offer.len > limit {
            return Err(Refused::TooLarge { bytes: as_usize(offer.len), limit: as_usize(limit) });
        }
        let in_place = negotiated.bulk_in_place;
        self.log("pull", &[conn, side as u64, token, offer.len]);
        if self.offered(conn, side, &offer).is_none() {
            let violation = Violation::Malformed { what: "bulk offer" };
            self.put(conn, side, Inbound::Pulled { token, result: Err(BulkError::Offer(violation)) });
            return Ok(None);
        }
        if let Err(error) = self.setup("ibv_reg_mr of a sink") {
            let result = Err(BulkError::Memory(LoanError::Port(error)));
            self.put(conn, side, Inbound::Pulled { token, result });
            return Ok(None);
        }
        if let Some(loan) = self.loans.get_mut(&offer.key) {
            loan.readers += 1;
        }
        if let Some(entry) = self.conns.get_mut(&conn) {
            entry.ends[side].pulls.push_back(Pull { token, offer, issued: 0, arrived: 0, flipped: None });
        }
        if in_place && self.is_there_at_once(conn, side) {
            self.on_in_place(conn, side);
            return Ok(self.pulled_at_once(port, conn, side, token));
        } else if in_place {
            self.come_back(conn, side, Duration::ZERO, Happening::InPlace { conn, side });
        } else {
            self.issue(conn, side);
        }
        Ok(None)
    }

    /// The result of the pull `token`, if nothing waits before it.
    fn pulled_at_once(&mut self, port: u64, conn: u64, side: Side, token: u64) -> Option<Pulled> {
        let front = self.conns.get(&conn)?.ends[side].inbox.front();
        matches!(front, Some(Inbound::Pulled { token: whose, .. }) if *whose == token).then_some(())?;
        match self.take(port, conn, side)?.1 {
            Inbound::Pulled { result, .. } => Some(result),
            _ => None,
        }
    }

    /// Bulk in place is there at once, as often as not, when no other is on its way.
    fn is_there_at_once(&mut self, conn: u64, side: Side) -> bool {
        let is_sole = self.conns.get(&conn).is_some_and(|conn| conn.ends[side].pulls.len() == 1);
        is_sole && self.hears(conn) && self.rng.below(2) == 0
    }

    /// The bytes that `offer` names, if the peer of `side` really offers them.
    fn offered(&self, conn: u64, side: Side, offer: &Offer) -> Option<Arc<[u8]>> {
        let loan = self.loans.get(&offer.key).filter(|loan| loan.conn == conn && loan.side != side)?;
        let bytes = loan.bytes.as_ref()?;
        let fits = offer.address.checked_add(offer.len).is_some_and(|end| end <= bytes.len() as u64);
        fits.then(|| Arc::clone(bytes))
    }

    /// Posts READs, in the order of the pulls, never more than granted.
    fn issue(&mut self, id: u64, side: Side) {
        loop {
            let Some(end) = self.conns.get_mut(&id).map(|conn| &mut conn.ends[side]) else { return };
            let depth = end.negotiated.as_ref().map_or(0, |negotiated| negotiated.initiator_depth.granted);
            let piece = u64::from(end.config.bulk_piece_bytes.max(1));
            let unfinished = |pull: &&mut Pull| pull.issued < pull.offer.len.max(1);
            let Some(pull) = end.pulls.iter_mut().find(unfinished) else { return };
            if end.reads_outstanding >= depth {
                return;
            }
            let bytes = piece.min(pull.offer.len - pull.issued);
            pull.issued += bytes.max(1);
            end.reads_outstanding += 1;
            let outstanding = end.reads_outstanding;
            let most = &mut self.findings.reads_outstanding_max;
            *most = (*most).max(outstanding);
            self.check_depth(id, side, outstanding);
            let extra = Duration::from_nanos(bytes.div_ceil(1024) * self.config.read_ns_per_kib);
            self.come_back(id, side, extra, Happening::Piece { conn: id, side, bytes });
        }
    }

    fn check_depth(&mut self, id: u64, side: Side, outstanding: u32) {
        let other = self.conns.get(&id).and_then(|conn| conn.ends[1 - side].negotiated.as_ref());
        if other.is_some_and(|other| outstanding > other.responder_resources.granted) {
            self.misuse(Misuse::TooManyReads { outstanding });
        }
    }

    /// A READ completed; they complete in order, so it belongs to the oldest pull.
    pub(super) fn on_piece(&mut self, id: u64, side: Side, bytes: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.pieces += 1;
        let step = Step::Bulk(conn.pieces);
        let fault = self.fault(id, step);
        if let Some(kind) = fault.filter(|kind| *kind != FaultKind::Flipped) {
            return self.strike(id, kind, side, "RDMA READ");
        }
        let flipped = fault.map(|_| self.rng.next());
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        end.reads_outstanding = end.reads_outstanding.saturating_sub(1);
        end.counters.reads += 1;
        end.counters.read_bytes += bytes;
        let Some(pull) = end.pulls.front_mut() else { return };
        pull.arrived += bytes;
        pull.flipped = pull.flipped.or(flipped);
        if pull.arrived >= pull.offer.len {
            self.finish(id, side);
        }
        self.issue(id, side);
    }

    fn finish(&mut self, id: u64, side: Side) {
        let Some(pull) = self.conns.get_mut(&id).and_then(|conn| conn.ends[side].pulls.pop_front()) else {
            return;
        };
        let result = self.fetch(id, side, &pull, false).map(Bulk::own);
        self.forget_reader(&pull);
        self.put(id, side, Inbound::Pulled { token: pull.token, result });
    }

    pub(super) fn on_in_place(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.pieces += 1;
        let step = Step::Bulk(conn.pieces);
        let fault = self.fault(id, step);
        if let Some(kind) = fault.filter(|kind| *kind != FaultKind::Flipped) {
            return self.strike(id, kind, side, "bulk");
        }
        let flipped = fault.map(|_| self.rng.next());
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        let Some(mut pull) = end.pulls.pop_front() else { return };
        pull.flipped = flipped;
        end.counters.in_place_bytes += pull.offer.len;
        let waker = end.port.and_then(|port| self.ports.get(&port)).map(|port| Arc::clone(&port.waker));
        let result = self.fetch(id, side, &pull, true);
        self.forget_reader(&pull);
        let Some(waker) = waker else { return };
        let release = Release::new(waker);
        if let Some(state) = self.loans.get_mut(&pull.offer.key) {
            state.lent.retain(|release| !release.is_done());
            state.lent.push(Arc::clone(&release));
        }
        let result = result.map(|loan| Bulk::held(loan, release));
        self.put(id, side, Inbound::Pulled { token: pull.token, result });
    }

    fn fetch(&self, id: u64, side: Side, pull: &Pull, in_place: bool) -> Result<Loan, BulkError> {
        let broken = BulkError::Offer(Violation::Malformed { what: "bulk offer" });
        let bytes = self.offered(id, side, &pull.offer).ok_or_else(|| broken.clone())?;
        let place = |value: u64| usize::try_from(value).map_err(|_| broken.clone());
        let (start, len) = (place(pull.offer.address)?, place(pull.offer.len)?);
        // In place it is the peer's memory.
        let home = Arc::new(self.count(id, side, if in_place { 0 } else { len })?);
        let mut loan = Loan::anonymous_from(len, 0, home).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            BulkError::Memory(LoanError::Port(PortError::System { step: "mmap", errno }))
        })?;
        loan.copy_from_slice(&bytes[start..start + len]);
        if let Some(random) = pull.flipped {
            flip(&mut loan, random);
        }
        Ok(loan)
    }

    pub(super) fn forget_reader(&mut self, pull: &Pull) {
        if let Some(loan) = self.loans.get_mut(&pull.offer.key) {
            loan.readers = loan.readers.saturating_sub(1);
        }
    }
}
