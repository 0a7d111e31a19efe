//! What a worker does when a turn found nothing.

use std::time::Duration;

use gimmal_transport::Time;

use crate::pace::{BARE, DEVICE_LOOK, DEVICE_SPINS, FULL_TURN, OLD, SPINS, TURN};

/// What a worker does when a turn found nothing. One that spins answers soonest and costs a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Never sleeps, never yields: for a core of its own.
    Spin,
    /// Spins, then yields, for `spin_us` after the last work; then sleeps until something happens. With at most two cores, a worker that
    /// was given none of them yields from the first: its caller and its peer need both.
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
    /// Another look, after a pause instruction if that was not the first few and the look itself does not take as long.
    Spin,
    /// Give the core away if somebody wants it.
    Yield,
    /// Arm, look again, sleep.
    Sleep,
    /// Nothing: the caller goes on.
    Return,
}

/// Turns that found nothing, since when; and how old the time is.
#[derive(Debug)]
pub(crate) struct Idler {
    /// None where the caller sets the time.
    idle: Option<Idle>,
    empty_turns: u32,
    /// Empty turns before an adaptive worker yields.
    spins: u32,
    /// An adaptive worker yields at once.
    shares_core: bool,
    idle_since: Time,
    /// How old the time is: turns and what they found, since the clock was read. And what a turn counts that found nothing.
    age: usize,
    look: usize,
    has_worked: bool,
}

impl Idler {
    pub(crate) const fn new(idle: Idle) -> Self {
        Self {
            idle: Some(idle),
            empty_turns: 0,
            spins: SPINS,
            shares_core: false,
            idle_since: Time(0),
            age: OLD,
            look: TURN,
            has_worked: false,
        }
    }

    /// An adaptive worker yields at once from now on: the thread that brings it work may need its core.
    pub(crate) const fn shares_core(&mut self) {
        self.shares_core = true;
    }

    /// A turn, at `now`, found `work`.
    #[inline]
    pub(crate) fn turned(&mut self, work: usize, now: Time) {
        if work > 0 {
            self.age += (work + 1) * TURN;
            self.empty_turns = 0;
            self.has_worked = true;
            return;
        }
        self.age += self.look;
        if self.empty_turns == 0 {
            self.idle_since = now;
        }
        self.empty_turns = self.empty_turns.saturating_add(1);
    }

    /// The caller set the time, and does so from now on.
    pub(crate) const fn set_time(&mut self) {
        (self.idle, self.age) = (None, OLD);
    }

    /// A turn that comes looks at everything.
    #[inline]
    pub(crate) const fn looks_at_all(&mut self) {
        self.age += FULL_TURN - TURN;
    }

    /// What to do after a turn that found nothing.
    pub(crate) fn pause(&mut self, now: Time) -> Pause {
        match self.idle {
            None => Pause::Return,
            Some(Idle::Spin) => Pause::Spin,
            Some(Idle::Event) => Pause::Sleep,
            Some(Idle::Adaptive { spin_us }) => {
                if self.empty_turns <= self.spins && spin_us > 0 && !self.shares_core {
                    return Pause::Spin;
                }
                // Whoever gets the core may keep it for a while.
                self.age = OLD;
                if now.since(self.idle_since) < Duration::from_micros(spin_us.into()) {
                    Pause::Yield
                } else {
                    Pause::Sleep
                }
            }
        }
    }

    /// Whether there was nothing for so long that a pause matters little.
    #[inline]
    pub(crate) const fn may_pause(&self) -> bool {
        self.empty_turns > BARE
    }

    /// Whether any turn found something since the clock was read.
    pub(crate) const fn has_worked(&self) -> bool {
        self.has_worked
    }

    /// Whether the clock should be read.
    #[inline]
    pub(crate) const fn wants_clock(&self) -> bool {
        self.age >= OLD
    }

    /// The clock was read, for turns that ask a device or do not.
    pub(crate) const fn told_time(&mut self, asks_device: bool) {
        self.age = 0;
        (self.look, self.spins) = if asks_device { (DEVICE_LOOK, DEVICE_SPINS) } else { (TURN, SPINS) };
        self.has_worked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_spins_then_yields_then_sleeps_and_starts_over_after_work() {
        let mut idler = Idler::new(Idle::Adaptive { spin_us: 50 });
        let mut empty = |now| {
            idler.turned(0, now);
            idler.pause(now)
        };
        for _ in 0..SPINS {
            assert_eq!(empty(Time(1000)), Pause::Spin);
        }
        assert_eq!(empty(Time(50_999)), Pause::Yield);
        assert_eq!(empty(Time(51_000)), Pause::Sleep);
        assert!(idler.may_pause());
        idler.turned(1, Time(90_000));
        idler.turned(0, Time(90_000));
        assert_eq!(idler.pause(Time(90_000)), Pause::Spin);
        assert!(!idler.may_pause(), "an answer may be a few nanoseconds away");
    }

    #[test]
    fn adaptive_yields_at_once_where_it_shares_its_core() {
        let mut idler = Idler::new(Idle::Adaptive { spin_us: 50 });
        idler.shares_core();
        for asks_device in [false, true] {
            idler.told_time(asks_device);
            idler.turned(0, Time(0));
            assert_eq!(idler.pause(Time(0)), Pause::Yield);
        }
        let mut spinning = Idler::new(Idle::Spin);
        spinning.shares_core();
        assert_eq!(spinning.pause(Time(0)), Pause::Spin, "its user said so");
    }

    /// A worker may share its core with the thread that it works for, which waits while it spins.
    #[test]
    fn adaptive_spins_as_long_where_a_look_takes_longer() {
        let mut idler = Idler::new(Idle::Adaptive { spin_us: 50 });
        idler.told_time(true);
        for turn in 1..=DEVICE_SPINS + 1 {
            idler.turned(0, Time(0));
            let expected = if turn <= DEVICE_SPINS { Pause::Spin } else { Pause::Yield };
            assert_eq!(idler.pause(Time(0)), expected, "turn {turn}");
        }
    }

    #[test]
    fn spin_and_event_do_what_they_say() {
        assert_eq!(Idler::new(Idle::Spin).pause(Time(u64::MAX)), Pause::Spin);
        assert_eq!(Idler::new(Idle::Event).pause(Time(0)), Pause::Sleep);
    }

    #[test]
    fn the_clock_is_read_at_first_then_after_many_turns_or_much_work() {
        let mut idler = Idler::new(Idle::Spin);
        assert!(idler.wants_clock());
        for (work, asks_device, least) in
            [(0, false, 64), (1, false, 32), (64, false, 1), (0, true, 1024), (3, true, 16)]
        {
            idler.told_time(asks_device);
            let turns = (0..).take_while(|_| {
                let fresh = !idler.wants_clock();
                idler.turned(work, Time(0));
                fresh
            });
            assert_eq!(turns.count(), least);
            assert_eq!(idler.has_worked(), work > 0);
        }
    }
}
