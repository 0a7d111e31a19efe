//! The callee's role: handlers run, answers leave.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use gimmal_engine::{
    Io, RemoteBulk, SendError,
    transport::{Bulk, ConnId, Port, Time, Violation},
};

use super::{
    Conn, Node,
    answers::{Sent, drop_answered, send_refusal, send_value, short, status_answer},
    failure::Failure,
    large::enclose,
    noted::send_noted,
    pulls::drop_admitted,
    request::Unsent,
    serving::{Answered, State},
    tasks::{Polled, Served, discard},
};
use crate::{
    copied,
    cx::Cx,
    frame::ResponseHead,
    id::CallId,
    method::Method,
    service::Entry,
    status::{Code, Fate, Status},
    task::BoxTask,
};

impl Node {
    #[cold]
    pub(super) fn refuse_request<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        head: ResponseHead,
        text: String,
    ) -> Result<(), Violation> {
        self.count_refused(head);
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let sent = send_refusal(io, conn, id, head, &text);
        if sent.is_err() && !here.serving.refuse_later(id, head, short(&text)) {
            return Err(Violation::Malformed { what: "flood of requests above the limit" });
        }
        Ok(())
    }

    pub(super) fn next_mark(&mut self) -> u64 {
        self.mark += 1;
        self.mark
    }

    /// Takes the slot of `id` with `state`.
    pub(super) fn occupy(
        &mut self,
        conn: ConnId,
        id: CallId,
        (now, deadline): (Time, Time),
        state: State,
    ) -> u64 {
        let mark = self.next_mark();
        self.take_slot(conn, id, mark, (now, deadline), state);
        mark
    }

    pub(super) fn take_slot(
        &mut self,
        conn: ConnId,
        id: CallId,
        mark: u64,
        (now, deadline): (Time, Time),
        state: State,
    ) {
        // Its request may have come long after this reading: see `looked`.
        self.look(now);
        self.stale = true;
        if let Some(here) = self.conns.get_mut(conn) {
            here.serving.put(id, mark, (now, deadline), state);
            self.counters.serving.increment();
            self.next_deadline = self.next_deadline.min(deadline);
        }
    }

    /// Makes a handler's future and polls it once; most are done then.
    #[expect(clippy::too_many_arguments, reason = "a request's parts, each needed once")]
    pub(super) fn run_async<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        entry: &Entry,
        deadline: Time,
        arguments: &[u8],
        bulk: Option<Bulk>,
    ) -> Result<(), Violation> {
        let mark = self.next_mark();
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        // `admit` has seen that there is a place; only a request's bulk may have taken long enough to lose it.
        let Some(place) = self.tasks.place() else { return self.no_place(io, conn, id) };
        here.peer.running[id.slot as usize].store(mark, Ordering::Relaxed);
        let peer = std::sync::Arc::clone(&here.peer);
        let cx = Cx { peer, method: entry.method, slot: id.slot, mark, deadline };
        match self.begin_handler(place, entry, cx, arguments, bulk) {
            Ok((task, Polled::Ready)) => self.ready(io, conn, id, entry, task),
            Ok((task, Polled::Pending)) => {
                self.tasks.keep(place, task, Served { conn, slot: id.slot, method: entry.method });
                self.take_slot(conn, id, mark, (io.now(), deadline), State::Running(place));
            }
            Ok((task, failed)) => self.ended(io, conn, id, entry.method, task, failed),
            Err(status) => return self.not_started(io, conn, id, &status),
        }
        Ok(())
    }

    /// Makes a handler's future and polls it once, with the waker of `place`.
    ///
    /// # Errors
    /// What the caller is told: the arguments were refused, or decoding them panicked.
    #[inline(always)]
    pub(super) fn begin_handler(
        &mut self,
        place: u32,
        entry: &Entry,
        cx: Cx,
        arguments: &[u8],
        bulk: Option<Bulk>,
    ) -> Result<(BoxTask, Polled), Status> {
        let service = self.registry.service(entry);
        let seat = &mut self.seats[entry.number()];
        let mut context = Context::from_waker(self.tasks.waker(place));
        let mut began = false;
        let polling = self.tasks.before_poll();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            service.start(entry.index(), cx, arguments, bulk, seat)?;
            began = true;
            Ok(seat.task().map(|task| task.as_mut().poll(&mut context)))
        }));
        self.tasks.polled(polling, entry.method);
        let task = if began { seat.take() } else { None };
        let Some(task) = task else {
            return Err(self.nothing_began(entry, polled.ok().and_then(Result::err)));
        };
        self.counters.started.increment();
        let polled = match polled {
            Ok(Ok(Some(Poll::Ready(())))) => Polled::Ready,
            Ok(Ok(Some(Poll::Pending))) => Polled::Pending,
            failed => Polled::Failed(failed.err().map_or(Failure::Panicked, |panic| Failure::of(&*panic))),
        };
        Ok((task, polled))
    }

    /// The arguments were refused, or decoding them panicked.
    #[cold]
    fn nothing_began(&mut self, entry: &Entry, status: Option<Status>) -> Status {
        status.unwrap_or_else(|| {
            // What was in the seat may be half made.
            if let Some(task) = std::mem::take(&mut self.seats[entry.number()]).take() {
                discard(task);
            }
            Status::refused(Code::Internal, "decoding the arguments panicked")
        })
    }

    /// Keeps the box of a handler whose answer has left, for the next call of its method.
    #[inline(always)]
    pub(super) fn keep_box(&mut self, entry: &Entry, mut task: BoxTask) {
        // Values of a handler may panic when they are dropped.
        if catch_unwind(AssertUnwindSafe(|| task.as_mut().clear())).is_ok() {
            self.seats[entry.number()].give(task);
        } else {
            discard(task);
        }
    }

    #[cold]
    pub(super) fn not_started<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        status: &Status,
    ) -> Result<(), Violation> {
        let has_notes = self.conns.get_mut(conn).is_some_and(|here| {
            here.peer.running[id.slot as usize].store(0, Ordering::Relaxed);
            here.peer.answer_notes.any()
        });
        if has_notes {
            // What a layer left for this answer goes with it, and not with that of the next call.
            self.count_refused(ResponseHead::of(status));
            self.answer(io, conn, id, Time::NEVER, status_answer(status));
            return Ok(());
        }
        self.refuse_request(io, conn, id, ResponseHead::of(status), status.message().to_owned())
    }

    #[cold]
    pub(super) fn no_place<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
    ) -> Result<(), Violation> {
        let text = "too many handlers are pending on this worker";
        let head = ResponseHead::Status { code: Code::ResourceExhausted, fate: Fate::NotRun };
        self.count_refused(head);
        self.answer(io, conn, id, Time::NEVER, Answered::Bytes(head, text.into()));
        Ok(())
    }

    /// Counts a request that is refused, by cause.
    #[cold]
    pub(super) fn count_refused(&self, head: ResponseHead) {
        self.counters.refused.increment();
        match head {
            ResponseHead::Status { code: Code::ResourceExhausted, .. } => {
                self.counters.overloaded.increment()
            }
            ResponseHead::Status { code: Code::PermissionDenied | Code::Unauthenticated, .. } => {
                self.counters.denied.increment();
            }
            _ => {}
        }
    }

    /// A handler was done when it was polled first: its answer leaves, and its box is kept.
    #[inline]
    pub(super) fn ready<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        entry: &Entry,
        mut task: BoxTask,
    ) {
        let has_notes = self.conns.get_mut(conn).is_some_and(|here| {
            here.peer.running[id.slot as usize].store(0, Ordering::Relaxed);
            here.peer.answer_notes.any()
        });
        let mut loan = if entry.method.gives_bulk { task.as_mut().take_loan() } else { None };
        if has_notes {
            return self.answer(io, conn, id, Time::NEVER, Answered::Task(task, loan));
        }
        let sent = send_value(io, conn, id, &[], &mut task, &mut loan);
        if sent.is_err() {
            return self.answer_later(io, conn, id, Time::NEVER, sent, Answered::Task(task, loan));
        }
        self.counters.answers.increment();
        self.keep_box(entry, task);
    }

    /// A pending handler came to its end.
    pub(super) fn handler_ended<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        served: Served,
        task: BoxTask,
        polled: Polled,
    ) {
        let Served { conn, slot, method } = served;
        let Some(here) = self.conns.get_mut(conn) else {
            // One way, of a client that has left.
            return self.ended_untold(method, task, polled);
        };
        if served.is_one_way() {
            here.one_way -= 1;
        }
        let Some(place) = here.serving.slot(slot) else {
            return self.ended_untold(method, task, polled);
        };
        if place.lanes.is_some() {
            return self.stream_ended(io, served, task, polled);
        }
        let generation = place.generation;
        here.serving.free(slot);
        self.counters.serving.decrement();
        let id = CallId { slot, generation };
        self.ended(io, conn, id, method, task, polled);
    }

    /// A handler came to its end, and nobody is told.
    #[cold]
    fn ended_untold(&self, method: &Method, task: BoxTask, polled: Polled) {
        if let Polled::Failed(failure) = polled {
            self.note_failure(method, failure);
        }
        discard(task);
    }

    fn ended<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        method: &Method,
        task: BoxTask,
        polled: Polled,
    ) {
        if let Some(here) = self.conns.get_mut(conn) {
            here.peer.running[id.slot as usize].store(0, Ordering::Relaxed);
        }
        let answered = self.answered_by(method, task, polled);
        self.answer(io, conn, id, Time::NEVER, answered);
    }

    /// The answer of a handler that is done.
    pub(super) fn answered_by(&self, method: &Method, mut task: BoxTask, polled: Polled) -> Answered {
        if let Polled::Failed(failure) = polled {
            discard(task);
            self.failed(method, failure)
        } else {
            let loan = task.as_mut().take_loan();
            Answered::Task(task, loan)
        }
    }

    /// Counts and logs a handler that ended without an answer; returns what its caller is told.
    #[cold]
    pub(super) fn failed(&self, method: &Method, failure: Failure) -> Answered {
        let (code, fate, text) = self.note_failure(method, failure);
        Answered::Bytes(ResponseHead::Status { code, fate }, text.into())
    }

    #[cold]
    pub(super) fn note_failure(&self, method: &Method, failure: Failure) -> (Code, Fate, String) {
        let status = failure.status(method);
        if failure.is_panic() {
            self.counters.panics.increment();
            if let Some(left_out) = self.tasks.log_line() {
                tracing::error!(left_out, "{}", status.2);
            }
        }
        status
    }

    /// Sends an answer, or keeps it in its slot until there is room.
    pub(super) fn answer<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        deadline: Time,
        mut answered: Answered,
    ) {
        let sent = self.send(io, conn, id, &mut answered);
        self.answer_later(io, conn, id, deadline, sent, answered);
    }

    /// What becomes of an answer that was sent, or was not.
    fn answer_later<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        deadline: Time,
        sent: Sent,
        mut answered: Answered,
    ) {
        match sent {
            Ok(()) => {
                self.counters.answers.increment();
                copied::count(answered.payload(), &self.counters.copied_answers);
                drop_answered(answered);
                return;
            }
            Err(Unsent::Blocked) => {}
            Err(Unsent::TooLarge(limit)) => {
                self.enclose_answer(io, conn, limit, &mut answered);
                return self.answer(io, conn, id, deadline, answered);
            }
            Err(Unsent::Never(status)) => {
                drop_answered(std::mem::replace(&mut answered, status_answer(&status)));
                if self.send(io, conn, id, &mut answered).is_ok() {
                    self.counters.answers.increment();
                    return;
                }
            }
        }
        self.counters.blocked_answers.increment();
        self.occupy(conn, id, (io.now(), deadline), State::Answered(answered));
    }

    /// There is room: answers and refusals that waited leave, and pulls start.
    ///
    /// Answers leave in order. One that is blocked waits for room, which comes when the peer reads, or for the device; whatever
    /// can never leave is a status instead. Pulls need neither, so they do not wait behind it.
    pub(super) fn send_answers<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        while let Some((id, answered)) = here.serving.first_answer() {
            match send_noted(&here.peer, io, conn, id, answered) {
                Ok(()) => {
                    copied::count(answered.payload(), &self.counters.copied_answers);
                    self.counters.answers.increment();
                    self.counters.serving.decrement();
                    here.serving.answer_left();
                }
                Err(Unsent::Blocked) => break,
                Err(Unsent::TooLarge(limit)) => {
                    let max = self.limits.message_bytes_max;
                    enclose(&self.reach, &self.counters, max, io, conn, limit, answered);
                }
                Err(Unsent::Never(status)) => {
                    drop_answered(std::mem::replace(answered, status_answer(&status)));
                }
            }
        }
        while let Some((id, head, text)) = here.serving.first_refusal() {
            if send_refusal(io, conn, *id, *head, text) == Err(SendError::Blocked) {
                break;
            }
            here.serving.refusal_left();
        }
        while let Some(slot) = self.conns.get_mut(conn).and_then(|here| here.serving.first_unpulled()) {
            if !self.pull_request(io, conn, slot) {
                return;
            }
        }
    }

    /// The caller is not interested any more. An id that is not served was answered already.
    pub(super) fn cancelled<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, id: CallId) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        if here.serving.find(id).is_none() {
            return;
        }
        here.peer.give_up(id.slot);
        let (state, peer) = (here.serving.free(id.slot), std::sync::Arc::clone(&here.peer));
        if let Some(offer) = self.drop_state(state) {
            io.decline(conn, offer);
        }
        // Last: who reads that nothing is served finds counted what became of it.
        self.counters.serving.decrement();
        // Not for whoever has the slot next.
        if peer.answer_notes.any() {
            drop(peer.answer_notes.take(id.slot));
        }
    }

    /// Drops what a slot was doing; an offer that was not pulled comes back, to be declined.
    pub(super) fn drop_state(&mut self, state: State) -> Option<RemoteBulk> {
        match state {
            State::Running(place) => {
                self.counters.dropped.increment();
                if let Some((task, _)) = self.tasks.take(place)
                    && !discard(task)
                {
                    self.counters.panics.increment();
                }
                None
            }
            State::Answered(answered) | State::Ended(answered) => {
                drop_answered(answered);
                None
            }
            State::Pulling { offer, admitted, .. } => {
                drop_admitted(admitted);
                offer
            }
            State::Free => None,
        }
    }

    /// Handlers whose caller has stopped waiting are dropped, and it is told, in case its clock is slower.
    pub(super) fn expire_handlers<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let (now, mut from) = (io.now(), 0);
        while let Some(here) = self.conns.get_mut(conn)
            && let Some(id) = here.serving.poll_expired(now, from)
        {
            from = id.slot + 1;
            here.peer.give_up(id.slot);
            let state = here.serving.free(id.slot);
            let fate = if matches!(state, State::Running(_) | State::Ended(_)) {
                Fate::MaybeRan
            } else {
                Fate::NotRun
            };
            self.counters.overdue.increment();
            if let Some(offer) = self.drop_state(state) {
                io.decline(conn, offer);
            }
            self.counters.serving.decrement();
            let head = ResponseHead::Status { code: Code::DeadlineExceeded, fate };
            let text = "the deadline passed at the server";
            self.answer(io, conn, id, Time::NEVER, Answered::Bytes(head, text.into()));
        }
    }

    /// The connection is gone: so is everybody who waited.
    pub(super) fn end_handlers(&mut self, gone: &mut Conn) {
        for running in &gone.peer.running {
            running.store(0, Ordering::Relaxed);
        }
        let states: Vec<State> = gone.serving.drain().map(|(_, state)| state).collect();
        for state in states {
            // A closed connection has nobody to decline to.
            let _ = self.drop_state(state);
            self.counters.serving.decrement();
        }
    }
}
