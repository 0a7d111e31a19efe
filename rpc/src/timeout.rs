//! How long a call may take, as its deadline and its request say it: worked out once where many calls have the same.

use std::time::Duration;

use gimmal_engine::transport::Time;

use crate::frame;

/// A time-out, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timeout {
    /// `u64::MAX`: none.
    ns: u64,
    /// As a request says it.
    us: u32,
}

impl Timeout {
    /// When it is over, from `now` on.
    #[inline]
    pub(crate) const fn after(self, now: Time) -> Time {
        Time(now.0.saturating_add(self.ns))
    }

    /// Microseconds, as [`frame::deadline_us`] has them.
    #[inline]
    pub(crate) const fn us(self) -> u32 {
        self.us
    }

    pub(crate) fn duration(self) -> Option<Duration> {
        (self.ns != u64::MAX).then(|| Duration::from_nanos(self.ns))
    }
}

impl From<Option<Duration>> for Timeout {
    fn from(timeout: Option<Duration>) -> Self {
        let end = timeout.map_or(Time::NEVER, |timeout| Time(0).plus(timeout));
        Self { ns: end.0, us: frame::deadline_us(end, Time(0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_a_deadline_from_now_on_says() {
        let now = Time(12_345);
        for timeout in [0, 1, 999, 1000, 1_000_001, 4_294_000_000_000, 4_295_000_000_000, u64::MAX - 1] {
            let timeout = Duration::from_nanos(timeout);
            let ours = Timeout::from(Some(timeout));
            assert_eq!(ours.after(now), now.plus(timeout));
            assert_eq!(ours.us(), frame::deadline_us(Time(0).plus(timeout), Time(0)));
            assert_eq!(ours.duration(), Some(timeout));
        }
        let never = Timeout::from(None);
        assert_eq!((never.after(now), never.us(), never.duration()), (Time::NEVER, 0, None));
    }
}
