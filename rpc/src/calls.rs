//! The caller's table of calls on one connection: pure, no port and no clock in it.
//!
//! ```text
//!   insert ─► Waiting ─post─► Posted ─answer─► (Pulling ─►) finished: told, or kept as Done until taken
//!                │               │ cancel, expire: the slot of the window stays taken until the cancel has left
//! ```
//! Invariants: at most `window` wire slots are taken; a wire slot is used again only with a new generation; a key or
//! an id with an old generation finds nothing.

use std::collections::VecDeque;

use gimmal_engine::{
    RemoteBulk,
    transport::{Loan, Time},
};

use crate::{
    cell::{Outcome, Responder},
    id::CallId,
    method::Method,
};

/// How the end of a call is told.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To another thread, or another task.
    Cell(Responder),
    /// Kept until the thread of the worker itself takes it.
    Local,
}

/// A call of the table, waiting ones included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl CallKey {
    pub(crate) const fn bits(self) -> u64 {
        self.index as u64 | (self.generation as u64) << 32
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { index: (bits & 0xffff_ffff) as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(crate) enum State {
    Free,
    /// In the queue, composed.
    Waiting,
    /// The request left in this slot of the window.
    Posted(u32),
    /// The answer is here, its bulk on the way. The offer is here while the device has no room for the pull.
    Pulling {
        is_error: bool,
        offer: Option<RemoteBulk>,
    },
    /// Ended, for the worker's own thread to take.
    Done(Outcome),
}

#[derive(Debug)]
pub(crate) struct Call {
    generation: u32,
    pub(crate) state: State,
    pub(crate) deadline: Time,
    pub(crate) method: Option<&'static Method>,
    /// The composed request while it waits; the answer's bytes later.
    pub(crate) body: Vec<u8>,
    pub(crate) loan: Option<Loan>,
    reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug)]
struct Wire {
    generation: u32,
    call: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Vec<Call>,
    free: Vec<u32>,
    wires: Vec<Wire>,
    taken: Vec<u64>,
    window: usize,
    waiting_max: usize,
    waiting: VecDeque<u32>,
    /// Cancels that have not left; their wire slots are taken until then.
    cancels: VecDeque<CallId>,
    next_deadline: Time,
}

impl Calls {
    pub(crate) fn new(window: usize, waiting_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            wires: vec![Wire { generation: 0, call: None }; window],
            taken: vec![0; window.div_ceil(64)],
            window,
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

    pub(crate) fn is_queued(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The lowest free slot of the window, as the next request there would be called.
    pub(crate) fn next_wire(&self) -> Option<CallId> {
        let (word, bits) = self.taken.iter().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let slot = word * 64 + bits.trailing_ones() as usize;
        let wire = self.wires.get(slot).filter(|_| slot < self.window)?;
        Some(CallId { slot: u32::try_from(slot).ok()?, generation: wire.generation })
    }

    /// Adds a call that waits (`None`) or was just posted as `id`.
    pub(crate) fn insert(
        &mut self,
        id: Option<CallId>,
        method: &'static Method,
        deadline: Time,
        body: Vec<u8>,
        loan: Option<Loan>,
        reply: Reply,
    ) -> CallKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Call {
                generation: 0,
                state: State::Free,
                deadline: Time::NEVER,
                method: None,
                body: Vec::new(),
                loan: None,
                reply: None,
            });
            u32::try_from(self.slots.len() - 1).expect("window and waiting_max bound the table")
        });
        let call = &mut self.slots[index as usize];
        call.deadline = deadline;
        call.method = Some(method);
        call.body = body;
        call.loan = loan;
        let key = CallKey { index, generation: call.generation };
        if let Reply::Cell(responder) = &reply {
            responder.set_key(key.bits());
        }
        call.reply = Some(reply);
        self.next_deadline = self.next_deadline.min(deadline);
        match id {
            Some(id) => self.post(index, id),
            None => {
                call.state = State::Waiting;
                self.waiting.push_back(index);
            }
        }
        key
    }

    /// The call left as `id`, which is what [`Calls::next_wire`] said.
    fn post(&mut self, index: u32, id: CallId) {
        self.wires[id.slot as usize].call = Some(index);
        self.taken[id.slot as usize / 64] |= 1 << (id.slot % 64);
        self.slots[index as usize].state = State::Posted(id.slot);
    }

    /// The first that waits.
    pub(crate) fn first_waiting(&mut self) -> Option<&mut Call> {
        let index = *self.waiting.front()?;
        Some(&mut self.slots[index as usize])
    }

    /// The first that waited left as `id`.
    pub(crate) fn post_first(&mut self, id: CallId) {
        if let Some(index) = self.waiting.pop_front() {
            self.post(index, id);
        }
    }

    /// The first that waited can never leave.
    pub(crate) fn fail_first(&mut self, outcome: Outcome) {
        if let Some(index) = self.waiting.pop_front() {
            self.finish(index, outcome);
        }
    }

    fn free_wire(&mut self, slot: u32) {
        let wire = &mut self.wires[slot as usize];
        wire.generation = wire.generation.wrapping_add(1);
        wire.call = None;
        self.taken[slot as usize / 64] &= !(1 << (slot % 64));
    }

    /// An answer for `id` arrived: its call, whose slot in the window is free now. `None`: it ended before.
    pub(crate) fn answered(&mut self, id: CallId) -> Option<u32> {
        let wire = self.wires.get(id.slot as usize).filter(|wire| wire.generation == id.generation)?;
        let index = wire.call?;
        self.free_wire(id.slot);
        Some(index)
    }

    pub(crate) fn call(&mut self, index: u32) -> &mut Call {
        &mut self.slots[index as usize]
    }

    pub(crate) fn key(&self, index: u32) -> CallKey {
        CallKey { index, generation: self.slots[index as usize].generation }
    }

    /// The call of `key` while it lives.
    pub(crate) fn find(&self, key: CallKey) -> Option<u32> {
        let call = self.slots.get(key.index as usize)?;
        (call.generation == key.generation && !matches!(call.state, State::Free)).then_some(key.index)
    }

    /// Whether `key` is the call of `cell`.
    pub(crate) fn belongs(&self, key: CallKey, cell: &std::sync::Arc<crate::cell::CallCell>) -> bool {
        let reply = self.find(key).and_then(|index| self.slots[index as usize].reply.as_ref());
        matches!(reply, Some(Reply::Cell(responder)) if responder.is(cell))
    }

    /// Ends a call: tells whoever waits, or keeps the outcome for the worker's own thread.
    pub(crate) fn finish(&mut self, index: u32, outcome: Outcome) {
        let call = &mut self.slots[index as usize];
        call.loan = None;
        match call.reply.take() {
            Some(Reply::Cell(responder)) => {
                self.release(index);
                responder.complete(outcome);
            }
            Some(Reply::Local) => call.state = State::Done(outcome),
            None => self.release(index),
        }
    }

    fn release(&mut self, index: u32) {
        let call = &mut self.slots[index as usize];
        // 31 bits: the top bit of a pull's token says whose it is.
        call.generation = call.generation.wrapping_add(1) & (u32::MAX >> 1);
        call.state = State::Free;
        call.method = None;
        self.free.push(index);
    }

    /// The outcome of a local call, once.
    pub(crate) fn take(&mut self, key: CallKey) -> Option<Outcome> {
        let index = self.find(key)?;
        if !matches!(self.slots[index as usize].state, State::Done(_)) {
            return None;
        }
        let State::Done(outcome) = std::mem::replace(&mut self.slots[index as usize].state, State::Free)
        else {
            return None;
        };
        self.release(index);
        Some(outcome)
    }

    /// Takes a call out of wherever it is, before it is finished by hand. A posted one leaves its slot of the window
    /// taken until [`Calls::cancel_left`]. Returns how far it was.
    pub(crate) fn withdraw(&mut self, index: u32) -> State {
        let state = std::mem::replace(&mut self.slots[index as usize].state, State::Waiting);
        match &state {
            State::Waiting => self.waiting.retain(|waiting| *waiting != index),
            State::Posted(slot) => {
                let wire = &mut self.wires[*slot as usize];
                wire.call = None;
                self.cancels.push_back(CallId { slot: *slot, generation: wire.generation });
            }
            State::Free | State::Pulling { .. } | State::Done(_) => {}
        }
        state
    }

    /// Ends a call that nobody waits for. Returns how far it was, for who has to clean up behind it.
    pub(crate) fn forget(&mut self, key: CallKey) -> Option<State> {
        let index = self.find(key)?;
        let state = self.withdraw(index);
        let call = &mut self.slots[index as usize];
        call.loan = None;
        if let Some(Reply::Cell(responder)) = call.reply.take() {
            responder.defuse();
        }
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
            if matches!(call.state, State::Free | State::Done(_)) {
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
        let lives = |call: &Call| !matches!(call.state, State::Free | State::Done(_));
        self.slots.iter().position(lives).and_then(|index| u32::try_from(index).ok())
    }

    /// Calls whose bulk waits for room in the device's queue.
    pub(crate) fn first_unpulled(&self) -> Option<u32> {
        let waits = |call: &Call| matches!(call.state, State::Pulling { offer: Some(_), .. });
        self.slots.iter().position(waits).and_then(|index| u32::try_from(index).ok())
    }

    /// Whether a local outcome was not taken yet.
    pub(crate) fn has_untaken(&self) -> bool {
        self.slots.iter().any(|call| matches!(call.state, State::Done(_)))
    }
}
