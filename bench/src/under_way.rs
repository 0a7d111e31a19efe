//! When the calls under way left. Calls that leave or come back together share a reading of the clock: one costs about as
//! much as a call.

use std::collections::VecDeque;

use crate::{clock::Stamp, recorder::Recorder};

/// Starts of calls that come back in the order in which they left.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// How many left at each reading, the oldest first.
    left: VecDeque<(Stamp, u64)>,
}

impl UnderWay {
    /// Of at most `window` calls.
    pub(crate) fn new(window: usize) -> Self {
        Self { left: VecDeque::with_capacity(window) }
    }

    /// `count` calls left at `now`.
    #[inline]
    pub(crate) fn leave(&mut self, now: Stamp, count: u64) {
        if count > 0 {
            self.left.push_back((now, count));
        }
    }

    /// The `count` oldest were back by `now`.
    #[inline]
    pub(crate) fn come_back(&mut self, now: Stamp, mut count: u64, recorder: &mut Recorder) {
        while count > 0
            && let Some((start, left)) = self.left.front_mut()
        {
            let back = count.min(*left);
            recorder.record_many(now.nanos_since(*start), back);
            count -= back;
            *left -= back;
            if *left == 0 {
                self.left.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_call_has_the_time_since_it_left() {
        let (mut under_way, mut recorder) = (UnderWay::new(4), Recorder::new().unwrap());
        let first = Stamp::now();
        let at = |micros| first.after(Duration::from_micros(micros));
        under_way.leave(first, 3);
        under_way.come_back(at(1), 1, &mut recorder);
        under_way.leave(at(1), 1);
        under_way.leave(at(1), 0);
        under_way.come_back(at(5), 3, &mut recorder);
        assert_eq!((recorder.count(), recorder.min_ns()), (4, 1000));
        // 1, 4, 5 and 5.
        assert!((recorder.mean_ns() - 3750.0).abs() < 5.0, "{}", recorder.mean_ns());
        under_way.come_back(at(9), 1, &mut recorder);
        assert_eq!(recorder.count(), 4, "none is left");
    }
}
