//! Whether the peer is still there: asked when nothing was heard, given up when it stays silent.
//!
//! ```text
//!  heard ──── a third of the bound ────► ping ──── 7/8 of the bound ────► silent, or busy
//!    ▲                                     │                                │        │ its pulse moved
//!    └──── any frame, the pong at least ◄──┘                                └────────┘
//! ```
//!
//! The peer's worker answers a ping, unless it is busy with one of its handlers. The *pulse* of the peer's process decides,
//! where the provider tells it. A worker that is silent in a process that runs is busy, and its calls end at their
//! deadlines. From the ping on, and never before, the pulse is looked at every eighth of the bound, so that a process that
//! stops then is still reported within the bound. Where a look takes a round trip (verbs), the next one tells what it saw.
//!
//! Messages are not timed one by one: a look compares how much has arrived with the look before. So the moment of the
//! last message is known to an eighth of the bound, and the peer is given up that much earlier. Its silence is
//! reported between 7/8 of the bound and the bound. Time in which *we* did not look (stopped, swapped out, a handler
//! that blocked) is not the peer's silence and does not count.

use std::time::Duration;

use gimmal_transport::{Pulse, Time};

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
    /// Looks at all connections of a worker are at least this far apart. Each of thousands has a time of its own.
    pub apart: Duration,
}

impl Pace {
    /// `None` for 0: no heartbeat.
    #[must_use]
    pub fn new(bound_ms: u32) -> Option<Self> {
        let part = |parts: u64| Duration::from_micros(u64::from(bound_ms) * 1000 * parts / 24);
        (bound_ms > 0).then(|| Self {
            bound_ms,
            ask: part(8),
            give_up: part(21),
            look: part(3),
            apart: Duration::from_micros(u64::from(bound_ms) * 1000 / 64),
        })
    }
}

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Nothing to do.
    Fine,
    /// Send a ping.
    Ask,
    /// Nothing was heard for too long, but the peer's process lives. Said once, until something is heard.
    Busy,
    /// Nothing was heard for too long.
    Silent,
}

/// The heartbeat of one connection: when to ping, and when the peer counts as gone.
#[derive(Clone, Copy, Debug)]
pub struct Heart {
    heard: Time,
    mark: u64,
    asked: bool,
    given_up: bool,
    /// Said since something was heard.
    busy: bool,
    /// The peer's pulse as it was seen last, and since when it has not moved, or earlier.
    pulse: Option<Pulse>,
    alive: Time,
    /// The last look.
    looked: Time,
    /// Whether the peer said that a thread turns for it: only then silence means anything.
    held: bool,
}

impl Heart {
    /// Of a connection that opened just now. `held`: the peer answers by itself.
    #[must_use]
    pub const fn new(now: Time, held: bool) -> Self {
        Self {
            heard: now,
            mark: 0,
            asked: false,
            given_up: false,
            busy: false,
            pulse: None,
            alive: now,
            looked: now,
            held,
        }
    }

    /// A control frame arrived, and so much had arrived with it.
    pub fn handle_heard(&mut self, now: Time, mark: u64) {
        (self.heard, self.mark, self.asked, self.busy) = (now, mark, false, false);
    }

    /// Something cast doubt on the peer: whether a ping should go out now. `pulse` is as for [`Heart::poll`].
    pub fn handle_doubt(&mut self, now: Time, pulse: impl FnOnce() -> Option<Pulse>) -> bool {
        if std::mem::replace(&mut self.asked, true) {
            return false;
        }
        self.see(pulse());
        self.looked = now;
        true
    }

    /// A look: `mark` is how much has arrived, `pulse` looks at the peer's process, which is asked for only once the peer
    /// owes a sign.
    pub fn poll(&mut self, now: Time, mark: u64, pulse: impl FnOnce() -> Option<Pulse>, pace: &Pace) -> Beat {
        if mark != self.mark {
            self.handle_heard(now, mark);
        }
        let due = self.due(pace);
        if self.asked || now >= due {
            self.see(pulse());
        }
        self.looked = now;
        if now < due {
            return Beat::Fine;
        }
        if now.since(due) > pace.look {
            // We were away. What came meanwhile may not have been read, so the question is asked as if in time.
            self.heard = self.heard.max(Time(now.0.saturating_sub(nanoseconds(pace.ask))));
        }
        if !self.asked {
            self.asked = true;
            return Beat::Ask;
        }
        if now < self.over(pace) {
            let is_busy = now >= self.heard.plus(pace.give_up);
            return if is_busy && !std::mem::replace(&mut self.busy, true) { Beat::Busy } else { Beat::Fine };
        }
        self.given_up = true;
        Beat::Silent
    }

