//! One connection: the pure parts of [`proto`](crate::proto), joined to a port.

mod send;
mod settle;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use gimmal_transport::{
    Bulk, BulkError, CloseReason, Lent, Negotiated, Port, Position, RxBuf, Time, Violation,
};

use crate::{
    config::Config,
    holds::Holds,
    proto::{
        Check, Heart, RxLedger, State, StateEvent, TxWindow,
        bulk::{InPlace, LoanId, Loans, Pull, Pulls},
        check,
        wire::{self, Kind},
    },
    worker::Duty,
};

/// From our goodbye to closing without an answer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// The engine's half of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    negotiated: Arc<Negotiated>,
    window: TxWindow,
    pub(crate) check: Check,
    /// The turn in which it was used last.
    seen_in: u64,
    pub(crate) ledger: RxLedger,
    pub(crate) loans: Loans,
    pub(crate) pulls: Pulls,
    in_place: InPlace,
    pub(crate) holds: Holds,
    state: State,
    pub(crate) heart: Heart,
    /// Counts it while it is open.
    pub(crate) count: Option<Arc<()>>,
    /// Control frames that wait for room.
    control: VecDeque<(Kind, u64)>,
    blocked_bytes: Option<usize>,
    /// The peer's goodbye was heard, and is answered when all that the peer offered before is here.
    owes_goodbye: bool,
    close_at: Time,
}

impl Connection {
    /// One that has just opened; its positions begin at `first`.
    pub(crate) fn new(
        negotiated: Arc<Negotiated>,
        first: Position,
        config: &Config,
        duty: &Arc<Duty>,
        now: Time,
    ) -> Self {
        Self {
            heart: Heart::new(now, negotiated.peer_attended),
            window: TxWindow::new(&negotiated, config.enforce_credit).beginning_at(first),
            check: Check::new(&negotiated),
            seen_in: 0,
            ledger: RxLedger::new(&negotiated, config.hold_percent).beginning_at(first),
            negotiated,
            loans: Loans::default(),
            pulls: Pulls::default(),
            in_place: InPlace::default(),
            holds: Holds::new(Arc::clone(duty)),
            state: State::Open,
            count: None,
            control: VecDeque::with_capacity(8),
            blocked_bytes: None,
            owes_goodbye: false,
            close_at: Time::NEVER,
        }
    }

    pub(crate) fn negotiated(&self) -> &Arc<Negotiated> {
        &self.negotiated
    }

    pub(crate) fn body_bytes_max(&self) -> usize {
        self.payload_bytes_max() - wire::HEAD_BYTES
    }

    /// The largest body of a message with a loan.
    pub(crate) fn body_bytes_max_with_loan(&self) -> usize {
        self.body_bytes_max().saturating_sub(wire::BULK_BYTES)
    }

    /// The peer is done with a loan: what was refused for want of an id is told that there is one.
    #[inline]
    pub(crate) fn loan_came_back(&mut self) {
        if self.loans.poll_wanted() {
            self.blocked_bytes.get_or_insert(0);
        }
    }

    /// What fits in a frame beside its sum.
    fn payload_bytes_max(&self) -> usize {
        self.window.payload_bytes_max() - self.check.trailer()
    }

