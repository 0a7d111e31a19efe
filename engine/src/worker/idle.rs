//! What a worker does when a turn found nothing.

use std::time::Duration;

use gimmal_transport::Time;

/// How a worker waits. A queue's owner that spins answers soonest and costs a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Never sleeps, never yields: for a core of its own.
    Spin,
    /// Spins, then yields, for `spin_us` after the last work; then sleeps until something happens.
    Adaptive {
        /// Microseconds.
        spin_us: u32,
    },
    /// Sleeps as soon as there is nothing to do.
    Event,
}

impl Default for Idle {
    fn default() -> Self {
        Self::Adaptive { spin_us: 50 }
    }
}

/// What to do before the next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// A pause instruction.
    Spin,
    /// Give the core away if somebody wants it.
    Yield,
    /// Arm, look again, sleep.
    Sleep,
}

/// Turns that found nothing, since when.
#[derive(Debug)]
pub(crate) struct Idler {
    idle: Idle,
    empty_turns: u32,
    idle_since: Time,
}

/// Empty turns that only pause: the other side's answer is often a few hundred nanoseconds away.
const SPINS: u32 = 256;
/// While spinning, one turn in this many reads the clock.
const CLOCK: u32 = 64;

impl Idler {
    pub(crate) const fn new(idle: Idle) -> Self {
        Self { idle, empty_turns: 0, idle_since: Time(0) }
    }

    pub(crate) fn worked(&mut self) {
        self.empty_turns = 0;
    }

    pub(crate) fn next(&mut self, now: Time) -> Pause {
        self.empty_turns = self.empty_turns.saturating_add(1);
        match self.idle {
            Idle::Spin => Pause::Spin,
            Idle::Event => Pause::Sleep,
            Idle::Adaptive { spin_us } => {
                if self.empty_turns == 1 {
                    self.idle_since = now;
                }
                if self.empty_turns <= SPINS && spin_us > 0 {
                    Pause::Spin
                } else if now.since(self.idle_since) < Duration::from_micros(spin_us.into()) {
                    Pause::Yield
                } else {
                    Pause::Sleep
                }
            }
        }
    }

    /// Whether the turn before found something.
    pub(crate) const fn has_worked(&self) -> bool {
        self.empty_turns == 0
    }

    /// Whether the next turn needs a fresh time: always after work or a yield, rarely while spinning.
    #[inline]
    pub(crate) const fn wants_clock(&self) -> bool {
        self.empty_turns.is_multiple_of(CLOCK)
            || (self.empty_turns > SPINS && !matches!(self.idle, Idle::Spin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_spins_then_yields_then_sleeps_and_starts_over_after_work() {
        let mut idler = Idler::new(Idle::Adaptive { spin_us: 50 });
        for _ in 0..SPINS {
            assert_eq!(idler.next(Time(1000)), Pause::Spin);
        }
        assert_eq!(idler.next(Time(50_999)), Pause::Yield);
        assert_eq!(idler.next(Time(51_000)), Pause::Sleep);
        idler.worked();
        assert_eq!(idler.next(Time(90_000)), Pause::Spin);
    }

    #[test]
    fn spin_and_event_do_what_they_say() {
        assert_eq!(Idler::new(Idle::Spin).next(Time(u64::MAX)), Pause::Spin);
        assert_eq!(Idler::new(Idle::Event).next(Time(0)), Pause::Sleep);
    }
}
