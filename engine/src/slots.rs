//! How many accepted connections may be in their handshake at once, and who goes when there are more.
//!
//! A client that connects and then stays silent costs a server a queue pair and its memory until the handshake's
//! deadline. So only so many may be half open: one more waits in the listener's backlog until another is done, or until
//! the oldest is clearly late; then it is let in, and its worker closes one for it. Nobody else is let in before that.
//! A worker that is blocked closes none, so what waits for it to be taken is not late.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gimmal_transport::Instant;

/// An honest handshake is over long before, even on a busy host.
const LATE: Duration = Duration::from_millis(250);

/// Between two looks whether there is room.
const LOOK: Duration = Duration::from_millis(1);

/// Handshakes of one acceptor.
#[derive(Debug)]
pub(crate) struct Slots {
    max: usize,
    begun: Mutex<Begun>,
}

#[derive(Debug, Default)]
struct Begun {
    next: u64,
    at: BTreeMap<u64, Handshake>,
}

#[derive(Debug)]
struct Handshake {
    begun: Instant,
    /// Its worker has it, and can close it.
    is_taken: bool,
}

/// One handshake; over when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u64,
    slots: Arc<Slots>,
}

impl Slots {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, begun: Mutex::default() })
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the next accept should wait at least before it asks again; `None`: it may go on.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let begun = self.begun();
        if begun.at.len() < self.max {
            return None;
        }
        let oldest = begun.at.values().find(|handshake| handshake.is_taken);
        let left = oldest.map_or(LATE, |oldest| LATE.saturating_sub(now - oldest.begun));
        // One beyond them has one closed.
        let may_go_on = left.is_zero() && begun.at.len() == self.max;
        (!may_go_on).then_some(LOOK)
    }

    /// A handshake begins.
    pub(crate) fn begin(self: &Arc<Self>, now: Instant) -> Slot {
        let mut begun = self.begun();
        begun.next += 1;
        let number = begun.next;
        begun.at.insert(number, Handshake { begun: now, is_taken: false });
        Slot { number, slots: Arc::clone(self) }
    }
}

impl Slot {
    /// Orders handshakes by their age.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Its worker has it.
    pub(crate) fn take(&self) {
        if let Some(handshake) = self.slots.begun().at.get_mut(&self.number) {
            handshake.is_taken = true;
        }
    }

    /// Whether there are more than there may be.
    pub(crate) fn is_over(&self) -> bool {
        self.slots.begun().at.len() > self.slots.max
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.begun().at.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R10: full means wait, but only for as long as the oldest is not late.
    #[test]
    fn r10_accepting_waits_for_a_slot_or_for_a_late_one() {
        let slots = Slots::new(2);
        let now = Instant::now();
        assert_eq!(slots.wait(now), None);
        let first = slots.begin(now);
        let second = slots.begin(now + Duration::from_millis(100));
        assert_eq!(slots.wait(now + LATE), Some(LOOK), "its worker has not taken the first");
        first.take();
        second.take();
        assert_eq!(slots.wait(now + Duration::from_millis(100)), Some(Duration::from_millis(1)));
        assert_eq!(slots.wait(now + LATE), None);
        let third = slots.begin(now + LATE);
        assert!(third.is_over() && first.number() < second.number());
        assert_eq!(slots.wait(now + LATE + LATE), Some(LOOK), "one is let in for each that goes");
        drop(first);
        assert!(!third.is_over());
        assert!(slots.wait(now + LATE).is_some());
        drop(second);
        assert_eq!(slots.wait(now + LATE), None);
    }
}
