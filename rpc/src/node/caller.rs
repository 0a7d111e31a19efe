//! The caller's role: requests leave, answers come back, calls end.

use std::{cell::Cell, time::Duration};

use gimmal_engine::{
    Head, Io, Message, RemoteBulk, SendError,
    transport::{Bulk, BulkError, CloseReason, ConnId, Loan, Port, Time, Violation},
};

use super::{
    Conn, Node,
    answers::status_of,
    request::{Fresh, Source, Unsent, send_request},
};
use crate::{
    batch::Items,
    calls::{CallKey, Calls, Reply, State},
    cell::CallCell,
    codec::EncodeError,
    copied,
    error::{CallError, TransportError},
    frame::{self, BARE_RESPONSE, Flags, Kind, REQUEST_BYTES, RequestHead, ResponseHead},
    id::CallId,
    metadata,
    method::Method,
    response::{Failure, Response},
    status::{Code, Fate, Status},
    stream::Lanes,
    timeout::Timeout,
};

/// Whether nothing but its arguments goes with a request.
fn is_plain(loan: Option<&Loan>, streams: bool) -> bool {
    !streams && loan.is_none_or(|loan| loan.is_empty())
}

/// The largest arguments of a message, with `loan` beside it if there is one.
fn arguments_max<P: Port>(io: &Io<'_, P>, conn: ConnId, loan: Option<&Loan>) -> usize {
    let has_loan = loan.is_some_and(|loan| !loan.is_empty());
    let body = if has_loan { io.body_bytes_max_with_loan(conn) } else { io.body_bytes_max(conn) };
    body.saturating_sub(REQUEST_BYTES)
}

/// An answer that is nothing but bytes: whose, and they.
#[inline(always)]
fn plain_answer<'a>(message: &Message<'a>) -> Option<(CallId, &'a [u8])> {
    let is_plain = message.head.kind == BARE_RESPONSE && message.bulk.is_none();
    is_plain.then_some((CallId::from_aux(message.head.aux), message.body))
}

fn left(deadline: Time, now: Time) -> Option<Duration> {
    (deadline != Time::NEVER).then(|| deadline.since(now))
}

/// Of a call of `method`, which the server spells as `bytes` say.
fn mismatch(method: Option<&'static Method>, bytes: &[u8]) -> Failure {
    let unknown = TransportError::Worker { why: "a call of no method", fate: Fate::NotRun };
    method.map_or(CallError::Transport(unknown), |method| CallError::Mismatch {
        method: method.to_string(),
        ours: method.spelled(),
        theirs: String::from_utf8_lossy(bytes).into_owned(),
    })
}

