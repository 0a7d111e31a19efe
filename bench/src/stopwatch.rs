//! Times one call in flight at a time. Reading the clock costs about as much as a call, and the contenders of a
//! window of calls read none. So only some calls of a window are timed, and every call of a window of 1.

use crate::{clock::Stamp, recorder::Recorder};

/// Windows of calls for each that is timed.
const WINDOWS: u64 = 4;

/// For calls that come back in the order in which they left.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    /// Calls from one that is timed to the next, and the number behind which that is.
    gap: u64,
    next: u64,
    /// Since when.
    running: Option<Stamp>,
    /// The number of the call that is timed, once it has left; the first is 1.
    timed: Option<u64>,
    /// Calls that came back, and those of them that are in the record.
    back: u64,
    recorded: u64,
    last_ns: u64,
}

impl Stopwatch {
    /// For at most `window` calls in flight.
    pub(crate) fn new(window: usize) -> Self {
        let gap = if window == 1 { 0 } else { window as u64 * (WINDOWS - 1) };
        Self { gap, ..Self::default() }
    }

    /// The first call of a run is the one behind number `back`; nothing is in flight. It is timed, so
    /// that the shortest run has a time of its own.
    pub(crate) fn begin(&mut self, back: u64) {
        (self.back, self.recorded, self.next) = (back, back, back);
    }

    /// The calls behind number `before` are about to leave.
    #[inline]
    pub(crate) fn start(&mut self, before: u64) {
        if self.timed.is_none() && before >= self.next {
            self.running = Some(Stamp::now());
        }
    }

    /// Those behind number `before`, up to `last`, have left. The last one is timed, which waits longest.
    #[inline]
    pub(crate) fn leave(&mut self, before: u64, last: u64) {
        if self.running.is_some() && self.timed.is_none() && last > before {
            self.timed = Some(last);
        }
    }

    /// All up to number `number` are back. What the one that was timed took stands for those since the one before.
    #[inline]
    pub(crate) fn come_back(&mut self, number: u64, recorder: &mut Recorder) {
        self.back = number;
        if let (Some(start), Some(timed)) = (self.running, self.timed)
            && timed <= number
        {
            (self.running, self.timed) = (None, None);
            self.last_ns = Stamp::now().nanos_since(start);
            self.count(recorder);
        }
    }

    /// Ends the record when nothing is in flight.
    pub(crate) fn end(&mut self, recorder: &mut Recorder) {
        (self.running, self.timed) = (None, None);
        self.count(recorder);
    }

    fn count(&mut self, recorder: &mut Recorder) {
        recorder.record_many(self.last_ns, self.back - self.recorded);
        self.recorded = self.back;
        self.next = self.recorded + self.gap;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_call_counts_and_one_at_a_time_is_timed() {
        let (mut watch, mut recorder) = (Stopwatch::new(1), Recorder::new().unwrap());
        let pause = Duration::from_millis(2);
        watch.start(0);
        watch.leave(0, 0);
        watch.leave(0, 4);
        std::thread::sleep(pause);
        watch.come_back(3, &mut recorder);
        assert_eq!(recorder.count(), 0, "the fourth is the one that is timed");
        watch.start(4);
        watch.leave(4, 6);
        watch.come_back(5, &mut recorder);
        assert_eq!(recorder.count(), 5);
        assert!(recorder.min_ns() >= 2_000_000, "{} ns", recorder.min_ns());
        watch.start(6);
        watch.leave(6, 7);
        watch.come_back(7, &mut recorder);
        assert_eq!(recorder.count(), 7);
        assert!(recorder.min_ns() < 2_000_000, "{} ns", recorder.min_ns());
        watch.come_back(9, &mut recorder);
        watch.end(&mut recorder);
        assert_eq!(recorder.count(), 9);
    }

    #[test]
    fn of_a_window_few_are_timed() {
        let (mut watch, mut recorder) = (Stopwatch::new(2), Recorder::new().unwrap());
        let mut timed = 0;
        watch.begin(1000);
        for number in 1001..=1100 {
            watch.start(number - 1);
            watch.leave(number - 1, number);
            watch.come_back(number, &mut recorder);
            timed += u32::from(watch.recorded == number);
        }
        watch.end(&mut recorder);
        assert_eq!((timed, recorder.count()), (15, 100));
    }

    #[test]
    fn a_run_shorter_than_a_window_is_timed() {
        let (mut watch, mut recorder) = (Stopwatch::new(32), Recorder::new().unwrap());
        for run in 0..3 {
            let first = run * 5;
            watch.begin(first);
            watch.start(first);
            watch.leave(first, first + 5);
            std::thread::sleep(Duration::from_millis(1));
            watch.come_back(first + 5, &mut recorder);
            watch.end(&mut recorder);
        }
        assert_eq!(recorder.count(), 15);
        assert!(recorder.min_ns() >= 1_000_000, "{} ns", recorder.min_ns());
    }
}
