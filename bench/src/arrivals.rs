//! When the calls of an open loop are due: at random, as callers come that know nothing of each other.

use std::time::Duration;

/// Gaps that are drawn beforehand: no logarithm between two calls.
const GAPS: usize = 1 << 16;
/// When calls are due.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// From one to the next, nanoseconds.
    gaps_ns: Vec<u64>,
    next: usize,
    /// For how long.
    pub duration: Duration,
}

impl Arrivals {
    /// At `rate` per second in the mean, at random.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "gaps far below 2^53, none below 0"
    )]
    pub fn poisson(rate: u64, duration: Duration, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut uniform = move || {
            // xorshift64*: its upper bits are random enough for gaps.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let mean_ns = 1e9 / rate.max(1) as f64;
        let gaps_ns = (0..GAPS).map(|_| (-uniform().ln() * mean_ns) as u64).collect();
        Self { gaps_ns, next: 0, duration }
    }

    /// To the next one.
    #[inline]
    pub fn gap(&mut self) -> Duration {
        self.next = (self.next + 1) % self.gaps_ns.len();
        Duration::from_nanos(self.gaps_ns[self.next])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_exponential() {
        let mut arrivals = Arrivals::poisson(1_000_000, Duration::from_secs(1), 7);
        let gaps: Vec<f64> = (0..GAPS).map(|_| arrivals.gap().as_nanos() as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // The mean and the deviation of an exponential distribution are the same.
        assert!((mean - 1000.0).abs() < 20.0, "{mean}");
        assert!((variance.sqrt() - 1000.0).abs() < 40.0, "{}", variance.sqrt());
    }
}
