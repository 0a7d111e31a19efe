//! The caller's role: requests leave, calls end. Responses arrive in `responses`.

use std::{cell::Cell, sync::Arc, time::Duration};

use gimmal_engine::{
    Head, Io,
    transport::{CloseReason, ConnId, Loan, Port, Time},
};

use super::{
    Conn, Node,
    request::{Fresh, Source, Unsent, send_request},
};
use crate::{
    calls::{CallKey, Reply, State},
    cell::CallCell,
    codec::EncodeError,
    copied,
    error::TransportError,
    frame::{self, Flags, Kind, REQUEST_BYTES, RequestHead},
    id::CallId,
    late::Asked,
    method::Method,
    response::Response,
    status::{Code, Fate, Status},
    stream::Streams,
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

fn left(deadline: Time, now: Time) -> Option<Duration> {
    (deadline != Time::NEVER).then(|| deadline.since(now))
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
        (mut loan, streams): (Option<Loan>, Option<Streams>),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        self.begin(io, conn, method, timeout.into(), source, (&mut loan, streams), reply)
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
        (loan, mut streams): (&mut Option<Loan>, Option<Streams>),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        self.counters.calls.increment();
        let now = io.now();
        self.look(now);
        let deadline = timeout.after(now);
        // Nobody read the clock for this: the thread may have been away since. See `looked`.
        let is_local = reply.is_taken();
        self.stale = true;
        let times = (now, deadline);
        let Some(here) = self.conns.get_mut(conn) else { return self.start_nowhere(conn, reply) };
        self.alone = here.calls.is_empty();
        if !here.calls.is_queued()
            && let Some(id) = here.calls.next_wire()
        {
            let window =
                streams.as_mut().map_or(0, |streams| streams.open(&here.home.budget, here.calls.len()));
            let head = RequestHead::new(method, timeout.us(), window).words();
            let id = if method.is_oneway { CallId::NONE } else { id };
            let flags = if method.is_oneway { Flags::ONE_WAY } else { source.flags() };
            match send_request(io, conn, id, (method, flags, head), &mut here.headers, loan, &source) {
                Ok(()) => {
                    copied::count(source.written(), &self.counters.copied_requests);
                    if method.is_oneway {
                        return Ok(self.one_way_left(conn, method, reply));
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
                    if let Some(streams) = streams
                        && call.stream_by(streams, window)
                    {
                        here.streams_seen = true;
                        self.bind_call(io, conn, key);
                    }
                    return Ok(key);
                }
                Err(Unsent::Never(error)) => return self.refuse(reply, error),
                Err(Unsent::TooLarge(limit)) => {
                    let plain = is_plain(loan.as_ref(), streams.is_some());
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
        self.start_later(io, conn, method, times, source, (loan.take(), streams), reply)
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
        loan: (Option<Loan>, Option<Streams>),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        let limit = arguments_max(io, conn, loan.0.as_ref());
        let (streams, flags) = (loan.1.is_some(), source.flags());
        let plain = is_plain(loan.0.as_ref(), streams);
        let here = self.conns.get_mut(conn).filter(|here| here.calls.may_wait());
        let Some(Conn { calls, home, streams_seen, has_warned, .. }) = here else {
            let waiting = self.limits.waiting_max;
            return self.refuse(reply, TransportError::Full { waiting });
        };
        if *streams_seen && calls.is_full_of_streams() {
            self.counters.behind_streams.increment();
            if !std::mem::replace(has_warned, true) {
                let window = self.limits.window;
                tracing::warn!(
                    window,
                    "calls with streams have every place of the window, so other calls wait: raise `window`, or give them a client of their own"
                );
            }
        }
        let window = if matches!(loan.1, Some(Streams::Later)) { home.budget.offer(calls.len()) } else { 0 };
        match calls.insert_waiting(method, times, loan, reply, |body| source.keep(body, limit)) {
            Err((EncodeError::Full, reply)) => {
                let timeout = left(times.1, io.now());
                self.start_large(io, conn, method, timeout, &source, (plain, limit), reply)
            }
            Err((error, reply)) => self.refuse(reply, TransportError::Encode(error)),
            Ok(key) => {
                let call = calls.call(key.index());
                call.flags = flags;
                call.expect_begin(window);
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
            let window = call.lanes.as_mut().map_or(call.window, |lanes| lanes.open(&here.home.budget));
            let head = RequestHead::new(method, frame::deadline_us(call.deadline, now), window).words();
            let id = if method.is_oneway { CallId::NONE } else { id };
            let flags = if method.is_oneway { Flags::ONE_WAY } else { call.flags };
            let source = Fresh::new(&body[..]);
            let sent =
                send_request(io, conn, id, (method, flags, head), &mut here.headers, &mut call.loan, &source);
            if sent.is_ok() {
                copied::count(&body, &self.counters.copied_requests);
            }
            call.body = body;
            match sent {
                Ok(()) if method.is_oneway => {
                    self.counters.one_way.increment();
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
            self.waking.add(here.calls.finish(index, response));
        }
    }

    /// Calls whose deadline has passed end here, whatever the peer does.
    pub(super) fn expire_calls<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let now = io.now();
        let mut from = 0;
        while let Some(here) = self.conns.get_mut(conn)
            && let Some(index) = here.calls.poll_expired(now, from)
        {
            from = index + 1;
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
        if from > 0 {
            self.send_requests(io, conn);
        }
    }

    /// The caller dropped a call that was handed off.
    pub(super) fn cancel_cell<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, cell: &Arc<CallCell>) {
        let key = CallKey::from_bits(cell.key());
        if self.conns.get_mut(conn).is_some_and(|here| here.calls.belongs(key, cell)) {
            self.cancel(io, conn, key);
        }
    }

    /// Does what was asked of this worker while its inbox was full. Returns whether some of it is still to be done: a call may be in
    /// the inbox, and what cancels it comes before it.
    #[cold]
    pub(super) fn asked_late<P: Port>(&mut self, io: &mut Io<'_, P>) -> bool {
        let Asked { mut cancels, closes } = self.late.take();
        for (conn, negotiated) in closes {
            if io.negotiated(conn).is_some_and(|here| here.nonce == negotiated.nonce) {
                io.close(conn);
            }
        }
        cancels.retain(|(conn, cell)| {
            // The responder of a call holds its cell, too, until the call has ended.
            let lives = || Arc::strong_count(cell) > 1;
            if lives() {
                self.cancel_cell(io, self.successor(*conn), cell);
            }
            lives()
        });
        let waits = !cancels.is_empty();
        if waits {
            self.late.ask(|asked| asked.cancels.append(&mut cancels));
        }
        waits
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
        let mut from = 0;
        while let Some(index) = gone.calls.next_live(from) {
            from = index + 1;
            let fate = match gone.calls.withdraw(index) {
                State::Posted(_) => Fate::MaybeRan,
                State::Pulling => Fate::Ran,
                _ => Fate::NotRun,
            };
            self.counters.failed.increment();
            self.calls_live -= 1;
            let error = TransportError::Closed { reason: reason.clone(), fate };
            self.waking.add(gone.calls.finish(index, error.into()));
        }
    }
}
