//! The callee's table of one connection: what runs in each slot of the caller's window.

use std::{collections::VecDeque, time::Duration};

use gimmal_engine::{
    RemoteBulk,
    transport::{Loan, Time},
};

use crate::{
    admission::Admitted,
    frame::{Flags, ResponseHead},
    id::CallId,
    service::Entry,
    stream::Lanes,
    task::BoxTask,
};

/// An answer that waits for room.
pub(super) enum Answered {
    /// A handler that is done, with what it lends.
    Task(BoxTask, Option<Loan>),
    /// Bytes.
    Bytes(ResponseHead, Vec<u8>),
    /// What a message does not hold; the loan is there until it has left.
    Large(ResponseHead, Option<Loan>),
}

impl Answered {
    /// Whether it is an answer, not the method's error or a status.
    pub(super) fn is_good(&mut self) -> bool {
        match self {
            Self::Task(task, _) => !task.as_mut().is_error(),
            Self::Bytes(head, _) | Self::Large(head, _) => *head == ResponseHead::Ok,
        }
    }

    /// What is copied when it leaves.
    pub(super) fn payload(&self) -> &[u8] {
        match self {
            Self::Bytes(ResponseHead::Ok | ResponseHead::App, bytes) => bytes,
            _ => &[],
        }
    }
}

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Task(_, loan) => write!(f, "Task({loan:?})"),
            Self::Large(head, loan) => write!(f, "{head:?}({loan:?})"),
            Self::Bytes(head, bytes) => write!(f, "{head:?}({} bytes)", bytes.len()),
        }
    }
}

#[derive(Debug)]
pub(super) enum State {
    Free,
    /// Its bulk is on the way; the offer is here while the device has no room for the pull.
    Pulling {
        entry: Entry,
        arguments: Vec<u8>,
        offer: Option<RemoteBulk>,
        /// Of its request.
        flags: Flags,
        /// What the service's layers made of it.
        admitted: Option<Admitted>,
    },
    /// A pending handler, by its place among the worker's tasks.
    Running(u32),
    /// Done; its streams have something to send before.
    Ended(Answered),
    /// Done, not sent.
    Answered(Answered),
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// Unique on the worker: tells this use of the slot from all others.
    pub(super) mark: u64,
    pub(super) deadline: Time,
    /// The reading of the clock that the deadline counts from, which may have been an old one.
    began: Time,
    pub(super) state: State,
    pub(super) lanes: Option<Box<Lanes>>,
}

impl Slot {
    /// Whether its answer waits for room, since it was marked so.
    fn waits_as(&self, mark: u64) -> bool {
        self.mark == mark && matches!(self.state, State::Answered(_))
    }
}

/// The calls that one peer has in flight at this server.
#[derive(Debug)]
pub(super) struct Serving {
    slots: Vec<Slot>,
    /// Slots whose answers wait for room, in order; one whose mark is gone was cancelled.
    answers: VecDeque<(u32, u64)>,
    /// Refusals that wait for room; they need no slot.
    refusals: VecDeque<(CallId, ResponseHead, String)>,
    /// A pull found no room, and its request may still wait for some.
    has_unpulled: bool,
    next_deadline: Time,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            answers: VecDeque::new(),
            refusals: VecDeque::new(),
            has_unpulled: false,
            next_deadline: Time::NEVER,
        }
    }
}

/// Cancelled calls that may lie in a queue of calls that wait for room, beyond twice as many as can wait.
pub(super) const CANCELLED: usize = 64;

/// Refusals that may wait: as many as the largest window. An honest caller never has more calls in flight.
const REFUSALS: usize = crate::config::WINDOW_MAX;

impl Serving {
    pub(super) const fn next_deadline(&self) -> Time {
        self.next_deadline
    }

