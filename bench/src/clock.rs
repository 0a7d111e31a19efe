//! The one clock of test and floors, and the one patience.

use std::{os::fd::BorrowedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    time::{ClockId, clock_gettime},
};

/// A reading of the monotonic clock, nanoseconds; no system call where the kernel lets programs read the time stamp
/// counter. Read
/// without the standard library, by fewer calls: with devices that are emulated they are 1 % of a round trip.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp(u64);

impl Stamp {
    /// Now.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        // Neither is ever negative.
        Self(tv_sec.cast_unsigned() * 1_000_000_000 + tv_nsec.cast_unsigned())
    }

    /// From `earlier` to here; 0 when it is not earlier.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// This much later.
    #[inline]
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// As [`Stamp::since`], in nanoseconds.
    #[inline]
    #[must_use]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a waiting thread uses the core between two looks.
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
pub struct Patience<'a> {
    relax: Relax,
    since: Option<Stamp>,
    /// Readable once the other process has ended, and when it was looked at last.
    watch: Option<(BorrowedFd<'a>, Stamp)>,
}

/// Longer than any scheduler keeps a process waiting, shorter than a person waits.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// From one look at the other process to the next.
const WATCH: Duration = Duration::from_millis(50);

impl<'a> Patience<'a> {
    /// A new wait; the clock is read only when it lasts.
    #[inline]
    #[must_use]
    pub const fn new(relax: Relax) -> Self {
        Self { relax, since: None, watch: None }
    }

    /// As [`Patience::new`]; ends soon after the process behind `process`, a pidfd, did.
    #[inline]
    #[must_use]
    pub fn watching(relax: Relax, process: Option<BorrowedFd<'a>>, now: Stamp) -> Self {
        Self { relax, since: None, watch: process.map(|process| (process, now)) }
    }

    /// Whether to go on waiting. Called now and then, not at every look.
    pub fn go_on(&mut self) -> bool {
        self.relax.relax();
        let now = Stamp::now();
        if let Some((process, last)) = &mut self.watch
            && now.since(*last) > WATCH
        {
            *last = now;
            if has_ended(*process) {
                return false;
            }
        }
        now.since(*self.since.get_or_insert(now)) < PATIENCE
    }
}

/// Whether the process behind a pidfd has ended.
#[must_use]
pub fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
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

    #[test]
    fn nobody_waits_for_a_process_that_ended() {
        use std::os::fd::AsFd as _;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        assert!(!has_ended(process.as_fd()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(process.as_fd()));
        let mut patience = Patience::watching(Relax::Yield, Some(process.as_fd()), Stamp::now());
        let started = Stamp::now();
        while patience.go_on() {}
        assert!(Stamp::now().since(started) < PATIENCE / 2);
    }
}
