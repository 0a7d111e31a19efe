//! Calls that wait for room, in order. One that ends meanwhile stays in the queue until it is met there, so that ending it
//! costs no look at the others.

use std::collections::VecDeque;

use super::CallKey;

/// Ended calls that may lie in the queue beyond the number of those that wait.
const ENDED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: VecDeque<CallKey>,
    /// How many of them wait.
    live: usize,
}

impl Waiting {
    pub(super) const fn len(&self) -> usize {
        self.live
    }

    pub(super) fn push(&mut self, key: CallKey) {
        self.queue.push_back(key);
        self.live += 1;
    }

    /// The first that waits.
    pub(super) fn first(&mut self, waits: impl Fn(CallKey) -> bool) -> Option<u32> {
        while self.live > 0 {
            let first = *self.queue.front()?;
            if waits(first) {
                return Some(first.index());
            }
            self.queue.pop_front();
        }
        None
    }

    /// Takes the first that waits.
    pub(super) fn pop(&mut self, waits: impl Fn(CallKey) -> bool) -> Option<u32> {
        let first = self.first(waits)?;
        self.queue.pop_front();
        self.live -= 1;
        Some(first)
    }

    /// One of them does not wait any more; `waits` says so.
    pub(super) fn ended(&mut self, waits: impl Fn(CallKey) -> bool) {
        self.live -= 1;
        if self.queue.len() > 2 * self.live + ENDED {
            self.queue.retain(|key| waits(*key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_end_while_they_wait_leave_the_others_in_order() {
        let mut waiting = Waiting::default();
        (0..1000).for_each(|index| waiting.push(CallKey::new(index, 1)));
        let fourth = |key: CallKey| key.index() % 4 == 1;
        for _ in 0..750 {
            waiting.ended(fourth);
        }
        assert!(waiting.queue.len() <= 2 * 250 + ENDED, "what has ended piles up: {}", waiting.queue.len());
        assert_eq!(waiting.len(), 250);
        assert_eq!(
            (waiting.first(fourth), waiting.pop(fourth), waiting.pop(fourth)),
            (Some(1), Some(1), Some(5))
        );
        let rest: Vec<_> = std::iter::from_fn(|| waiting.pop(fourth)).collect();
        assert_eq!((rest.len(), rest[0], waiting.len()), (248, 9, 0));
    }
}
