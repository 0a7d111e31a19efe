//! The caller's table of calls on one connection: pure, no port and no clock in it.
//!
//! ```text
//!   insert ─► Waiting ─post─► Posted ─answer─► (Pulling ─►) finished: told, or kept as Done until taken
//!                │               │ cancel, expire: the slot of the window stays taken until the cancel has left
//! ```
//! Invariants: at most `window` wire slots are taken; a wire slot is used again only with a new generation; a key or
//! an id with an old generation finds nothing.

mod key;
mod reply;
mod tagged;

use std::{cell::Cell, collections::VecDeque, task::Waker, time::Duration};

use gimmal_engine::{
    RemoteBulk,
    transport::{Loan, Time},
};

use crate::{
    cell::Outcome, copied, frame::Form, id::CallId, metadata::Metadata, method::Method, stats::Counter,
    stream::Lanes,
};

pub(crate) use key::CallKey;
pub(crate) use reply::{Reply, Tagged};

/// Where a call is. What belongs to a state stands beside it in the call: so telling them apart moves a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    /// In the queue, composed.
    Waiting,
    /// The request left in this slot of the window.
    Posted(u32),
    /// The answer is here, its bulk on the way. There is an offer while the device has no room for the pull.
    Pulling,
    /// Ended, for the worker's own thread to take.
    Done,
}

/// In the order in which a call is looked at: one that is posted, answered and taken uses the first line, and a bit of the second.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Call {
    generation: u32,
    pub(crate) state: State,
    pub(crate) deadline: Time,
    /// The reading of the clock that the deadline counts from, when it may have been an old one.
    pub(crate) started: Time,
    pub(crate) method: Option<&'static Method>,
    /// [`Reply::Local`] while nobody is in it.
    pub(crate) reply: Reply,
    pub(crate) loan: Option<Loan>,
    pub(crate) lanes: Option<Box<Lanes>>,
    /// The composed request while it waits; the answer's bytes later. Its memory stays with the slot.
    pub(crate) body: Vec<u8>,
    /// The body is the method's error.
    pub(crate) is_error: bool,
    /// The bulk that is pulled is its answer.
    pub(crate) is_large: bool,
    /// Of its request, while it waits.
    pub(crate) form: Form,
    /// What a local call came to; `None` with `Done`: the answer in `body`.
    outcome: Option<Outcome>,
    pub(crate) offer: Option<RemoteBulk>,
}

// Whatever a call without a loan, streams and waiting touches is in one line, but for whether it has any.
const _: () = assert!(std::mem::offset_of!(Call, loan) == 64);

#[derive(Clone, Copy, Debug)]
struct Wire {
    generation: u32,
    /// The call, or [`NOBODY`].
    call: u32,
}

impl Call {
    /// `reply` hears of its end, under `key`. A local one is there already.
    pub(crate) fn tell(&mut self, key: CallKey, reply: Reply) {
        if let Some(responder) = reply.responder() {
            responder.set_key(key.bits());
        }
        self.reply = reply;
    }

    /// Puts `reply` in the place of one that owns nothing: dropping one of any kind would be a call.
    #[inline(always)]
    pub(crate) const fn reply_by(&mut self, reply: Reply) {
        std::mem::forget(std::mem::replace(&mut self.reply, reply));
    }

    /// A key of it finds nothing from here on.
    #[inline]
    const fn free(&mut self) {
        // 31 bits: the top bit of a pull's token says whose it is.
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.state = State::Free;
    }
}

impl Wire {
    /// An id of it finds nothing from here on.
    #[inline]
    const fn free(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.call = NOBODY;
    }
}

/// No call is in this slot of the window.
const NOBODY: u32 = u32::MAX;

