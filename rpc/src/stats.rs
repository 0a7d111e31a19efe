//! Counters of calls, one set for each worker, read from other threads.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one worker. It alone writes them, with plain stores.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// What was counted so far. Each number is exact; together they may be a turn apart.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn add_to(&self, stats: &mut Stats) { $(stats.$name += self.$name.get();)* }
        }
    };
}

counters! {
    /// Calls started here.
    calls,
    /// Requests that left.
    posted,
    /// One-way requests that left.
    told,
    /// Calls that ended with an answer or the method's error.
    answered,
    /// Calls that ended otherwise.
    failed,
    /// Calls whose deadline passed here.
    expired,
    /// Calls given up by dropping them.
    cancelled,
    /// Answers that came after their call had ended; dropped.
    late_answers,
    /// Requests that arrived.
    requests,
    /// Requests refused before dispatch: overload, unknown, mismatch, expired, draining.
    refused,
    /// Handlers that began.
    started,
    /// Answers that left, of every outcome.
    answers,
    /// Handlers dropped because the caller cancelled, or was gone.
    dropped,
    /// Handlers dropped at their deadline.
    overdue,
    /// Handlers that panicked.
    panics,
    /// Calls being served now: running, or answered and waiting for room.
    serving,
    /// Answers that had to wait for credit.
    blocked_answers,
    /// Requests and answers that left as bulk by themselves, because a message does not hold them.
    large,
    /// Bytes of those that were copied beside being encoded and decoded: answers of raw methods are, once.
    large_copied_bytes,
}

/// One number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn add(&self, by: u64) {
        // One writer: no read-modify-write is needed.
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    #[inline]
    pub(crate) fn decrement(&self) {
        self.add(u64::MAX);
    }
}
