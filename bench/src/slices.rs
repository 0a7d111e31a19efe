//! Numbers of slices, compared in pairs: what was measured side by side may be divided.

/// Sorted copy.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The middle one; between two, their mean. `None` of none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// A median and where it lies with 95 % confidence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Estimate {
    /// Of `values`; from the order of the values alone, so it holds for any distribution. With less than six values the
    /// interval is all of them and promises less. `None` of none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let drop = outside(sorted.len());
        Some(Self {
            median: median(values)?,
            low: *sorted.get(drop)?,
            high: *sorted.get(sorted.len().checked_sub(1 + drop)?)?,
        })
    }

    /// Widens the interval by `starts`, the medians of several starts of the processes. It includes each of them, and
    /// the range of their middle with 95 % confidence (Student's t, of their logarithms).
    #[must_use]
    pub fn among(self, starts: &[f64]) -> Self {
        let (low, high) = middle(starts).unwrap_or((self.low, self.high));
        let low = starts.iter().copied().fold(self.low.min(low), f64::min);
        let high = starts.iter().copied().fold(self.high.max(high), f64::max);
        Self { median: self.median, low, high }
    }

    /// Both ends.
    #[must_use]
    pub const fn interval(self) -> [f64; 2] {
        [self.low, self.high]
    }

    /// Of the quotients, pair by pair; a pair with nothing below the line is left out.
    #[must_use]
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let pairs = ours.iter().zip(theirs).filter(|(_, theirs)| **theirs > 0.0);
        Self::of(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }
}

/// Of Student's distribution with 1, 2, ... degrees of freedom, what 2.5 % lie above; for more the last one is on the
/// safe side.
const STUDENT: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

/// Where the geometric mean of what `values` are drawn from lies with 95 %. `None` of less than two.
#[expect(clippy::cast_precision_loss, reason = "counts of starts")]
fn middle(values: &[f64]) -> Option<(f64, f64)> {
    let freedom = values.len().checked_sub(1)?;
    let student = STUDENT[freedom.min(STUDENT.len()).checked_sub(1)?];
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value.ln() - mean).powi(2)).sum::<f64>() / freedom as f64;
    let off = student * (variance / values.len() as f64).sqrt();
    Some(((mean - off).exp(), (mean + off).exp()))
}

/// How many of `count` sorted values may be left off at each end, so that the median still lies within with 95 %.
#[expect(clippy::cast_precision_loss, reason = "counts of slices")]
fn outside(count: usize) -> usize {
    let mut below = 0.5f64.powf(count as f64);
    let (mut term, mut drop) = (below, 0);
    // `below`: the probability that at most `drop` of the values lie under the true median.
    while drop < count / 2 {
        term *= (count - drop) as f64 / (drop + 1) as f64;
        if below + term > 0.025 {
            break;
        }
        below += term;
        drop += 1;
    }
    drop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn intervals_follow_the_binomial_table() {
        // From printed tables of the sign test: ranks of the 95 % interval for the median.
        for (count, drop) in
            [(1, 0), (5, 0), (7, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (30, 9)]
        {
            assert_eq!(outside(count), drop, "{count}");
        }
        let values: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(Estimate::of(&values), Some(Estimate { median: 5.0, low: 2.0, high: 8.0 }));
    }

    #[test]
    fn few_starts_that_differ_promise_little() {
        let one = Estimate { median: 2.0, low: 1.9, high: 2.1 };
        assert_eq!((one.among(&[]), one.among(&[2.05])), (one, one));
        assert_eq!(one.among(&[2.3]).high.to_bits(), 2.3f64.to_bits());
        assert_eq!(one.among(&[2.0, 2.0, 2.0]), one);
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.005;
        // By hand: logarithms 0 and 1, mean 0.5, deviation 0.7071, by the root of 2, times 12.71.
        let two = one.among(&[1.0, std::f64::consts::E]);
        assert!(near(two.low.ln(), 0.5 - 6.355) && near(two.high.ln(), 0.5 + 6.355), "{two:?}");
        let many = one.among(&[1.0, std::f64::consts::E].repeat(8));
        assert!(near(many.high.ln(), 1.0) && near(many.low.ln(), 0.0), "each start lies within: {many:?}");
    }

    #[test]
    fn ratios_are_of_pairs() {
        // Both drift together: the ratio stands still although the medians of each are far apart.
        let ratio = Estimate::of_ratios(&[10.0, 20.0, 40.0], &[5.0, 10.0, 20.0]).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high), (2.0, 2.0, 2.0));
        assert_eq!(Estimate::of_ratios(&[1.0], &[0.0]), None);
    }
}