    fn see(&mut self, pulse: Option<Pulse>) {
        if let (Some(before), Some(seen)) = (self.pulse, pulse)
            && before.beat != seen.beat
        {
            // It moved at some time since it was looked at before. The first one that is seen says nothing.
            self.alive = self.alive.max(before.at);
        }
        self.pulse = pulse.or(self.pulse);
    }

    /// When the peer is given up, if nothing is seen of it before.
    fn over(&self, pace: &Pace) -> Time {
        match self.pulse {
            Some(_) => self.heard.max(self.alive).plus(pace.give_up),
            None if self.held => self.heard.plus(pace.give_up),
            None => Time::NEVER,
        }
    }

    /// When the next look is needed, if nothing arrives before.
    #[must_use]
    pub fn due(&self, pace: &Pace) -> Time {
        match (self.given_up, self.asked) {
            (true, _) => Time::NEVER,
            (false, false) => self.heard.plus(pace.ask),
            (false, true) if self.pulse.is_some() => self.over(pace).min(self.looked.plus(pace.look)),
            (false, true) => self.over(pace),
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

    fn seen(beat: u64, at: Time) -> Option<Pulse> {
        Some(Pulse { beat, at })
    }

    /// R26: asked at a third, given up at 7/8, told once.
    #[test]
    fn r26_a_silent_peer_is_asked_and_then_given_up_once() {
        let mut heart = Heart::new(Time(0), true);
        assert_eq!(heart.poll(Time(799 * MS), 0, || None, &pace()), Beat::Fine);
        assert_eq!(heart.due(&pace()), Time(800 * MS));
        assert_eq!(heart.poll(Time(800 * MS), 0, || None, &pace()), Beat::Ask);
        assert_eq!(heart.due(&pace()), Time(2100 * MS));
        assert_eq!(heart.poll(Time(2099 * MS), 0, || None, &pace()), Beat::Fine);
        assert_eq!(heart.poll(Time(2100 * MS), 0, || None, &pace()), Beat::Silent);
        assert_eq!(
            (heart.due(&pace()), heart.poll(Time(9000 * MS), 0, || None, &pace())),
            (Time::NEVER, Beat::Fine)
        );
    }

    #[test]
    fn messages_and_answers_start_it_over() {
        let mut heart = Heart::new(Time(0), true);
        assert_eq!(heart.poll(Time(800 * MS), 0, || None, &pace()), Beat::Ask);
        heart.handle_heard(Time(900 * MS), 48);
        assert_eq!(heart.due(&pace()), Time(1700 * MS));
        // A message, seen by the look.
        assert_eq!(heart.poll(Time(1650 * MS), 96, || None, &pace()), Beat::Fine);
        assert_eq!(heart.due(&pace()), Time(2450 * MS));
    }

    /// R40, R41: our own absence is not the peer's silence.
    #[test]
    fn r40_time_in_which_nobody_looked_does_not_count() {
        for asked in [false, true] {
            let mut heart = Heart::new(Time(0), true);
            if asked {
                assert_eq!(heart.poll(Time(800 * MS), 0, || None, &pace()), Beat::Ask);
            }
            let back = Time(60_000 * MS);
            let expected = if asked { Beat::Fine } else { Beat::Ask };
            assert_eq!(heart.poll(back, 0, || None, &pace()), expected);
            assert_eq!(heart.due(&pace()), back.plus(pace().give_up - pace().ask));
        }
    }

    #[test]
    fn a_peer_without_a_thread_is_asked_but_never_given_up() {
        let mut heart = Heart::new(Time(0), false);
        assert_eq!(heart.poll(Time(800 * MS), 0, || None, &pace()), Beat::Ask);
        assert_eq!(
            (heart.due(&pace()), heart.poll(Time(u64::MAX - 1), 0, || None, &pace())),
            (Time::NEVER, Beat::Fine)
        );
    }

    #[test]
    fn a_doubt_asks_at_once_and_once() {
        let mut heart = Heart::new(Time(0), true);
        assert!(heart.handle_doubt(Time(0), || None));
        assert!(!heart.handle_doubt(Time(0), || panic!("asked already")));
        assert_eq!(heart.due(&pace()), Time(2100 * MS));
        heart.handle_heard(Time(1), 1);
        assert!(heart.handle_doubt(Time(2), || None));
    }

    #[test]
    fn zero_is_off() {
        assert_eq!(Pace::new(0), None);
    }

    /// The worker does not turn, its process runs: never given up, and said once.
    #[test]
    fn a_silent_worker_in_a_process_that_runs_is_busy() {
        let mut heart = Heart::new(Time(0), true);
        assert_eq!(heart.poll(Time(800 * MS), 0, || seen(1, Time(800 * MS)), &pace()), Beat::Ask);
        let (mut now, mut pulse, mut busy) = (Time(800 * MS), 1, 0);
        while now < Time(60_000 * MS) {
            assert!(heart.due(&pace()).since(now) <= pace().look, "the next look comes within an eighth");
            (now, pulse) = (heart.due(&pace()), pulse + 1);
            match heart.poll(now, 0, || seen(pulse, now), &pace()) {
                Beat::Fine => {}
                Beat::Busy => busy += 1,
                other => panic!("{other:?} at {now:?}"),
            }
        }
        assert_eq!(busy, 1);
        // It comes back, and is busy another time.
        heart.handle_heard(now, 48);
        assert_eq!(heart.due(&pace()), now.plus(pace().ask));
    }

    /// The process stops at any time: while its worker answers, or while that is busy. It is given up within the bound, also
    /// where a look takes a round trip: then it tells what the look before saw, and the first one nothing.
    #[test]
    fn a_process_that_stops_is_given_up_within_the_bound() {
        for stop in (0..8000).step_by(37).map(|ms| Time(ms * MS)) {
            for (answers_until, is_late) in [(Time(0), false), (stop, false), (Time(0), true), (stop, true)] {
                let mut heart = Heart::new(Time(0), true);
                let (mut mark, mut before) = (0, Pulse { beat: 0, at: Time(0) });
                let given_up = loop {
                    let now = heart.due(&pace());
                    let look = || {
                        let new = Pulse { beat: 1 + now.min(stop).0 / (25 * MS), at: now };
                        let older = std::mem::replace(&mut before, new);
                        Some(if is_late { older } else { new })
                    };
                    match heart.poll(now, mark, look, &pace()) {
                        Beat::Ask if now < answers_until => {
                            mark += 48;
                            heart.handle_heard(now, mark);
                        }
                        Beat::Silent => break now,
                        _ => {}
                    }
                };
                let took = given_up.since(stop);
                assert!(took <= Duration::from_millis(2400), "{took:?} after {stop:?}");
                assert!(
                    took >= pace().give_up - pace().ask - Duration::from_millis(25),
                    "{took:?} after {stop:?}"
                );
            }
        }
    }

    /// No look at its process while the peer owes nothing.
    #[test]
    fn a_peer_that_answers_is_not_looked_at() {
        let mut heart = Heart::new(Time(0), true);
        let no_look = || panic!("a look at a peer that owes nothing");
        for (ms, mark) in [(300, 48), (600, 48), (1099, 48), (1500, 96), (2299, 96)] {
            assert_eq!(heart.poll(Time(ms * MS), mark, no_look, &pace()), Beat::Fine);
        }
        assert_eq!(heart.poll(Time(2300 * MS), 96, || seen(0, Time(0)), &pace()), Beat::Ask);
    }

    /// A peer that turns only while it waits is judged by its process alone, where its pulse is seen.
    #[test]
    fn a_peer_without_a_thread_is_judged_by_its_process() {
        let mut heart = Heart::new(Time(0), false);
        let stop = Time(9000 * MS);
        let given_up = loop {
            let now = heart.due(&pace());
            if heart.poll(now, 0, || seen(1 + now.min(stop).0, now), &pace()) == Beat::Silent {
                break now;
            }
        };
        assert!(
            (pace().give_up - pace().look..=pace().give_up).contains(&given_up.since(stop)),
            "{given_up:?}"
        );
    }
}
