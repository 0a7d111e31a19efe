//! One connection: the pure parts of [`proto`](crate::proto), joined to a port.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use gimmal_transport::{
    Bulk, BulkError, Chain, CloseReason, ConnId, Negotiated, Port, Position, Refused, RxBuf, Staged, Tag,
    Time, Violation,
};

use crate::{
    config::Config,
    error::SendError,
    holds::Holds,
    message::Source,
    planted::{self, Bug},
    proto::{
        Check, Heart, Lane, RxLedger, State, StateEvent, TxWindow,
        bulk::{InPlace, Loans, Pull, Pulls},
        check,
        ledger::Owed,
        wire::{self, Kind},
    },
    worker::Duty,
};

/// From our goodbye to closing without an answer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Control frames that may wait for room, at most: an answer for each of the 65,536 loans that a peer can have on offer,
/// and a few. Who makes us owe more reads none of them, and would fill our memory.
const CONTROL_MAX: usize = (1 << 16) + 64;

/// What a turn still has to do for a connection after it was settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settled {
    /// It wants to be settled again next turn.
    pub(crate) again: bool,
    /// The user was refused before and there is room now.
    pub(crate) writable: bool,
}

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
    close_at: Time,
}

/// What goes along when a connection at rest goes to another worker.
#[derive(Debug)]
pub(crate) struct Packed {
    negotiated: Arc<Negotiated>,
    window: TxWindow,
    check: Check,
    ledger: RxLedger,
    loans: Loans,
    count: Option<Arc<()>>,
}

impl Packed {
    /// The connection on its new worker.
    pub(crate) fn unpack(self, config: &Config, duty: &Arc<Duty>, now: Time) -> Connection {
        let Self { negotiated, window, check, ledger, loans, count } = self;
        let new = Connection::new(negotiated, Position::default(), config, duty, now);
        let new = Connection { window, check, loans, count, ..new };
        if planted::is(Bug::LedgerLeftBehind) { new } else { Connection { ledger, ..new } }
    }
}

