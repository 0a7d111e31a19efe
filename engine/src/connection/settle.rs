//! What a turn still owes a connection before it ends: credit, control frames, word of room.

use gimmal_transport::{Chain, CloseReason, ConnId, Port, Time, Violation};

use super::Connection;
use crate::proto::{
    Lane,
    bulk::LOANS_MAX,
    ledger::Owed,
    wire::{self, Kind},
};

/// Control frames that may wait for room, at most: an answer for each of the loans that a peer can have on offer, and a few.
/// A peer that makes us owe more reads none of them, and would fill our memory.
const CONTROL_MAX: usize = LOANS_MAX + 64;

/// What a turn still has to do for a connection after it was settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settled {
    /// It wants to be settled again next turn.
    pub(crate) again: bool,
    /// The user was refused before and there is room now.
    pub(crate) writable: bool,
}

impl Connection {
    /// Before the flush of a turn: returns credit, sends control frames, finds out whether there is room again.
    #[inline]
    pub(crate) fn settle<P: Port>(&mut self, port: &mut P, conn: ConnId, now: Time, turn: u64) -> Settled {
        self.begin(turn);
        if !self.holds.is_empty() {
            self.holds.settle(&mut self.ledger, port, conn);
        }
        let told = self.settle_credit(port, conn) && !self.holds.is_waited_for();
        // Messages came and went, nothing else: between them and the flush there is no time to lose.
        if told
            && self.control.is_empty()
            && self.blocked_bytes.is_none()
            && self.in_place.is_empty()
            && self.close_at == Time::NEVER
        {
            return Settled::default();
        }
        self.settle_rest(port, conn, now, told)
    }

    fn settle_rest<P: Port>(&mut self, port: &mut P, conn: ConnId, now: Time, told: bool) -> Settled {
        if now >= self.close_at {
            port.close(conn, self.ending().unwrap_or(CloseReason::Local), now);
            self.close_at = Time::NEVER;
            return Settled::default();
        }
        let Self { in_place, control, .. } = self;
        in_place.take_released(|loan_id| control.push_back((Kind::BulkDone, loan_id.bits().into())));
        if self.owes_goodbye && self.pulls.is_empty() {
            self.owes_goodbye = false;
            self.control.push_back((Kind::GoodbyeAck, 0));
        }
        while let Some(&(kind, value)) = self.control.front() {
            if !self.send_control(port, conn, kind, value, 0) {
                break;
            }
            self.control.pop_front();
        }
        if self.control.len() > CONTROL_MAX {
            port.close(conn, Violation::Malformed { what: "number of bulk offers" }.into(), now);
            self.control.clear();
        }
        let writable = self.settle_blocked(port, conn, now);
        let again =
            !told || !self.control.is_empty() || self.blocked_bytes.is_some() || !self.in_place.is_empty();
        Settled { again: again || self.close_at != Time::NEVER, writable }
    }

    /// Returns whether nothing urgent is left untold.
    #[inline]
    fn settle_credit<P: Port>(&mut self, port: &mut P, conn: ConnId) -> bool {
        if self.ledger.counts_arrivals() {
            self.ledger.handle_posted(port.credit(conn).arrivals);
        }
        let owed = self.ledger.owed();
        let told = owed == Owed::Little || self.settle_owed(port, conn, owed);
        told && !self.ledger.is_fresh()
    }

    fn settle_owed<P: Port>(&mut self, port: &mut P, conn: ConnId, owed: Owed) -> bool {
        if self.negotiated.credit_words {
            let credit = self.ledger.credit();
            self.ledger.handle_told(credit);
            port.return_credit(conn, credit);
            return true;
        }
        let riding = owed == Owed::Ride
            && self.window.chain(wire::CONTROL_BYTES + self.check.trailer()) == Chain::Extend;
        if owed < Owed::Now && !riding {
            return true;
        }
        if self.admit(port, conn, wire::CONTROL_BYTES, Lane::Control).is_err() {
            return riding;
        }
        let credit = self.ledger.credit();
        // The peer has a place for it, and our own send queue may be full all the same.
        let is_sent = self.send_control(port, conn, Kind::Credit, credit.bytes.0, credit.arrivals);
        if is_sent {
            self.ledger.handle_told(credit);
        }
        is_sent
    }

    fn settle_blocked<P: Port>(&mut self, port: &mut P, conn: ConnId, now: Time) -> bool {
        let Some(wanted) = self.blocked_bytes else {
            return false;
        };
        if let Err(violation) = self.refresh(port, conn) {
            port.close(conn, violation.into(), now);
            self.blocked_bytes = None;
            return false;
        }
        let writable = self.window.room(wanted, Lane::Data).is_some();
        if writable {
            self.blocked_bytes = None;
        }
        writable
    }

    fn send_control<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        kind: Kind,
        first: u64,
        second: u64,
    ) -> bool {
        if self.admit(port, conn, wire::CONTROL_BYTES, Lane::Control).is_err() {
            return false;
        }
        let sent = self.compose(port, conn, wire::CONTROL_BYTES, kind.tag(), |payload| {
            payload.copy_from_slice(&wire::control(first, second));
            Some(wire::CONTROL_BYTES)
        });
        sent.is_ok()
    }
}
