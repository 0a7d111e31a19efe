//! The caller's table of calls on one connection: pure, no port and no clock in it.
//!
//! ```text
//!   insert ─► Waiting ─post─► Posted ─answer─► (Pulling ─►) finished: its cell is completed, or kept as Done until taken
//!                │               │ cancel, expire: the slot of the window stays taken until the cancel has left
//! ```
//! Invariants: at most `window` wire slots are taken; a wire slot is used again only with a new generation; a key or
//! an id with an old generation finds nothing.

mod call;
mod key;
mod reply;
mod tagged;
#[cfg(test)]
mod tests;
mod waiting;
mod wires;

use std::{cell::Cell, collections::VecDeque, mem, task::Waker, time::Duration};

use gimmal_engine::{
    RemoteBulk,
    transport::{Loan, Time},
};

use self::{waiting::Waiting, wires::Wires};
use crate::{
    copied,
    id::CallId,
    metadata::Metadata,
    method::Method,
    response::Response,
    stats::Counter,
    stream::{Begun, Lanes, Streams},
    wake::wake,
};

pub(crate) use call::{Call, State};
pub(crate) use key::CallKey;
pub(crate) use reply::{Reply, Tagged};

/// The calls of one connection: slots of a window, each with a generation.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Vec<Call>,
    free: Vec<u32>,
    /// Calls that are [`Done`](State::Done): local ones that have ended, and whose response nobody has taken.
    done: usize,
    wires: Wires,
    waiting_max: usize,
    waiting: Waiting,
    /// Where to look next for a call of a pipeline that has ended.
    taken_to: usize,
    /// Cancels that have not left; their wire slots are taken until then.
    cancels: VecDeque<CallId>,
    /// A pull found no room, and its call may still wait for some.
    has_unpulled: bool,
    next_deadline: Time,
}