/// What was there for the worker's own thread.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The bytes of the answer, or of the method's error, as is said first.
    Bytes(bool, Vec<u8>),
    /// Something else, which [`Calls::take_outcome`] has. It is large: whoever takes bytes does not move it about.
    Other,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Vec<Call>,
    free: Vec<u32>,
    /// Local calls that have ended, and whose outcome nobody has taken.
    untaken: usize,
    wires: Vec<Wire>,
    /// Slots of the window that nobody is in, a bit each. The lowest is used next: the server may have fewer.
    free_wires: Vec<u64>,
    waiting_max: usize,
    waiting: VecDeque<u32>,
    /// Cancels that have not left; their wire slots are taken until then.
    cancels: VecDeque<CallId>,
    next_deadline: Time,
}

impl Calls {
    pub(crate) fn new(window: usize, waiting_max: usize) -> Self {
        let mut free_wires = vec![u64::MAX; window / 64];
        if !window.is_multiple_of(64) {
            free_wires.push((1 << (window % 64)) - 1);
        }
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            untaken: 0,
            wires: vec![Wire { generation: 0, call: NOBODY }; window],
            free_wires,
            waiting_max,
            waiting: VecDeque::new(),
            cancels: VecDeque::new(),
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

    /// Whether there is no call, not even one that nobody has taken.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Whether nothing is under way, not even a cancel.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && self.cancels.is_empty()
    }

    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The slot of the window that the next request takes, as it will be called there.
    #[inline]
    pub(crate) fn next_wire(&self) -> Option<CallId> {
        let (word, bits) = match *self.free_wires.first()? {
            0 => (0u32..).zip(self.free_wires.iter().copied()).find(|(_, bits)| *bits != 0)?,
            bits => (0, bits),
        };
        let slot = word * 64 + bits.trailing_zeros();
        Some(CallId { slot, generation: self.wires[slot as usize].generation })
    }

