//! Whether the peer is still there: asked when nothing was heard, given up when it stays silent.
//!
//! ```text
//!  heard ──── a third of the bound ────► ping ──── 7/8 of the bound ────► silent
//!    ▲                                     │
//!    └──── any frame, the pong at least ◄──┘
//! ```
//!
//! Messages are not timed one by one: a look compares how much has arrived with the look before. So the moment of the
//! last message is known to an eighth of the bound, and the peer is given up that much earlier: its silence is
//! reported between 7/8 of the bound and the bound. Time in which *we* did not look (stopped, swapped out, a handler
//! that blocked) is not the peer's silence and does not count.

use std::time::Duration;

use gimmal_transport::Time;

use crate::planted::{self, Bug};

/// The times that follow from the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// As it was configured.
    pub bound_ms: u32,
    /// From the last sign to the ping.
    pub ask: Duration,
    /// From the last sign to giving up.
    pub give_up: Duration,
    /// Looks are this far apart while messages flow.
    pub look: Duration,
}

impl Pace {
    /// `None` for 0: no heartbeat.
    #[must_use]
    pub fn new(bound_ms: u32) -> Option<Self> {
        let part = |parts: u64| Duration::from_micros(u64::from(bound_ms) * 1000 * parts / 24);
        (bound_ms > 0).then(|| Self { bound_ms, ask: part(8), give_up: part(21), look: part(3) })
    }
}

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Nothing to do.
    Fine,
    /// Send a ping.
    Ask,
    /// Nothing was heard for too long.
    Silent,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Heart {
    heard: Time,
    mark: u64,
    asked: bool,
    given_up: bool,
    /// Whether the peer said that a thread turns for it: only then silence means anything.
    held: bool,
}

impl Heart {
    /// Of a connection that opened just now. `held`: the peer answers by itself.
    #[must_use]
    pub const fn new(now: Time, held: bool) -> Self {
        Self { heard: now, mark: 0, asked: false, given_up: false, held }
    }

    /// A control frame arrived, and so much had arrived with it.
    pub fn handle_heard(&mut self, now: Time, mark: u64) {
        (self.heard, self.mark, self.asked) = (now, mark, false);
    }

    /// Something cast doubt on the peer: whether a ping should go out now.
    pub fn handle_doubt(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// A look: `mark` is how much has arrived.
    pub fn poll(&mut self, now: Time, mark: u64, pace: &Pace) -> Beat {
        if mark != self.mark {
            self.handle_heard(now, mark);
        }
        let due = self.due(pace);
        if now < due {
            return Beat::Fine;
        }
        if now.since(due) > pace.look && !planted::is(Bug::OwnAbsenceCounts) {
            // We were away. What came meanwhile may not have been read, so the question is asked as if in time.
            self.heard = Time(now.0.saturating_sub(nanoseconds(pace.ask)));
        }
        if !self.asked {
            self.asked = true;
            return Beat::Ask;
        }
        if now < self.due(pace) {
            return Beat::Fine;
        }
        self.given_up = true;
        Beat::Silent
    }

    /// When the next look is needed, if nothing arrives before.
    #[must_use]
    pub fn due(&self, pace: &Pace) -> Time {
        match (self.given_up, self.asked) {
            (true, _) => Time::NEVER,
            (false, false) => self.heard.plus(pace.ask),
            (false, true) if self.held => self.heard.plus(pace.give_up),
            (false, true) => Time::NEVER,
        }
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pace() -> Pace {
        Pace::new(2400).unwrap()
    }

    /// R26: asked at a third, given up at 7/8, told once.
    #[test]
    fn r26_a_silent_peer_is_asked_and_then_given_up_once() {
        let mut heart = Heart::new(Time(0), true);
        assert_eq!(heart.poll(Time(799 * MS), 0, &pace()), Beat::Fine);
        assert_eq!(heart.due(&pace()), Time(800 * MS));
        assert_eq!(heart.poll(Time(800 * MS), 0, &pace()), Beat::Ask);
        assert_eq!(heart.due(&pace()), Time(2100 * MS));
        assert_eq!(heart.poll(Time(2099 * MS), 0, &pace()), Beat::Fine);
        assert_eq!(heart.poll(Time(2100 * MS), 0, &pace()), Beat::Silent);
        assert_eq!((heart.due(&pace()), heart.poll(Time(9000 * MS), 0, &pace())), (Time::NEVER, Beat::Fine));
    }

    #[test]
    fn messages_and_answers_start_it_over() {
        let mut heart = Heart::new(Time(0), true);
        assert_eq!(heart.poll(Time(800 * MS), 0, &pace()), Beat::Ask);
        heart.handle_heard(Time(900 * MS), 48);
        assert_eq!(heart.due(&pace()), Time(1700 * MS));
        // A message, seen by the look.
        assert_eq!(heart.poll(Time(1650 * MS), 96, &pace()), Beat::Fine);
        assert_eq!(heart.due(&pace()), Time(2450 * MS));
    }

    /// R40, R41: our own absence is not the peer's silence.
    #[test]
    fn r40_time_in_which_nobody_looked_does_not_count() {
        for asked in [false, true] {
            let mut heart = Heart::new(Time(0), true);
            if asked {
                assert_eq!(heart.poll(Time(800 * MS), 0, &pace()), Beat::Ask);
            }
            let back = Time(60_000 * MS);
            let expected = if asked { Beat::Fine } else { Beat::Ask };
            assert_eq!(heart.poll(back, 0, &pace()), expected);
            assert_eq!(heart.due(&pace()), back.plus(pace().give_up - pace().ask));
        }
    }

    #[test]
    fn a_peer_without_a_thread_is_asked_but_never_given_up() {
        let mut heart = Heart::new(Time(0), false);
        assert_eq!(heart.poll(Time(800 * MS), 0, &pace()), Beat::Ask);
        assert_eq!(
            (heart.due(&pace()), heart.poll(Time(u64::MAX - 1), 0, &pace())),
            (Time::NEVER, Beat::Fine)
        );
    }

    #[test]
    fn a_doubt_asks_at_once_and_once() {
        let mut heart = Heart::new(Time(0), true);
        assert!(heart.handle_doubt());
        assert!(!heart.handle_doubt());
        assert_eq!(heart.due(&pace()), Time(2100 * MS));
        heart.handle_heard(Time(1), 1);
        assert!(heart.handle_doubt());
    }

    #[test]
    fn zero_is_off() {
        assert_eq!(Pace::new(0), None);
    }
}
