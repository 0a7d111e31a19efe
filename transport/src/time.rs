//! Time as an argument.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The moment that every [`Time::now`] of this process counts from.
pub fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
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
