//! What a worker did, readable from other threads without slowing it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Counters of one worker. Written by it alone, with plain stores; each is exact, together they may be a turn apart.
#[derive(Debug, Default)]
pub struct Duty {
    turns: AtomicU64,
    empty_turns: AtomicU64,
    work: AtomicU64,
    sleeps: AtomicU64,
    longest_turn_ns: AtomicU64,
    connections_opened: AtomicU64,
    connections_closed: AtomicU64,
    held: AtomicU64,
    held_copied: AtomicU64,
    /// Not the worker's alone: held by each connection, see [`Duty::count`].
    counted: Arc<()>,
}

/// What one worker did since it started, counted by itself. Each number is exact, together they may be a turn apart. `tuning.md`
/// says what follows from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DutySnapshot {
    /// Turns taken.
    pub turns: u64,
    /// Turns that found nothing.
    pub empty_turns: u64,
    /// Events and commands handled.
    pub work: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// The longest turn that found something, with the empty ones since the clock was read: a few, of a device up to 1,024.
    pub longest_turn: Duration,
    /// Connections that are open, or accepted and in their handshake.
    pub connections: usize,
    /// Connections that opened.
    pub connections_opened: u64,
    /// Connections that closed after they had opened.
    pub connections_closed: u64,
    /// Frames held where they landed.
    pub held: u64,
    /// Frames copied because they were held: at once, or later, when they kept too much of the ring from the peer.
    pub held_copied: u64,
}

#[inline]
fn add(counter: &AtomicU64, value: u64) {
    // One writer: load and store need no read-modify-write.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

impl Duty {
    #[inline]
    pub(crate) fn turned(&self, work: usize) {
        add(&self.turns, 1);
        if work == 0 {
            add(&self.empty_turns, 1);
        } else {
            add(&self.work, work as u64);
        }
    }

    pub(crate) fn took(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if ns > self.longest_turn_ns.load(Ordering::Relaxed) {
            self.longest_turn_ns.store(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn slept(&self) {
        add(&self.sleeps, 1);
    }

    pub(crate) fn opened(&self) {
        add(&self.connections_opened, 1);
    }

    pub(crate) fn closed(&self) {
        add(&self.connections_closed, 1);
    }

    /// Counts a connection until it is dropped: handed on from the handshake, so that it is counted once at any moment.
    pub(crate) fn count(&self) -> Arc<()> {
        Arc::clone(&self.counted)
    }

    /// Connections that are open, or accepted and in their handshake.
    pub(crate) fn counted(&self) -> usize {
        Arc::strong_count(&self.counted) - 1
    }

    pub(crate) fn held(&self) {
        add(&self.held, 1);
    }

    pub(crate) fn held_copied(&self, frames: u64) {
        add(&self.held_copied, frames);
    }

    /// All of them.
    #[must_use]
    pub fn snapshot(&self) -> DutySnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DutySnapshot {
            turns: read(&self.turns),
            empty_turns: read(&self.empty_turns),
            work: read(&self.work),
            sleeps: read(&self.sleeps),
            longest_turn: Duration::from_nanos(read(&self.longest_turn_ns)),
            connections: self.counted(),
            connections_opened: read(&self.connections_opened),
            connections_closed: read(&self.connections_closed),
            held: read(&self.held),
            held_copied: read(&self.held_copied),
        }
    }
}
