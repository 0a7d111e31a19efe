//! The one clock of test and floors, and the one patience.

use std::time::{Duration, Instant};

/// A reading of the monotonic clock; no system call where the kernel lets programs read the time stamp counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp(Instant);

impl Stamp {
    /// Now.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// From `earlier` to here; 0 when it is not earlier.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// As [`Stamp::since`], in nanoseconds.
    #[inline]
    #[must_use]
    pub fn nanos_since(self, earlier: Self) -> u64 {
        u64::try_from(self.since(earlier).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What whoever waits does with the core between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relax {
    /// Keeps it: both sides have one of their own.
    Spin,
    /// Offers it: both sides share one.
    Yield,
}

impl Relax {
    /// The way for these two cores.
    #[must_use]
    pub fn for_cores(one: usize, other: usize) -> Self {
        if one == other { Self::Yield } else { Self::Spin }
    }

    /// Does it.
    #[inline]
    pub fn relax(self) {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
        }
    }
}

/// How long an answer is waited for.
#[derive(Debug)]
pub struct Patience {
    relax: Relax,
    since: Option<Stamp>,
}

/// Longer than any scheduler keeps a process waiting, shorter than a person waits.
pub const PATIENCE: Duration = Duration::from_secs(10);

impl Patience {
    /// A new wait; the clock is read only when it lasts.
    #[inline]
    #[must_use]
    pub const fn new(relax: Relax) -> Self {
        Self { relax, since: None }
    }

    /// Whether to go on waiting. Called now and then, not at every look.
    pub fn go_on(&mut self) -> bool {
        self.relax.relax();
        let now = Stamp::now();
        now.since(*self.since.get_or_insert(now)) < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards() {
        let first = Stamp::now();
        let second = Stamp::now();
        assert!(second >= first);
        assert_eq!(first.nanos_since(first), 0);
    }

    #[test]
    fn shared_cores_are_yielded() {
        assert_eq!(Relax::for_cores(0, 0), Relax::Yield);
        assert_eq!(Relax::for_cores(0, 1), Relax::Spin);
        assert!(Patience::new(Relax::Spin).go_on());
    }
}
