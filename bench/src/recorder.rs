//! Round trip times: recorded without allocating, read afterwards.

use hdrhistogram::Histogram;

use crate::{clock::Stamp, error::BenchError};

/// The longest time that is told apart, nanoseconds; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Laps that are kept before they are put among the times.
const LAPS: usize = 1024;

/// Times of one kind of exchange.
#[derive(Debug, Clone)]
pub struct Recorder {
    times: Histogram<u64>,
    busy_ns: u64,
    /// When the first of `laps` began, and when each was over.
    began: Stamp,
    laps: Vec<Stamp>,
}

impl Recorder {
    /// An empty one; all its memory is there from the start.
    ///
    /// # Errors
    /// [`BenchError::Arguments`]: never, with these constants.
    pub fn new() -> Result<Self, BenchError> {
        let times = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        let times = times.map_err(|error| BenchError::Arguments(error.to_string()))?;
        Ok(Self { times, busy_ns: 0, began: Stamp::now(), laps: Vec::with_capacity(LAPS) })
    }

    /// One round trip.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.times.saturating_record(nanos);
    }

    /// `count` round trips that took the same time.
    #[inline]
    pub fn record_many(&mut self, nanos: u64, count: u64) {
        self.times.saturating_record_n(nanos, count);
    }

    /// Round trips begin that follow each other: a single reading of the clock ends one and begins the next, as in
    /// perftest's
    /// programs. What they took is worked out many at a time, so that next to nothing stands between an answer and
    /// the next
    /// request. Returns when the first began.
    pub fn begin_laps(&mut self) -> Stamp {
        self.laps.clear();
        self.laps.reserve(LAPS);
        self.began = Stamp::now();
        self.began
    }

    /// When the current call began.
    #[inline]
    #[must_use]
    pub fn began(&self) -> Stamp {
        self.laps.last().copied().unwrap_or(self.began)
    }

    /// One is over, and the next begins; after many, when the record is written.
    #[inline]
    pub fn lap(&mut self) {
        self.laps.push(Stamp::now());
        if self.laps.len() == LAPS {
            self.end_laps();
            self.began = Stamp::now();
        }
    }

    /// The last one is over.
    #[cold]
    pub fn end_laps(&mut self) {
        for end in self.laps.drain(..) {
            self.times.saturating_record(end.nanos_since(self.began));
            self.began = end;
        }
    }

    /// A stretch of time in which the recorded round trips were made.
    pub fn busy(&mut self, nanos: u64) {
        self.busy_ns += nanos;
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.times.reset();
        self.busy_ns = 0;
    }

    /// Adds what another one has.
    ///
    /// # Errors
    /// [`BenchError::Arguments`]: never, as all have the same bounds.
    pub fn add(&mut self, other: &Self) -> Result<(), BenchError> {
        self.busy_ns += other.busy_ns;
        self.add_times(other)
    }

    /// Adds the times of `other`, whose time spans this recorder already has.
    ///
    /// # Errors
    /// As [`Recorder::add`].
    pub fn add_times(&mut self, other: &Self) -> Result<(), BenchError> {
        self.times.add(&other.times).map_err(|error| BenchError::Arguments(error.to_string()))
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.times.len()
    }

    /// The time that `part` of all (0 to 1) do not exceed, nanoseconds.
    #[must_use]
    pub fn quantile_ns(&self, part: f64) -> u64 {
        self.times.value_at_quantile(part)
    }

    /// The median, nanoseconds, finer than the clock's step: where half of the count falls between two readings that
    /// occurred. For comparing; a time below a step has the same bias everywhere.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts and times far below 2^53")]
    pub fn fine_median_ns(&self) -> f64 {
        let half = self.count() as f64 / 2.0;
        let (mut below, mut last) = (0.0, None);
        for step in self.times.iter_recorded() {
            let (time, here) = (step.value_iterated_to() as f64, step.count_at_value() as f64);
            if below + here >= half {
                let from = last.unwrap_or(time);
                return from + (time - from) * (half - below) / here;
            }
            below += here;
            last = Some(time);
        }
        0.0
    }

    /// The shortest, nanoseconds.
    #[must_use]
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.times.min() }
    }

    /// The mean, nanoseconds.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.times.mean()
    }

    /// The standard deviation, nanoseconds.
    #[must_use]
    pub fn stdev_ns(&self) -> f64 {
        self.times.stdev()
    }

    /// The distribution as `HdrHistogram` tools plot it (`.hgrm`): microseconds, quantile, count, 1/(1-quantile).
    #[expect(clippy::cast_precision_loss, reason = "times far below 2^53")]
    #[must_use]
    pub fn distribution(&self) -> String {
        let mut text = "       Value     Percentile TotalCount 1/(1-Percentile)\n\n".to_owned();
        let mut below = 0;
        for step in self.times.iter_quantiles(5) {
            below += step.count_since_last_iteration();
            let (micros, quantile) = (step.value_iterated_to() as f64 / 1e3, step.quantile_iterated_to());
            let rest =
                if quantile < 1.0 { format!("{:14.2}", 1.0 / (1.0 - quantile)) } else { String::new() };
            text += &format!("{micros:12.3} {quantile:2.12} {below:10} {rest}\n");
        }
        let (mean, stdev) = (self.mean_ns() / 1e3, self.stdev_ns() / 1e3);
        text += &format!("#[Mean    = {mean:12.3}, StdDeviation   = {stdev:12.3}]\n");
        text += &format!(
            "#[Max     = {:12.3}, Total count    = {:12}]\n",
            self.max_ns() as f64 / 1e3,
            self.count()
        );
        text
    }

    /// The longest, nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.times.max()
    }

    /// Exchanges per second of the busy time.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts and times far below 2^53")]
    pub fn per_second(&self) -> f64 {
        if self.busy_ns == 0 { 0.0 } else { self.count() as f64 * 1e9 / self.busy_ns as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lap_counts_once_and_writing_down_is_none_of_them() {
        let (mut recorder, pause) = (Recorder::new().unwrap(), std::time::Duration::from_millis(2));
        let first = recorder.begin_laps();
        assert_eq!(recorder.began(), first);
        for lap in 1..=LAPS as u64 + 3 {
            if lap == 2 {
                std::thread::sleep(pause);
            }
            recorder.lap();
        }
        assert_eq!(recorder.count(), LAPS as u64, "the others are kept");
        recorder.end_laps();
        std::thread::sleep(pause);
        recorder.end_laps();
        assert!(recorder.begin_laps() > first);
        recorder.lap();
        recorder.end_laps();
        assert_eq!(recorder.count(), LAPS as u64 + 4);
        assert!(recorder.quantile_ns(1.0) >= 2_000_000, "{} ns", recorder.quantile_ns(1.0));
        assert!(recorder.fine_median_ns() < 1_000_000.0, "only one took long");
    }

    #[test]
    fn a_distribution_has_all_calls() {
        let mut recorder = Recorder::new().unwrap();
        (1..=1000).for_each(|nanos| recorder.record(nanos * 1000));
        let text = recorder.distribution();
        let last = text.lines().rfind(|line| line.contains("1.000000000000")).unwrap();
        assert!(last.trim_start().starts_with("1000.") && last.contains(" 1000 "), "{text}");
        assert!(
            text.contains("Total count    =         1000]")
                && (recorder.mean_ns() - 500_500.0).abs() < 1000.0
        );
    }

    #[test]
    fn quantiles_and_rate() {
        let mut all = Recorder::new().unwrap();
        let mut one = Recorder::new().unwrap();
        for nanos in 1..=1000 {
            one.record(nanos);
        }
        one.busy(1_000_000);
        all.add(&one).unwrap();
        assert_eq!((all.count(), all.quantile_ns(0.5), all.max_ns()), (1000, 500, 1000));
        assert!((all.per_second() - 1e6).abs() < 1.0);
        one.reset();
        assert_eq!((one.count(), one.per_second().to_bits()), (0, 0));
    }

    #[test]
    fn the_fine_median_lies_between_steps() {
        let mut recorder = Recorder::new().unwrap();
        assert_eq!(recorder.fine_median_ns().to_bits(), 0);
        for (nanos, times) in [(170, 40), (180, 20), (190, 40)] {
            (0..times).for_each(|_| recorder.record(nanos));
        }
        assert!((recorder.fine_median_ns() - 175.0).abs() < 0.01, "{}", recorder.fine_median_ns());
    }

    #[test]
    fn longer_than_the_longest_is_the_longest() {
        let mut recorder = Recorder::new().unwrap();
        recorder.record(u64::MAX);
        assert!(recorder.max_ns() >= LONGEST_NS);
    }
}
