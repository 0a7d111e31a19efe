//! Waiting for descriptors, with an end.
//!
//! `Duration::MAX` is how people write "no limit": such a deadline never comes, and no sum here can panic.
#![expect(clippy::disallowed_types, reason = "every sum of a moment and a span here is checked")]

use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// The end of a wait, and the limit that it was made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    /// `None`: beyond the clock's range.
    at: Option<Instant>,
}

impl Deadline {
    /// The moment `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { timeout, at: Instant::now().checked_add(timeout) }
    }

    /// The limit that it was made from.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long it is until then; zero when it has passed.
    pub(crate) fn left(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.left().is_zero()
    }
}

/// Tells how long something took.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits until one of `fds` is readable; `false` at the deadline.
///
/// # Errors
/// errno of `poll(2)`.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], deadline: &Deadline) -> Result<bool, i32> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    loop {
        // Rounded up, so that the deadline has passed when nothing came.
        let left = deadline.left().saturating_add(Duration::from_micros(999));
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_without_end_never_comes() {
        let never = Deadline::after(Duration::MAX);
        assert_eq!((never.left(), never.timeout()), (Duration::MAX, Duration::MAX));
        assert!(!never.has_passed() && Deadline::after(Duration::ZERO).has_passed());
    }
}