impl Node {
    /// As [`Node::begin`].
    #[expect(clippy::too_many_arguments, reason = "a call's parts, each needed once")]
    #[inline]
    pub(crate) fn start<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        method: &'static Method,
        timeout: Option<Duration>,
        source: impl Source,
        (mut loan, lanes): (Option<Loan>, Option<Box<Lanes>>),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        self.begin(io, conn, method, timeout.into(), source, (&mut loan, lanes), reply)
    }

    /// Starts a call. Whatever happens to it, `reply` hears exactly once; a local one is found under the key. The loan is
    /// taken from where it is: where there is none, as for most calls, nothing is moved for it.
    #[expect(clippy::too_many_arguments, reason = "a call's parts, each needed once")]
    #[inline(always)]
    pub(crate) fn begin<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        method: &'static Method,
        timeout: Timeout,
        source: impl Source,
        (loan, lanes): (&mut Option<Loan>, Option<Box<Lanes>>),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        self.counters.calls.increment();
        let now = io.now();
        self.look(now);
        let deadline = timeout.after(now);
        // The worker's own thread did not read the clock for this: see `looked`.
        let is_local = reply.is_taken();
        self.stale |= is_local;
        let times = (if is_local { now } else { Time::NEVER }, deadline);
        let Some(here) = self.conns.get_mut(conn) else { return self.start_nowhere(conn, reply) };
        self.alone = here.calls.is_empty();
        if !here.calls.is_queued()
            && let Some(id) = here.calls.next_wire()
        {
            let window = lanes.as_ref().map_or(0, |lanes| lanes.window());
            let head = RequestHead::new(method, timeout.us(), window).words();
            let id = if method.is_oneway { CallId::NONE } else { id };
            let flags = if method.is_oneway { Flags::ONE_WAY } else { source.flags() };
            match send_request(io, conn, id, (flags, head), &mut here.said, loan, &source) {
                Ok(()) => {
                    copied::count(source.written(), &self.counters.copied_requests);
                    if method.is_oneway {
                        return Ok(self.told_peer(conn, method, reply));
                    }
                    self.counters.posted.increment();
                    self.calls_live += 1;
                    self.next_deadline = self.next_deadline.min(deadline);
                    let (key, call) = here.calls.insert(id, method, times);
                    if is_local {
                        call.reply_by(reply);
                    } else {
                        call.tell(key, reply);
                    }
                    source.left(&mut call.body);
                    if lanes.is_some() {
                        call.lanes = lanes;
                        here.streams_seen = true;
                        self.bind_call(io, conn, key);
                    }
                    return Ok(key);
                }
                Err(Unsent::Never(error)) => return self.refuse(reply, error),
                Err(Unsent::TooLarge(limit)) => {
                    let plain = is_plain(loan.as_ref(), lanes.is_some());
                    return self.start_large(
                        io,
                        conn,
                        method,
                        timeout.duration(),
                        &source,
                        (plain, limit),
                        reply,
                    );
                }
                Err(Unsent::Blocked) => {}
            }
        }
        self.start_later(io, conn, method, times, source, (loan.take(), lanes), reply)
    }

    /// There is no such connection any more.
    #[cold]
    fn start_nowhere(&self, conn: ConnId, reply: Reply) -> Result<CallKey, Box<TransportError>> {
        let reason = self.closing(conn);
        self.refuse(reply, TransportError::Closed { reason, fate: Fate::NotRun })
    }

    /// Keeps a call until there is room for it.
    #[expect(clippy::too_many_arguments, reason = "a call's parts, each needed once")]
    #[cold]
    fn start_later<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        method: &'static Method,
        times: (Time, Time),
        mut source: impl Source,
        loan: (Option<Loan>, Option<Box<Lanes>>),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        let limit = arguments_max(io, conn, loan.0.as_ref());
        let (streams, flags) = (loan.1.is_some(), source.flags());
        let plain = is_plain(loan.0.as_ref(), streams);
        let here = self.conns.get_mut(conn).filter(|here| here.calls.may_wait());
        let Some(Conn { calls, streams_seen, .. }) = here else {
            let waiting = self.limits.waiting_max;
            return self.refuse(reply, TransportError::Full { waiting });
        };
        match calls.insert_waiting(method, times, loan, reply, |body| source.keep(body, limit)) {
            Err((EncodeError::Full, reply)) => {
                let timeout = left(times.1, io.now());
                self.start_large(io, conn, method, timeout, &source, (plain, limit), reply)
            }
            Err((error, reply)) => self.refuse(reply, TransportError::Encode(error)),
            Ok(key) => {
                calls.call(key.index()).flags = flags;
                self.calls_live += 1;
                self.next_deadline = self.next_deadline.min(times.1);
                *streams_seen |= streams;
                if streams {
                    self.bind_call(io, conn, key);
                }
                Ok(key)
            }
        }
    }

    #[cold]
    pub(super) fn refuse(&self, reply: Reply, error: TransportError) -> Result<CallKey, Box<TransportError>> {
        self.counters.failed.increment();
        if let Reply::Cell(responder) = reply {
            responder.complete(error.clone().into());
        }
        Err(Box::new(error))
    }

    /// Cancels that are owed, then requests that wait, as far as window and credit go.
    pub(super) fn send_requests<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        while let Some(id) = here.calls.first_cancel() {
            let head = Head { kind: Kind::Cancel.with(Flags::NONE), aux: id.aux() };
            match io.send(conn, head, 0, |_| Some(0)) {
                Ok(()) => here.calls.cancel_left(),
                Err(_) => return,
            }
        }
        if !self.send_pulls(io, conn) {
            return;
        }
        let Some(here) = self.conns.get_mut(conn) else { return };
        let mut streams = Vec::new();
        while let Some(id) = here.calls.next_wire()
            && let Some(call) = here.calls.first_waiting()
            && let Some(method) = call.method
        {
            let (body, now) = (std::mem::take(&mut call.body), io.now());
            let window = call.lanes.as_ref().map_or(0, |lanes| lanes.window());
            let head = RequestHead::new(method, frame::deadline_us(call.deadline, now), window).words();
            let id = if method.is_oneway { CallId::NONE } else { id };
            let flags = if method.is_oneway { Flags::ONE_WAY } else { call.flags };
            let source = Fresh::new(&body[..]);
            let sent = send_request(io, conn, id, (flags, head), &mut here.said, &mut call.loan, &source);
            if sent.is_ok() {
                copied::count(&body, &self.counters.copied_requests);
            }
            call.body = body;
            match sent {
                Ok(()) if method.is_oneway => {
                    self.counters.told.increment();
                    self.calls_live -= 1;
                    here.calls.fail_first(Response::nothing());
                }
                Ok(()) => {
                    self.counters.posted.increment();
                    streams.extend(here.calls.post_first(id));
                }
                Err(unsent) => {
                    let error = match unsent {
                        Unsent::Never(error) => error,
                        Unsent::TooLarge(limit) => TransportError::TooLarge { limit },
                        Unsent::Blocked => break,
                    };
                    self.counters.failed.increment();
                    self.calls_live -= 1;
                    here.calls.fail_first(error.into());
                }
            }
        }
        streams.into_iter().for_each(|key| self.pump_call(io, conn, key));
    }

    /// Pulls that found no room. Returns whether all found some.
    fn send_pulls<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) -> bool {
        while let Some(here) = self.conns.get_mut(conn)
            && let Some(index) = here.calls.first_unpulled()
        {
            if !self.pull(io, conn, index) {
                return false;
            }
        }
        true
    }

    /// Brings the bulk of an answer. Returns whether there is room for more.
    pub(super) fn pull<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, index: u32) -> bool {
        let Some(here) = self.conns.get_mut(conn) else { return false };
        match pull(io, conn, &mut here.calls, index) {
            Pull::Started => true,
            Pull::Blocked => false,
            Pull::Refused => {
                let why = "the answer's bulk cannot be brought: negotiated away, or above bulk_bytes_max";
                let error = TransportError::NoBulk { why, fate: Fate::Ran };
                self.finish(conn, index, error);
                true
            }
        }
    }

    /// An answer arrived that is nothing but its payload.
    #[inline]
    pub(super) fn answered<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let Some(index) = here.calls.answered(id) else {
            self.counters.late_answers.increment();
            return Ok(());
        };
        self.counters.answered.increment();
        self.calls_live -= 1;
        here.calls.finish_bytes(index, false, payload, &self.counters.copied_answers);
        if here.calls.is_queued() {
            self.send_requests(io, conn);
        }
        Ok(())
    }

    /// Answers arrived in one message.
    pub(super) fn answered_batch<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        body: &[u8],
    ) -> Result<(), Violation> {
        Items::new(body).try_for_each(|answer| {
            let (id, payload) = answer?;
            self.answered(io, conn, id, payload)
        })
    }

    /// Shows the answer of `key` to `read` where it landed, if `message` is it and has nothing but bytes: the call is over then.
    #[inline(always)]
    pub(crate) fn read_answer<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        key: CallKey,
        message: &Message<'_>,
        read: impl FnOnce(&[u8]),
    ) -> bool {
        let Some((id, payload)) = plain_answer(message) else { return false };
        let Some(here) = self.conns.get_mut(conn) else { return false };
        if !here.calls.end_by(key, id, || read(payload)) {
            return false;
        }
        self.counters.answered.increment();
        self.calls_live -= 1;
        if here.calls.is_queued() {
            self.send_requests(io, conn);
        }
        true
    }

    /// A message with [`Kind::Response`] arrived.
    pub(super) fn response_arrived<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (flags, id): (Flags, CallId),
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        if flags.has(Flags::BATCH) {
            return self.answered_batch(io, conn, body);
        }
        if flags.has(Flags::NO_HEAD) {
            return self.answered(io, conn, id, body);
        }
        let (head, mut payload) = ResponseHead::parse(body)?;
        if flags.has(Flags::METADATA) {
            let (metadata, behind) = metadata::split(payload)?;
            self.answer_noted(conn, id, metadata);
            payload = behind;
        }
        if flags.has(Flags::LARGE) {
            self.answered_large(io, conn, id, (head, payload), bulk)
        } else {
            self.answered_otherwise(io, conn, id, (head, payload), bulk)
        }
    }

    /// A response arrived: an error, a status, or an answer that may have bulk.
    #[cold]
    fn answered_otherwise<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        (head, payload): (ResponseHead, &[u8]),
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let Some(index) = here.calls.answered(id) else {
            self.counters.late_answers.increment();
            if let Some(bulk) = bulk {
                io.decline(conn, bulk);
            }
            return Ok(());
        };
        let call = here.calls.call(index);
        let method = call.method;
        let wanted = method.is_some_and(|method| method.gives_bulk);
        let is_error = head == ResponseHead::App;
        match (head, bulk) {
            (ResponseHead::Ok, Some(bulk)) if wanted => {
                copied::into_buffer(&mut call.body, payload, &self.counters.copied_answers);
                (call.state, call.is_error, call.is_large) = (State::Pulling, is_error, false);
                call.offer = Some(bulk);
                self.pull(io, conn, index);
            }
            (head, bulk) => {
                if let Some(bulk) = bulk {
                    io.decline(conn, bulk);
                }
                match head {
                    ResponseHead::Ok | ResponseHead::App => {
                        self.counters.answered.increment();
                        self.calls_live -= 1;
                        here.calls.finish_bytes(index, is_error, payload, &self.counters.copied_answers);
                    }
                    ResponseHead::Status { code, fate } => {
                        self.finish(conn, index, status_of(code, fate, payload));
                    }
                    ResponseHead::Mismatch => self.finish(conn, index, mismatch(method, payload)),
                }
            }
        }
        self.more_requests(io, conn);
        Ok(())
    }

    /// Posts what waits, if anything does.
    pub(super) fn more_requests<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        if self.conns.get_mut(conn).is_some_and(|here| here.calls.is_queued()) {
            self.send_requests(io, conn);
        }
    }

    /// Ends a call, in a way that is not just bytes.
    pub(super) fn finish(&mut self, conn: ConnId, index: u32, response: impl Into<Response>) {
        let response = response.into();
        let counter =
            if response.failure().is_none() { &self.counters.answered } else { &self.counters.failed };
        counter.increment();
        self.calls_live -= 1;
        if let Some(here) = self.conns.get_mut(conn) {
            here.calls.finish(index, response);
        }
    }

    /// The bulk of an answer is here, or will not come.
    pub(super) fn answer_pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        key: CallKey,
        result: Result<Bulk, BulkError>,
    ) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        // A call that ended meanwhile: its bulk goes back by being dropped.
        let Some(index) = here.calls.find(key) else { return };
        let call = here.calls.call(index);
        if call.state != State::Pulling || call.offer.is_some() {
            return;
        }
        let (is_error, is_large) = (call.is_error, call.is_large);
        let body = if is_large { Vec::new() } else { std::mem::take(&mut call.body) };
        let response = match result {
            Ok(bulk) if is_large => Response::bulk(is_error, bulk),
            Ok(bulk) => Response { lent: Some(Box::new(bulk)), ..Response::owned(is_error, body) },
            Err(error) => TransportError::Bulk { error, fate: Fate::Ran }.into(),
        };
        self.finish(conn, index, response);
        if self.conns.get_mut(conn).is_some_and(|here| here.calls.first_unpulled().is_some()) {
            self.send_requests(io, conn);
        }
    }

    /// Calls whose deadline has passed end here, whatever the peer does.
    pub(super) fn expire_calls<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let now = io.now();
        let mut any = false;
        while let Some(here) = self.conns.get_mut(conn)
            && let Some(index) = here.calls.poll_expired(now)
        {
            any = true;
            let (fate, message) = match here.calls.withdraw(index) {
                State::Posted(_) => (Fate::MaybeRan, "no answer before the deadline"),
                State::Pulling => {
                    if let Some(offer) = here.calls.call(index).offer.take() {
                        io.decline(conn, offer);
                    }
                    (Fate::Ran, "the answer's bulk was not here before the deadline")
                }
                _ => (Fate::NotRun, "it waited in the client until the deadline"),
            };
            self.counters.expired.increment();
            let status = Status::new(Code::DeadlineExceeded, message).with_fate(fate);
            self.finish(conn, index, status);
        }
        if any {
            self.send_requests(io, conn);
        }
    }

    /// The caller dropped a call that was handed off.
    pub(super) fn cancel_cell<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        cell: &std::sync::Arc<CallCell>,
    ) {
        let key = CallKey::from_bits(cell.key());
        if self.conns.get_mut(conn).is_some_and(|here| here.calls.belongs(key, cell)) {
            self.cancel(io, conn, key);
        }
    }

    /// Nobody waits for a call any more.
    pub(crate) fn cancel<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, key: CallKey) {
        let Some(here) = self.conns.get_mut(conn) else {
            drop(self.take(conn, key, &Cell::default()));
            return;
        };
        let offer = here.calls.find(key).and_then(|index| here.calls.call(index).offer.take());
        if let Some(offer) = offer {
            io.decline(conn, offer);
        }
        match here.calls.forget(key) {
            None | Some(State::Done) => return,
            Some(_) => {}
        }
        self.counters.cancelled.increment();
        self.calls_live -= 1;
        self.send_requests(io, conn);
    }

    /// The connection is gone: every call on it ends with what is known of it.
    pub(super) fn end_calls(&mut self, gone: &mut Conn, reason: &CloseReason) {
        while let Some(index) = gone.calls.any_live() {
            let fate = match gone.calls.withdraw(index) {
                State::Posted(_) => Fate::MaybeRan,
                State::Pulling => Fate::Ran,
                _ => Fate::NotRun,
            };
            self.counters.failed.increment();
            self.calls_live -= 1;
            let error = TransportError::Closed { reason: reason.clone(), fate };
            gone.calls.finish(index, error.into());
        }
    }
}

/// What became of a pull.
enum Pull {
    Started,
    Blocked,
    Refused,
}

/// Starts to bring the bulk of an answer.
fn pull<P: Port>(io: &mut Io<'_, P>, conn: ConnId, calls: &mut Calls, index: u32) -> Pull {
    let token = calls.key(index).bits();
    let offer = &mut calls.call(index).offer;
    let Some(bulk) = offer.take() else { return Pull::Started };
    match io.pull(conn, bulk, token) {
        Ok(()) => Pull::Started,
        Err((SendError::Blocked, bulk)) => {
            *offer = Some(bulk);
            Pull::Blocked
        }
        Err((_, bulk)) => {
            io.decline(conn, bulk);
            Pull::Refused
        }
    }
}