    /// A place for a call; its memory from earlier calls is in it.
    #[inline]
    fn vacant(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.grow())
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Call {
            generation: 0,
            state: State::Free,
            deadline: Time::NEVER,
            started: Time::NEVER,
            method: None,
            body: Vec::new(),
            outcome: None,
            is_error: false,
            form: Form::default(),
            is_large: false,
            offer: None,
            loan: None,
            lanes: None,
            reply: Reply::Local,
        });
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
        self.take_wire(id.slot, index);
        let (key, call) = self.occupy(index, method, times);
        call.state = State::Posted(id.slot);
        (key, call)
    }

    /// Adds a call that waits, with the request that `keep` writes; gives the reply back when it cannot be written.
    pub(crate) fn insert_waiting<E>(
        &mut self,
        method: &'static Method,
        times: (Time, Time),
        (loan, lanes): (Option<Loan>, Option<Box<Lanes>>),
        reply: Reply,
        keep: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<CallKey, (E, Reply)> {
        let index = self.vacant();
        let call = &mut self.slots[index as usize];
        if let Err(error) = keep(&mut call.body) {
            self.free.push(index);
            return Err((error, reply));
        }
        (call.loan, call.lanes) = (loan, lanes);
        call.state = State::Waiting;
        self.waiting.push_back(index);
        let (key, call) = self.occupy(index, method, times);
        call.tell(key, reply);
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

    /// The call at `index` left by this slot of the window, which is the one of [`Calls::next_wire`].
    #[inline]
    fn take_wire(&mut self, slot: u32, index: u32) {
        self.free_wires[slot as usize / 64] &= !(1 << (slot % 64));
        self.wires[slot as usize].call = index;
    }

    /// The first that waits.
    pub(crate) fn first_waiting(&mut self) -> Option<&mut Call> {
        let index = *self.waiting.front()?;
        Some(&mut self.slots[index as usize])
    }

    /// The first that waited left as `id`. Its key, if it has streams.
    pub(crate) fn post_first(&mut self, id: CallId) -> Option<CallKey> {
        let index = self.waiting.pop_front()?;
        self.take_wire(id.slot, index);
        self.slots[index as usize].state = State::Posted(id.slot);
        self.slots[index as usize].lanes.is_some().then(|| self.key(index))
    }

    /// The call that left as `id` and was not answered.
    pub(crate) fn posted(&self, id: CallId) -> Option<u32> {
        let wire = self.wires.get(id.slot as usize).filter(|wire| wire.generation == id.generation)?;
        (wire.call != NOBODY).then_some(wire.call)
    }

    /// The streams of a call whose request has left.
    pub(crate) fn streaming(&mut self, index: u32) -> Option<(CallId, &mut Lanes)> {
        let call = &mut self.slots[index as usize];
        let State::Posted(slot) = call.state else { return None };
        let id = CallId { slot, generation: self.wires[slot as usize].generation };
        Some((id, call.lanes.as_deref_mut()?))
    }

    /// Every call with streams.
    pub(crate) fn all_streaming(&self) -> Vec<CallKey> {
        let streams = (0u32..).zip(&self.slots).filter(|(_, call)| call.lanes.is_some());
        streams.map(|(index, call)| CallKey::new(index, call.generation)).collect()
    }

    /// Adds a local call that has ended.
    pub(crate) fn insert_done(&mut self, method: &'static Method, outcome: Outcome, reply: Reply) -> CallKey {
        let index = self.vacant();
        let (key, call) = self.occupy(index, method, (Time::NEVER, Time::NEVER));
        call.reply = reply;
        call.outcome = Some(outcome);
        call.state = State::Done;
        self.untaken += 1;
        key
    }

    /// The first that waited can never leave.
    pub(crate) fn fail_first(&mut self, outcome: Outcome) {
        if let Some(index) = self.waiting.pop_front() {
            self.finish(index, outcome);
        }
    }

    #[inline]
    fn free_wire(&mut self, slot: u32) {
        self.wires[slot as usize].free();
        self.free_wires[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// An answer for `id` arrived: its call, whose slot in the window is free now. `None`: it ended before.
    #[inline]
    pub(crate) fn answered(&mut self, id: CallId) -> Option<u32> {
        let wire = self.wires.get(id.slot as usize)?;
        let index = wire.call;
        if wire.generation != id.generation || index == NOBODY {
            return None;
        }
        self.free_wire(id.slot);
        Some(index)
    }

    /// Ends the call of `key` by reading its answer, if `id` is how it left and the worker's own thread waits for nothing else.
    #[inline(always)]
    pub(crate) fn end_by(&mut self, key: CallKey, id: CallId, read: impl FnOnce()) -> bool {
        let (index, slot) = (key.index() as usize, id.slot as usize);
        let (Some(wire), Some(call)) = (self.wires.get_mut(slot), self.slots.get_mut(index)) else {
            return false;
        };
        if wire.call != key.index()
            || wire.generation != id.generation
            || !matches!(call.reply, Reply::Local)
            || call.loan.is_some()
            || call.lanes.is_some()
        {
            return false;
        }
        read();
        wire.free();
        call.free();
        self.free_wires[slot / 64] |= 1 << (slot % 64);
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

    /// Ends a call with the bytes of its answer: tells whoever waits, or keeps them for the worker's own thread.
    #[inline]
    pub(crate) fn finish_bytes(&mut self, index: u32, is_error: bool, payload: &[u8], copies: &Counter) {
        let call = &mut self.slots[index as usize];
        copied::into_buffer(&mut call.body, payload, copies);
        if call.reply.is_taken() {
            call.is_error = is_error;
            call.state = State::Done;
            self.untaken += 1;
            if call.loan.is_some() || call.lanes.is_some() {
                (call.loan, call.lanes) = (None, None);
            }
            call.reply.wake();
            return;
        }
        let body = std::mem::take(&mut call.body);
        self.finish(index, Outcome::Answered { is_error, body, bulk: None });
    }

    /// Ends a call: tells whoever waits, or keeps the outcome for the worker's own thread.
    pub(crate) fn finish(&mut self, index: u32, outcome: Outcome) {
        let call = &mut self.slots[index as usize];
        (call.loan, call.lanes) = (None, None);
        match call.reply.take() {
            Reply::Cell(responder) => {
                self.release(index);
                responder.complete(outcome);
            }
            reply @ (Reply::Local | Reply::Task(_) | Reply::Tagged(_)) => {
                call.reply = reply;
                call.outcome = Some(outcome);
                call.state = State::Done;
                self.untaken += 1;
                call.reply.wake();
            }
            Reply::Noted(noted) => {
                let (reply, metadata) = *noted;
                call.reply = reply;
                self.finish(index, Outcome::Noted(Box::new((outcome, metadata))));
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

    /// The bytes that a local call came to, once. `spare` takes their place.
    #[inline]
    pub(crate) fn take(&mut self, key: CallKey, spare: &Cell<Vec<u8>>) -> Option<Taken> {
        if self.untaken == 0 { None } else { self.take_done(key, spare) }
    }

    fn take_done(&mut self, key: CallKey, spare: &Cell<Vec<u8>>) -> Option<Taken> {
        let call = self.slots.get_mut(key.index() as usize)?;
        if call.generation != key.generation() || call.state != State::Done {
            return None;
        }
        if call.outcome.is_some() {
            return Some(Taken::Other);
        }
        let taken = Taken::Bytes(call.is_error, std::mem::replace(&mut call.body, spare.take()));
        self.untaken -= 1;
        self.release(key.index());
        Some(taken)
    }

    /// What a local call came to, once.
    #[cold]
    pub(crate) fn take_outcome(&mut self, key: CallKey) -> Option<Outcome> {
        match self.take(key, &Cell::default())? {
            Taken::Bytes(is_error, body) => Some(Outcome::Answered { is_error, body, bulk: None }),
            Taken::Other => {
                let outcome = self.slots[key.index() as usize].outcome.take();
                self.untaken -= 1;
                self.release(key.index());
                outcome
            }
        }
    }

    /// Takes a call out of wherever it is, before it is finished by hand. A posted one leaves its slot of the window
    /// taken until [`Calls::cancel_left`]. Returns how far it was.
    pub(crate) fn withdraw(&mut self, index: u32) -> State {
        let state = std::mem::replace(&mut self.slots[index as usize].state, State::Waiting);
        match state {
            State::Waiting => self.waiting.retain(|waiting| *waiting != index),
            State::Posted(slot) => {
                let wire = &mut self.wires[slot as usize];
                wire.call = NOBODY;
                self.cancels.push_back(CallId { slot, generation: wire.generation });
            }
            State::Free | State::Pulling | State::Done => {}
        }
        state
    }

    /// Ends a call that nobody waits for. Returns how far it was, for who has to clean up behind it.
    pub(crate) fn forget(&mut self, key: CallKey) -> Option<State> {
        let index = self.find(key)?;
        let state = self.withdraw(index);
        let call = &mut self.slots[index as usize];
        (call.loan, call.lanes) = (None, None);
        call.outcome = None;
        if let Some(responder) = call.reply.take().into_responder() {
            responder.defuse();
        }
        self.untaken -= usize::from(state == State::Done);
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
            self.free_wire(id.slot);
        }
    }

    /// The next call whose deadline has passed. `None`: no more, and the next deadline is known again.
    pub(crate) fn poll_expired(&mut self, now: Time) -> Option<u32> {
        if now < self.next_deadline {
            return None;
        }
        let mut next = Time::NEVER;
        for (index, call) in (0u32..).zip(&self.slots) {
            if matches!(call.state, State::Free | State::Done) {
                continue;
            }
            if call.deadline <= now {
                return Some(index);
            }
            next = next.min(call.deadline);
        }
        self.next_deadline = next;
        None
    }

    /// Any call that lives: a closing connection ends them one by one.
    pub(crate) fn any_live(&self) -> Option<u32> {
        let lives = |call: &Call| !matches!(call.state, State::Free | State::Done);
        self.slots.iter().position(lives).and_then(|index| u32::try_from(index).ok())
    }

    /// Calls whose bulk waits for room in the device's queue.
    pub(crate) fn first_unpulled(&self) -> Option<u32> {
        let waits = |call: &Call| call.state == State::Pulling && call.offer.is_some();
        self.slots.iter().position(waits).and_then(|index| u32::try_from(index).ok())
    }

    /// Whether a local outcome was not taken yet.
    pub(crate) const fn has_untaken(&self) -> bool {
        self.untaken > 0
    }
}
