//! Time: what an argument tells, and what the clock of the machine tells.
//!
//! `Duration::MAX` is how people write "no limit", so no sum of a moment and a span may panic. The standard library's
//! `Instant` does; it is named here only, and clippy's `disallowed-types` keeps it out of everything else.
#![expect(clippy::disallowed_types, reason = "the one module that names the standard library's Instant")]

use std::{
    ops::{Add, Sub},
    sync::OnceLock,
    time::{Duration, Instant as Std},
};

/// The moment that every [`Time::now`] of this process counts from.
pub fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Reads the machine's monotonic clock as of its last tick, which is up to 10 ms ago: for spans that are far longer. It costs a fifth
/// of [`Instant::now`].
#[inline]
#[must_use]
pub fn coarse() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::try_from(time).unwrap_or_default()
}

/// Monotonic nanoseconds since a fixed moment, the same for the whole process or for the whole simulated world: workers
/// hand connections to each other, and ports of one world meet in it. The poll thread reads the clock, everything below is
/// told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Reads the process's clock.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self::default().plus(epoch().elapsed())
    }

    /// The moment `span` later; saturates at [`Time::NEVER`].
    #[inline]
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long from `earlier` until here; zero when `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A moment of the machine's monotonic clock, like [`std::time::Instant`], with arithmetic that cannot panic: a moment plus a span
/// that leaves the clock's range is [`Instant::NEVER`].
///
/// ```
/// use std::time::Duration;
///
/// use gimmal_transport::Instant;
///
/// let until = Instant::now() + Duration::from_secs(60);
/// assert!(!until.has_passed() && until.remaining() <= Duration::from_secs(60));
/// assert_eq!(Instant::now() + Duration::MAX, Instant::NEVER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Instant(Moment);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Moment {
    At(Std),
    Never,
}

impl Instant {
    /// A moment that never comes: later than every other one.
    pub const NEVER: Self = Self(Moment::Never);

    /// Returns the present moment.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self(Moment::At(Std::now()))
    }

    /// Returns how long ago this moment was; zero when it is still to come.
    #[inline]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }

    /// Returns how long it is until this moment: zero when it has passed, `Duration::MAX` for [`Instant::NEVER`].
    #[inline]
    #[must_use]
    pub fn remaining(self) -> Duration {
        self - Self::now()
    }

    /// Returns whether this moment has come.
    #[inline]
    #[must_use]
    pub fn has_passed(self) -> bool {
        self <= Self::now()
    }

    /// Returns the moment as the standard library tells it; `None` for [`Instant::NEVER`].
    #[inline]
    #[must_use]
    pub const fn std(self) -> Option<Std> {
        match self.0 {
            Moment::At(at) => Some(at),
            Moment::Never => None,
        }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// The moment `span` later; [`Instant::NEVER`] where the clock's range ends.
    #[inline]
    fn add(self, span: Duration) -> Self {
        Self(self.std().and_then(|at| at.checked_add(span)).map_or(Moment::Never, Moment::At))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// How long from `earlier` until here: zero when `earlier` is later, `Duration::MAX` from a moment to
    /// [`Instant::NEVER`].
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        match (self.0, earlier.0) {
            (Moment::At(at), Moment::At(earlier)) => at.saturating_duration_since(earlier),
            (Moment::Never, Moment::At(_)) => Duration::MAX,
            (_, Moment::Never) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A moment plus "no limit" is a moment that never comes, and no sum or difference panics.
    #[test]
    fn moments_saturate() {
        let now = Instant::now();
        let never = now + Duration::MAX;
        assert_eq!(never, Instant::NEVER);
        assert!(now < never && !never.has_passed() && never.std().is_none());
        assert_eq!((never + Duration::from_secs(1), never.elapsed()), (Instant::NEVER, Duration::ZERO));
        assert_eq!(
            (never.remaining(), never - now, now - never),
            (Duration::MAX, Duration::MAX, Duration::ZERO)
        );
        assert_eq!(never - never, Duration::ZERO);
        assert!((now + Duration::ZERO).has_passed() && now.elapsed() < Duration::from_secs(60));
        assert_eq!((now + Duration::from_secs(7)) - now, Duration::from_secs(7));
        assert_eq!(now - (now + Duration::from_secs(7)), Duration::ZERO);
        assert_eq!(Time(5).plus(Duration::MAX), Time::NEVER);
    }
}