    pub(crate) const fn state(&self) -> State {
        self.state
    }

    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
        if !state.may_send() {
            self.window.shut();
        }
    }

    /// Begins turn number `turn`. Frames committed earlier were flushed, so the next one begins a chain. Receives
    /// of earlier frames are posted again.
    #[inline]
    pub(crate) fn begin(&mut self, turn: u64) {
        if self.seen_in != turn {
            self.seen_in = turn;
            self.window.flushed();
            self.ledger.begin_turn();
        }
    }

    /// What was committed has left before its turn ended: the next frame begins a chain.
    #[inline]
    pub(crate) fn left(&mut self) {
        self.window.flushed();
    }

    /// Counts the receive of a run that was read in turn number `turn`.
    #[inline]
    pub(crate) fn count_receive(&mut self, turn: u64) {
        if self.ledger.counts_arrivals() {
            self.begin(turn);
            self.ledger.handle_receive();
        }
    }

    /// A run that ends at `end`, where there are positions, was read. Whether credit may be owed.
    #[inline]
    pub(crate) fn read(&mut self, end: Option<Position>) -> Result<bool, Violation> {
        match end {
            Some(end) => self.ledger.handle_run(end)?,
            None => self.ledger.handle_life(),
        }
        Ok(self.ledger.may_owe())
    }

    /// Keeps `body`, the end of a frame that is lent.
    #[cold]
    pub(crate) fn hold<P: Port>(&mut self, port: &mut P, frame: Lent<'_>, body: &[u8]) -> RxBuf {
        // What is kept is a frame's end, and there the sum lies. What is wrong with its place is said when the run is over.
        if self.check.is_sealed() || self.ledger.handle_run(frame.end()).is_err() {
            return RxBuf::copied(body);
        }
        let conn = frame.conn();
        let Some(frame) = frame.keep() else { return RxBuf::copied(body) };
        let held = self.holds.hold(&mut self.ledger, port, conn, &frame, body.len());
        if frame.is_held() {
            self.holds.keep(frame);
        } else {
            port.release(conn, frame);
        }
        held
    }

    /// The peer's loan is not needed any more.
    pub(crate) fn bulk_done(&mut self, loan_id: LoanId) {
        self.control.push_back((Kind::BulkDone, loan_id.bits().into()));
    }

    /// What a pull brought, if it is what its sender summed up.
    pub(crate) fn checked(&self, pull: &Pull, result: Result<Bulk, BulkError>) -> Result<Bulk, BulkError> {
        match result {
            Ok(bulk) if self.check.is_sealed() && check::bulk_sum(&bulk) != pull.sum => {
                Err(BulkError::Offer(Violation::Checksum { what: "bulk" }))
            }
            other => other,
        }
    }

    /// A pull ended: in-place bytes are watched until the user drops them, others are answered for at once.
    pub(crate) fn pulled(&mut self, loan_id: LoanId, release: Option<Arc<gimmal_transport::mem::Release>>) {
        match release {
            Some(release) => self.in_place.watch(loan_id, &release),
            None => self.bulk_done(loan_id),
        }
    }

    /// Receives that an idle connection has beyond its guarantee are the peer's again. Whether it has to be told.
    pub(crate) fn give_up_unused(&mut self) -> bool {
        let unused = self.window.poll_unused();
        if let Some(unused) = unused {
            self.control.push_back((Kind::Unused, unused));
        }
        unused.is_some()
    }

    /// Asks the peer for a sign of life.
    pub(crate) fn ping(&mut self, now: Time) {
        self.control.push_back((Kind::Ping, now.0));
    }

    pub(crate) fn pong(&mut self, token: u64) {
        // One answer that waits is enough, the newest.
        match self.control.back_mut() {
            Some((Kind::Pong, waiting)) => *waiting = token,
            _ => self.control.push_back((Kind::Pong, token)),
        }
    }

    pub(crate) fn handle_credit(&mut self, credit: gimmal_transport::Credit) -> Result<(), Violation> {
        self.window.handle_credit(credit)
    }

    pub(crate) fn say_goodbye(&mut self, now: Time) {
        if self.state == State::Open {
            self.set_state(State::Draining);
            self.control.push_back((Kind::Goodbye, 0));
            self.close_at = now.plus(DRAIN_TIMEOUT);
        }
    }

    pub(crate) fn hear_goodbye(&mut self, now: Time) -> Result<(), Violation> {
        let violation = Violation::Malformed { what: "second goodbye" };
        self.set_state(self.state.on(StateEvent::GoodbyeHeard).ok_or(violation)?);
        self.owes_goodbye = true;
        self.close_at = self.close_at.min(now.plus(DRAIN_TIMEOUT));
        Ok(())
    }

    /// Why it ends, if a goodbye was said or heard.
    pub(crate) const fn ending(&self) -> Option<CloseReason> {
        match self.state {
            State::Opening | State::Open => None,
            State::Leaving => Some(CloseReason::Peer),
            State::Draining | State::Closed => Some(CloseReason::Local),
        }
    }

    /// The first cause as the user should see it, given what the port saw.
    pub(crate) fn cause(&self, seen: CloseReason) -> CloseReason {
        match (self.state, &seen) {
            (State::Leaving, _) => CloseReason::Peer,
            // Closed before its port said so: the goodbye was answered, and the peer was quicker to disconnect.
            (State::Draining | State::Closed, CloseReason::PeerGone { .. }) => CloseReason::Local,
            _ => seen,
        }
    }
}