impl Calls {
    pub(crate) fn new(window: usize, waiting_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            done: 0,
            wires: Wires::new(window),
            waiting_max,
            waiting: Waiting::default(),
            taken_to: 0,
            cancels: VecDeque::new(),
            has_unpulled: false,
            next_deadline: Time::NEVER,
        }
    }

    /// Earliest deadline, or earlier.
    pub(crate) const fn next_deadline(&self) -> Time {
        self.next_deadline
    }

    pub(crate) fn may_wait(&self) -> bool {
        self.waiting.len() < self.waiting_max
    }

    /// Whether the first call has to wait now, and only because calls with streams have every slot of the window.
    pub(crate) fn is_full_of_streams(&self) -> bool {
        let others = |call: &Call| matches!(call.state, State::Posted(_)) && call.lanes.is_none();
        self.waiting.len() == 0 && self.wires.next().is_none() && !self.slots.iter().any(others)
    }

    /// How many calls there are, with those that nobody has taken.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no call, not even one that nobody has taken.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.waiting.len() > 0
    }

    /// The slot of the window that the next request takes, as it will be called there.
    #[inline]
    pub(crate) fn next_wire(&self) -> Option<CallId> {
        self.wires.next()
    }

    /// A place for a call; its memory from earlier calls is in it.
    #[inline]
    fn vacant(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.grow())
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Call::new());
        // As many as the table can ever hold free, so that freeing never allocates.
        self.free.reserve(self.slots.len());
        u32::try_from(self.slots.len() - 1).expect("window and waiting_max bound the table")
    }

    /// Adds a local call that was just posted as `id`; another one [is told](Call::tell) of. `times`: see
    /// [`Call::started`], and the deadline.
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        id: CallId,
        method: &'static Method,
        times: (Time, Time),
    ) -> (CallKey, &mut Call) {
        let index = self.vacant();
        self.wires.take(id.slot, index);
        let (key, call) = self.occupy(index, method, times);
        call.state = State::Posted(id.slot);
        (key, call)
    }

    /// Adds a call that waits, with the request that `keep` writes; gives the reply back when it cannot be written.
    pub(crate) fn insert_waiting<E>(
        &mut self,
        method: &'static Method,
        times: (Time, Time),
        (loan, streams): (Option<Loan>, Option<Streams>),
        reply: Reply,
        keep: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<CallKey, (E, Reply)> {
        let index = self.vacant();
        let call = &mut self.slots[index as usize];
        if let Err(error) = keep(&mut call.body) {
            self.free.push(index);
            return Err((error, reply));
        }
        call.loan = loan;
        if let Some(Streams::Made(lanes)) = streams {
            call.lanes = Some(lanes);
        }
        call.state = State::Waiting;
        let (key, call) = self.occupy(index, method, times);
        call.tell(key, reply);
        self.waiting.push(key);
        Ok(key)
    }

    #[inline(always)]
    fn occupy(
        &mut self,
        index: u32,
        method: &'static Method,
        (started, deadline): (Time, Time),
    ) -> (CallKey, &mut Call) {
        self.next_deadline = self.next_deadline.min(deadline);
        let call = &mut self.slots[index as usize];
        let key = CallKey::new(index, call.generation);
        call.deadline = deadline;
        call.started = started;
        call.method = Some(method);
        (key, call)
    }

    /// Calls that were started by an old reading of the clock get the time back that had passed since it.
    pub(crate) fn put_off(&mut self, started: Time, by: Duration) {
        for call in self.slots.iter_mut().filter(|call| call.started == started) {
            call.deadline = call.deadline.plus(by);
            call.started = Time::NEVER;
        }
    }

    /// The first that waits.
    pub(crate) fn first_waiting(&mut self) -> Option<&mut Call> {
        let index = self.waiting.first(|key| waits(&self.slots, key))?;
        Some(&mut self.slots[index as usize])
    }

    /// The first that waited left as `id`. Its key, if it has streams.
    pub(crate) fn post_first(&mut self, id: CallId) -> Option<CallKey> {
        let index = self.waiting.pop(|key| waits(&self.slots, key))?;
        self.wires.take(id.slot, index);
        self.slots[index as usize].state = State::Posted(id.slot);
        self.slots[index as usize].lanes.is_some().then(|| self.key(index))
    }

    /// The call that left as `id` and was not answered.
    pub(crate) fn posted(&self, id: CallId) -> Option<u32> {
        self.wires.call(id)
    }

    /// The streams of a call whose request has left.
    pub(crate) fn streaming(&mut self, index: u32) -> Option<(CallId, &mut Lanes)> {
        let call = &mut self.slots[index as usize];
        let State::Posted(slot) = call.state else { return None };
        Some((self.wires.id(slot), call.lanes.as_deref_mut()?))
    }

    /// Whether the stream down of a call is to be made now.
    pub(crate) fn may_begin(&self, index: u32) -> bool {
        let call = &self.slots[index as usize];
        call.lanes.is_none() && call.window > 0 && call.method.is_some_and(|method| method.streams_down)
    }

    /// Returns the stream down of a local call if it has begun, once.
    #[inline]
    pub(crate) fn take_begun(&mut self, key: CallKey) -> Option<Begun> {
        let index = self.find(key)?;
        self.slots[index as usize].begun.take().map(|begun| *begun)
    }

    /// Adds a local call that has ended.
    pub(crate) fn insert_done(
        &mut self,
        method: &'static Method,
        response: Response,
        reply: Reply,
    ) -> CallKey {
        let index = self.vacant();
        let (key, call) = self.occupy(index, method, (Time::NEVER, Time::NEVER));
        call.reply = reply;
        call.response = Some(response);
        call.state = State::Done;
        self.done += 1;
        key
    }

    /// The first that waited can never leave.
    pub(crate) fn fail_first(&mut self, response: Response) {
        if let Some(index) = self.waiting.pop(|key| waits(&self.slots, key)) {
            self.finish(index, response).into_iter().for_each(wake);
        }
    }

    /// An answer for `id` arrived: its call, whose slot in the window is free now. `None`: it ended before.
    #[inline]
    pub(crate) fn answered(&mut self, id: CallId) -> Option<u32> {
        let index = self.wires.call(id)?;
        self.wires.free(id.slot);
        Some(index)
    }

    /// Ends the call of `key` by reading its answer, if `id` is how it left and the worker's own thread waits for nothing else.
    #[inline(always)]
    pub(crate) fn end_by(&mut self, key: CallKey, id: CallId, read: impl FnOnce()) -> bool {
        let Some(call) = self.slots.get_mut(key.index() as usize) else { return false };
        if self.wires.call(id) != Some(key.index())
            || !matches!(call.reply, Reply::Local)
            || call.loan.is_some()
            || call.lanes.is_some()
        {
            return false;
        }
        read();
        self.wires.free(id.slot);
        call.free();
        self.free.push(key.index());
        true
    }

    #[inline]
    pub(crate) fn call(&mut self, index: u32) -> &mut Call {
        &mut self.slots[index as usize]
    }

    pub(crate) fn key(&self, index: u32) -> CallKey {
        CallKey::new(index, self.slots[index as usize].generation)
    }

    /// The call of `key` while it lives.
    #[inline]
    pub(crate) fn find(&self, key: CallKey) -> Option<u32> {
        let call = self.slots.get(key.index() as usize)?;
        (call.generation == key.generation() && call.state != State::Free).then_some(key.index())
    }

    /// Whether `key` is the call of `cell`.
    pub(crate) fn belongs(&self, key: CallKey, cell: &std::sync::Arc<crate::cell::CallCell>) -> bool {
        let reply = self.find(key).map(|index| &self.slots[index as usize].reply);
        reply.and_then(Reply::responder).is_some_and(|responder| responder.is(cell))
    }

    /// The metadata of its answer came.
    pub(crate) fn note(&mut self, index: u32, metadata: Metadata) {
        let reply = &mut self.slots[index as usize].reply;
        let plain = match reply.take() {
            // A peer that says it twice is taken at its last word.
            Reply::Noted(noted) => noted.0,
            plain => plain,
        };
        *reply = Reply::Noted(Box::new((plain, metadata)));
    }

    /// Ends a call with the bytes of its answer: tells the waiting caller, who is to be woken, or keeps them for the worker's own
    /// thread.
    #[inline]
    #[must_use = "somebody may wait for it"]
    pub(crate) fn finish_bytes(
        &mut self,
        index: u32,
        is_error: bool,
        payload: &[u8],
        copies: &Counter,
    ) -> Option<Waker> {
        let call = &mut self.slots[index as usize];
        copied::into_buffer(&mut call.body, payload, copies);
        if call.reply.is_taken() {
            call.is_error = is_error;
            call.state = State::Done;
            self.done += 1;
            let lanes = if call.has_beside() { call.let_go() } else { None };
            call.reply.wake();
            return end_streams(lanes, !is_error, None);
        }
        let body = mem::take(&mut call.body);
        self.finish(index, Response::owned(is_error, body))
    }

    /// Ends a call: tells the caller, who is to be woken, or keeps the response for the worker's own thread.
    #[must_use = "somebody may wait for it"]
    pub(crate) fn finish(&mut self, index: u32, mut response: Response) -> Option<Waker> {
        let call = &mut self.slots[index as usize];
        let lanes = if call.has_beside() { call.let_go() } else { None };
        let is_good = response.is_ok();
        match call.reply.take() {
            Reply::Cell(responder) => {
                self.release(index);
                end_streams(lanes, is_good, responder.tell(response))
            }
            reply @ (Reply::Local | Reply::Task(_) | Reply::Tagged(_)) => {
                call.reply = reply;
                call.response = Some(response);
                call.state = State::Done;
                self.done += 1;
                call.reply.wake();
                end_streams(lanes, is_good, None)
            }
            Reply::Noted(noted) => {
                let (reply, metadata) = *noted;
                (call.reply, call.lanes) = (reply, lanes);
                response.metadata = Some(Box::new(metadata));
                self.finish(index, response)
            }
        }
    }

    /// Has the task of `waker` woken when the local call of `key` ends.
    #[inline]
    pub(crate) fn watch(&mut self, key: CallKey, waker: &Waker) {
        if let Some(index) = self.find(key) {
            self.slots[index as usize].reply.watch(waker);
        }
    }

    #[inline]
    fn release(&mut self, index: u32) {
        self.slots[index as usize].free();
        self.free.push(index);
    }

    /// Returns how a local call ended, once. `spare` takes the place of the buffer that leaves.
    #[inline]
    pub(crate) fn take(&mut self, key: CallKey, spare: &Cell<Vec<u8>>) -> Option<Response> {
        if self.done == 0 { None } else { self.take_done(key, spare) }
    }

    fn take_done(&mut self, key: CallKey, spare: &Cell<Vec<u8>>) -> Option<Response> {
        let call = self.slots.get_mut(key.index() as usize)?;
        if call.generation != key.generation() || call.state != State::Done {
            return None;
        }
        let response = match call.response {
            Some(_) => call.response.take()?,
            None => Response::owned(call.is_error, mem::replace(&mut call.body, spare.take())),
        };
        self.done -= 1;
        self.release(key.index());
        Some(response)
    }

    /// Takes a call out of wherever it is, before it is finished by hand. A posted one leaves its slot of the window
    /// taken until [`Calls::cancel_left`]. Returns how far it was.
    pub(crate) fn withdraw(&mut self, index: u32) -> State {
        let state = mem::replace(&mut self.slots[index as usize].state, State::Done);
        match state {
            State::Waiting => self.waiting.ended(|key| waits(&self.slots, key)),
            State::Posted(slot) => {
                self.cancels.push_back(self.wires.abandon(slot));
            }
            State::Free | State::Pulling | State::Done => {}
        }
        state
    }

    /// Ends a call that nobody waits for. Returns its state, for the clean-up.
    pub(crate) fn forget(&mut self, key: CallKey) -> Option<State> {
        let index = self.find(key)?;
        let state = self.withdraw(index);
        let call = &mut self.slots[index as usize];
        if call.has_beside() {
            drop(call.let_go());
        }
        (call.response, call.begun) = (None, None);
        if let Some(responder) = call.reply.take().into_responder() {
            responder.defuse();
        }
        self.done -= usize::from(state == State::Done);
        self.release(index);
        Some(state)
    }

    /// The next cancel that has to leave.
    pub(crate) fn first_cancel(&self) -> Option<CallId> {
        self.cancels.front().copied()
    }

    /// It left: its slot of the window is free.
    pub(crate) fn cancel_left(&mut self) {
        if let Some(id) = self.cancels.pop_front() {
            self.wires.free(id.slot);
        }
    }

    /// The first call from index `from` on whose deadline has passed. One pass begins with 0 and goes on behind the call that was
    /// found; when it ends with `None`, the next deadline is known again.
    pub(crate) fn poll_expired(&mut self, now: Time, from: u32) -> Option<u32> {
        if from == 0 {
            if now < self.next_deadline {
                return None;
            }
            self.next_deadline = Time::NEVER;
        }
        for (index, call) in
            (from..).zip(self.slots.iter().skip(from as usize)).filter(|(_, call)| call.lives())
        {
            if call.deadline <= now {
                return Some(index);
            }
            self.next_deadline = self.next_deadline.min(call.deadline);
        }
        None
    }

    /// The first call from index `from` on that lives: a closing connection ends them one by one.
    pub(crate) fn next_live(&self, from: u32) -> Option<u32> {
        let mut calls = (from..).zip(self.slots.iter().skip(from as usize));
        calls.find(|(_, call)| call.lives()).map(|(index, _)| index)
    }

    /// Keeps the offer of a call that is [`State::Pulling`] until there is room for the pull.
    pub(crate) fn pull_later(&mut self, index: u32, bulk: RemoteBulk) {
        self.slots[index as usize].offer = Some(bulk);
        self.has_unpulled = true;
    }

    /// The first call whose bulk waits for room in the device's queue. While none does, no call is looked at: every answer asks this
    /// while calls wait.
    #[inline]
    pub(crate) fn first_unpulled(&mut self) -> Option<u32> {
        if self.has_unpulled { self.look_for_unpulled() } else { None }
    }

    #[cold]
    fn look_for_unpulled(&mut self) -> Option<u32> {
        let waits = |call: &Call| call.state == State::Pulling && call.offer.is_some();
        let first = self.slots.iter().position(waits).and_then(|index| u32::try_from(index).ok());
        self.has_unpulled = first.is_some();
        first
    }

    /// Calls that can be in flight at once.
    pub(crate) const fn window(&self) -> usize {
        self.wires.len()
    }

    /// Whether a local response was not taken yet.
    pub(crate) const fn has_done(&self) -> bool {
        self.done > 0
    }
}

/// Ends the streams of a call, well if there is an answer. Returns the task to be woken: `waker`, or that of their reader, which is
/// usually the same.
fn end_streams(lanes: Option<Box<Lanes>>, is_good: bool, waker: Option<Waker>) -> Option<Waker> {
    let Some(lanes) = lanes else { return waker };
    match (lanes.answered(is_good), waker) {
        (Some(reader), Some(waker)) => {
            if !reader.will_wake(&waker) {
                wake(reader);
            }
            Some(waker)
        }
        (reader, waker) => reader.or(waker),
    }
}

/// Whether the call of `key` waits for room.
fn waits(slots: &[Call], key: CallKey) -> bool {
    let call = &slots[key.index() as usize];
    call.generation == key.generation() && call.state == State::Waiting
}