    pub(super) fn is_taken(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| !matches!(slot.state, State::Free))
    }

    /// Puts `state` into the slot of `id`, which is free and below the limit.
    pub(super) fn put(&mut self, id: CallId, mark: u64, (began, deadline): (Time, Time), state: State) {
        let index = id.slot as usize;
        while self.slots.len() <= index {
            self.slots.push(Slot {
                generation: 0,
                mark: 0,
                deadline: Time::NEVER,
                began: Time::NEVER,
                state: State::Free,
                lanes: None,
            });
        }
        let waits = matches!(state, State::Answered(_));
        self.slots[index] = Slot { generation: id.generation, mark, deadline, began, state, lanes: None };
        self.next_deadline = self.next_deadline.min(deadline);
        if waits {
            self.answer_waits(id.slot, mark);
        }
    }

    /// Puts an answer behind the others that wait. A caller that reads none, and cancels its calls, gets no place for each of them.
    #[cold]
    fn answer_waits(&mut self, slot: u32, mark: u64) {
        self.answers.push_back((slot, mark));
        let Self { slots, answers, .. } = self;
        if answers.len() > 2 * slots.len() + CANCELLED {
            answers.retain(|(slot, mark)| slots.get(*slot as usize).is_some_and(|slot| slot.waits_as(*mark)));
        }
    }

    /// See [`Calls::put_off`](crate::calls::Calls::put_off).
    pub(super) fn put_off(&mut self, began: Time, by: Duration) {
        for slot in self.slots.iter_mut().filter(|slot| slot.began == began) {
            slot.deadline = slot.deadline.plus(by);
            slot.began = Time::NEVER;
        }
    }

    /// The slot of `id` while it is served.
    pub(super) fn find(&mut self, id: CallId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation && !matches!(slot.state, State::Free)).then_some(slot)
    }

    /// Slots that have been used: as many calls can be in flight without more memory.
    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slot(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)
    }

    /// Frees a slot; what it was doing is the caller's.
    pub(super) fn free(&mut self, slot: u32) -> State {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return State::Free };
        slot.lanes = None;
        std::mem::replace(&mut slot.state, State::Free)
    }

    /// The first answer that waits, with its id; cancelled ones are skipped.
    pub(super) fn first_answer(&mut self) -> Option<(CallId, &mut Answered)> {
        let slot = loop {
            let &(slot, mark) = self.answers.front()?;
            if self.slots.get(slot as usize)?.waits_as(mark) {
                break slot;
            }
            self.answers.pop_front();
        };
        let here = self.slots.get_mut(slot as usize)?;
        let State::Answered(answered) = &mut here.state else { return None };
        Some((CallId { slot, generation: here.generation }, answered))
    }

    /// The first answer left: its slot is free.
    pub(super) fn answer_left(&mut self) {
        if let Some((slot, _)) = self.answers.pop_front() {
            self.free(slot);
        }
    }

    /// Keeps a refusal until there is room. `false`: too many wait, which no honest caller causes.
    pub(super) fn refuse_later(&mut self, id: CallId, head: ResponseHead, text: String) -> bool {
        let room = self.refusals.len() < REFUSALS;
        if room {
            self.refusals.push_back((id, head, text));
        }
        room
    }

    pub(super) fn first_refusal(&self) -> Option<&(CallId, ResponseHead, String)> {
        self.refusals.front()
    }

    pub(super) fn refusal_left(&mut self) {
        self.refusals.pop_front();
    }

    /// The first slot from `from` on whose deadline has passed while it runs. One pass begins with 0 and goes on behind the slot that
    /// was found; when it ends with `None`, the next deadline is known again.
    pub(super) fn poll_expired(&mut self, now: Time, from: u32) -> Option<CallId> {
        if from == 0 {
            if now < self.next_deadline {
                return None;
            }
            self.next_deadline = Time::NEVER;
        }
        for (index, slot) in (from..).zip(self.slots.iter().skip(from as usize)) {
            if !matches!(slot.state, State::Running(_) | State::Pulling { .. } | State::Ended(_)) {
                continue;
            }
            if slot.deadline <= now {
                return Some(CallId { slot: index, generation: slot.generation });
            }
            self.next_deadline = self.next_deadline.min(slot.deadline);
        }
        None
    }

    /// Keeps the offer of a slot that is [`State::Pulling`] until there is room for the pull.
    pub(super) fn pull_later(&mut self, slot: u32, bulk: RemoteBulk) {
        if let Some(State::Pulling { offer, .. }) = self.slot(slot).map(|slot| &mut slot.state) {
            *offer = Some(bulk);
            self.has_unpulled = true;
        }
    }

    /// The first slot whose bulk waits for room in the device's queue. While none does, no slot is looked at.
    pub(super) fn first_unpulled(&mut self) -> Option<u32> {
        if !self.has_unpulled {
            return None;
        }
        let waits = |slot: &Slot| matches!(slot.state, State::Pulling { offer: Some(_), .. });
        let first = self.slots.iter().position(waits).and_then(|index| u32::try_from(index).ok());
        self.has_unpulled = first.is_some();
        first
    }

    /// Frees every slot, for a connection that is gone.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (u32, State)> {
        let slots = (0u32..).zip(&mut self.slots);
        slots
            .map(|(index, slot)| {
                slot.lanes = None;
                (index, std::mem::replace(&mut slot.state, State::Free))
            })
            .filter(|(_, state)| !matches!(state, State::Free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Serving {
        pub(in crate::node) fn answers_waiting(&self) -> usize {
            self.answers.len()
        }
    }

    const fn id(slot: u32) -> CallId {
        CallId { slot, generation: 0 }
    }

    #[test]
    fn cancelled_answers_take_no_memory_and_the_others_stay_in_order() {
        let (mut serving, times) = (Serving::default(), (Time(0), Time::NEVER));
        let answered = || State::Answered(Answered::Bytes(ResponseHead::Ok, Vec::new()));
        serving.put(id(2), 1, times, answered());
        for mark in 2..100_000 {
            serving.put(id(1), mark, times, answered());
            if mark == 50_000 {
                serving.put(id(0), 1_000_000, times, answered());
            }
            serving.free(1);
        }
        assert!(serving.answers.len() < 200, "{} wait", serving.answers.len());
        for slot in [2, 0] {
            assert_eq!(serving.first_answer().map(|(id, _)| id.slot), Some(slot));
            serving.answer_left();
        }
        assert!(serving.first_answer().is_none() && serving.answers.is_empty());
    }
}