impl Connection {
    /// Whether nothing is under way on it but frames.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state == State::Open
            && self.loans.is_empty()
            && self.pulls.is_empty()
            && self.in_place.is_empty()
            && self.holds.is_empty()
            && self.control.is_empty()
            && self.blocked_bytes.is_none()
    }

    /// What goes along of one at rest.
    pub(crate) fn pack(self) -> Packed {
        let Self { negotiated, window, check, ledger, loans, count, .. } = self;
        Packed { negotiated, window, check, ledger, loans, count }
    }

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
            control: VecDeque::with_capacity(16),
            blocked_bytes: None,
            close_at: Time::NEVER,
        }
    }

    pub(crate) fn negotiated(&self) -> &Arc<Negotiated> {
        &self.negotiated
    }

    pub(crate) fn body_bytes_max(&self) -> usize {
        self.payload_bytes_max() - wire::HEAD_BYTES
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

    /// Whether a message with `min_bytes` of payload goes the short way.
    #[inline]
    pub(crate) fn is_open(&self, min_bytes: usize) -> bool {
        self.window.is_open() && min_bytes <= self.window.payload_bytes_max()
    }

    /// The same where receives are counted.
    pub(crate) fn has_receives(&self, min_bytes: usize) -> bool {
        self.window.has_receives() && min_bytes <= self.window.payload_bytes_max()
    }

    /// Sends a message that `fill` composes, the short way where receives are not counted; as [`Connection::compose`] otherwise.
    #[inline]
    pub(crate) fn send_open<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        let room = self.window.payload_bytes_max();
        let end = port.compose(conn, room, |payload| {
            let payload_bytes = fill(&mut payload[..room])?;
            Some(Staged { payload_bytes, tag, chain: Chain::Begin })
        });
        match end {
            Ok(Some(end)) => {
                self.window.advanced(end);
                Ok(())
            }
            Ok(None) => Err(self.too_small(room - wire::HEAD_BYTES)),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// The same in turn number `turn`, where chains cost receives.
    #[inline]
    pub(crate) fn send_counted<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        turn: u64,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        self.begin(turn);
        let room = self.window.payload_bytes_max();
        if self.compose(port, conn, room, tag, fill)? {
            Ok(())
        } else {
            Err(self.too_small(room - wire::HEAD_BYTES))
        }
    }

    /// Room for a frame of at least `min_bytes` of payload, after one look at what was given back since.
    #[inline]
    pub(crate) fn admit<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        min_bytes: usize,
        lane: Lane,
    ) -> Result<usize, SendError> {
        if lane == Lane::Data && !self.state.may_send() {
            return Err(SendError::Closed);
        }
        let limit = self.window.payload_bytes_max();
        if self.window.is_open() && min_bytes <= limit {
            return Ok(limit);
        }
        self.admit_closely(port, conn, min_bytes, lane)
    }

    fn admit_closely<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        min_bytes: usize,
        lane: Lane,
    ) -> Result<usize, SendError> {
        let (limit, trailer) = (self.payload_bytes_max(), self.check.trailer());
        if min_bytes > limit {
            return Err(SendError::TooLarge {
                bytes: min_bytes - wire::HEAD_BYTES,
                limit: limit - wire::HEAD_BYTES,
            });
        }
        // A full frame fits: nothing to ask. Less may only be what was known last, so look before offering it.
        match self.window.room(min_bytes + trailer, lane) {
            Some(room) if room - trailer >= limit || lane == Lane::Control => Ok(room - trailer),
            _ => self.admit_late(port, conn, min_bytes, lane),
        }
    }

    #[cold]
    fn admit_late<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        min_bytes: usize,
        lane: Lane,
    ) -> Result<usize, SendError> {
        let trailer = self.check.trailer();
        if self.refresh(port, conn).is_ok()
            && let Some(room) = self.window.room(min_bytes + trailer, lane)
        {
            return Ok(room - trailer);
        }
        if lane == Lane::Data {
            self.blocked_bytes = Some(min_bytes + trailer);
        }
        Err(SendError::Blocked)
    }

    fn refresh<P: Port>(&mut self, port: &mut P, conn: ConnId) -> Result<(), Violation> {
        self.window.handle_completed(port.completed(conn));
        match port.peer_credit(conn) {
            Some(credit) => self.window.handle_credit(credit),
            None => Ok(()),
        }
    }

    /// The user needed more than the `offered` body bytes.
    pub(crate) fn too_small(&mut self, offered: usize) -> SendError {
        let limit = self.body_bytes_max();
        if offered >= limit {
            return SendError::TooLarge { bytes: offered + 1, limit };
        }
        let wanted = offered + wire::HEAD_BYTES + 1 + self.check.trailer();
        self.blocked_bytes = Some(wanted.min(self.window.payload_bytes_max()));
        SendError::Blocked
    }

    pub(crate) fn refused(&mut self, refused: Refused) -> SendError {
        match refused {
            Refused::TooLarge { bytes, limit } => SendError::TooLarge { bytes, limit },
            Refused::NoReads => SendError::NoBulk,
            Refused::Closed => SendError::Closed,
            Refused::Full => {
                self.blocked_bytes.get_or_insert(0);
                SendError::Blocked
            }
        }
    }

    /// Sends a frame that `fill` composes in `room` bytes, which were admitted, and says the length of. `false` when it
    /// did not want to after all.
    #[inline]
    pub(crate) fn compose<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        room: usize,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<bool, SendError> {
        let Self { window, check, .. } = self;
        let trailer = check.trailer();
        let end = port.compose(conn, room + trailer, |payload| {
            let payload_bytes = fill(&mut payload[..room])? + trailer;
            let tag = check.stamp(tag, payload, payload_bytes);
            Some(Staged { payload_bytes, tag, chain: window.chain(payload_bytes) })
        });
        match end {
            Ok(Some(end)) => {
                window.committed(end);
                check.committed();
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// What was committed before turn number `turn` has been flushed: the next frame begins a chain. And the receives of
    /// what came before have been posted again.
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
        if planted::is(Bug::LeftAnswerGrows) {
            return;
        }
        self.window.flushed();
    }

    /// A frame that ends at `end` arrived in turn number `turn`. Whether credit may be owed.
    #[inline]
    pub(crate) fn arrived(&mut self, tag: Tag, end: Position, turn: u64) -> Result<bool, Violation> {
        self.begin(turn);
        self.check.arrived(tag)?;
        self.ledger.handle_arrival(end)?;
        Ok(self.ledger.may_owe())
    }

    /// A run that ends at `end` was read in turn number `turn`. Whether credit may be owed.
    #[inline]
    pub(crate) fn read(&mut self, end: Position, turn: u64) -> Result<bool, Violation> {
        if self.ledger.counts_arrivals() {
            self.begin(turn);
            if !planted::is(Bug::RunNotCounted) {
                self.ledger.handle_receive();
            }
        }
        self.ledger.handle_run(end)?;
        Ok(self.ledger.may_owe())
    }

    /// Keeps `body`, the end of a frame that has just arrived.
    #[cold]
    pub(crate) fn hold<P: Port>(&mut self, port: &mut P, source: Source<'_>, body: &[u8]) -> RxBuf {
        match source {
            // What is kept is a frame's end, and there the sum lies.
            _ if self.check.is_sealed() => RxBuf::copied(body),
            Source::Frame(conn, frame) => self.holds.hold(&mut self.ledger, port, conn, frame, body.len()),
            // What is wrong with its end is said when the run is over.
            Source::Run(_, lent) if self.ledger.handle_run(lent.end()).is_err() => RxBuf::copied(body),
            Source::Run(conn, lent) => {
                let Some(frame) = lent.keep() else { return RxBuf::copied(body) };
                let held = self.holds.hold(&mut self.ledger, port, conn, &frame, body.len());
                if frame.is_held() {
                    self.holds.keep(frame);
                } else {
                    port.release(conn, frame);
                }
                held
            }
        }
    }

    /// The peer's loan is not needed any more.
    pub(crate) fn bulk_done(&mut self, loan_id: u32) {
        if !planted::is(Bug::LoanNotFreed) {
            self.control.push_back((Kind::BulkDone, loan_id.into()));
        }
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
    pub(crate) fn pulled(&mut self, loan_id: u32, release: Option<Arc<gimmal_transport::mem::Release>>) {
        match release {
            Some(release) => self.in_place.watch(loan_id, release),
            None => self.bulk_done(loan_id),
        }
    }

    /// Asks the peer for a sign of life.
    pub(crate) fn ping(&mut self, now: Time) {
        self.control.push_back((Kind::Ping, now.0));
    }

    pub(crate) fn pong(&mut self, token: u64) {
        if planted::is(Bug::PingUnanswered) {
            return;
        }
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
            self.close_at = if planted::is(Bug::AbruptGoodbye) { now } else { now.plus(DRAIN_TIMEOUT) };
        }
    }

    pub(crate) fn hear_goodbye(&mut self, now: Time) -> Result<(), Violation> {
        let violation = Violation::Malformed { what: "second goodbye" };
        self.set_state(self.state.on(StateEvent::GoodbyeHeard).ok_or(violation)?);
        if !planted::is(Bug::GoodbyeUnanswered) {
            self.control.push_back((Kind::GoodbyeAck, 0));
        }
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
        while let Some(loan_id) = self.in_place.poll_released() {
            self.bulk_done(loan_id);
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
            self.ledger.handle_posted(port.arrivals(conn));
        }
        let owed = self.ledger.owed();
        let told = owed == Owed::Little || self.settle_owed(port, conn, owed);
        told && !self.ledger.is_fresh()
    }

    fn settle_owed<P: Port>(&mut self, port: &mut P, conn: ConnId, owed: Owed) -> bool {
        if self.negotiated.credit_words {
            port.return_credit(conn, self.ledger.poll_credit());
            return true;
        }
        let riding = owed == Owed::Ride
            && self.window.chain(wire::CONTROL_BYTES + self.check.trailer()) == Chain::Extend;
        if (owed < Owed::Now || planted::is(Bug::CreditOnlyRides)) && !riding {
            return true;
        }
        if self.admit(port, conn, wire::CONTROL_BYTES, Lane::Control).is_err() {
            return riding;
        }
        let credit = self.ledger.poll_credit();
        self.send_control(port, conn, Kind::Credit, credit.bytes.0, credit.arrivals)
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
        let writable = self.window.room(wanted, Lane::Data).is_some() && !planted::is(Bug::RoomNotTold);
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
