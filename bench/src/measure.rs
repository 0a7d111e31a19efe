//! The slices: floors, test, floors, test, … floors.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    against::Contender,
    cost::{Cost, Meter},
    error::BenchError,
    floors::{Floors, Phase},
    recorder::Recorder,
    target::{Counted, Target},
};

/// Exchanges of one floor in one slice.
const FLOOR_MIN: u64 = 500;
/// As above, at most.
const FLOOR_MAX: u64 = 20_000;
/// Exchanges that another contender makes in one slice, at most.
pub(crate) const CONTENDER_MAX: u64 = 200_000;

/// How much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Calls to measure, in all slices together.
    pub(crate) count: u64,
    /// Calls before.
    pub(crate) warmup: u64,
    /// Slices of the test; one more of the floors.
    pub(crate) slices: u64,
    /// No progress is shown.
    pub(crate) is_quiet: bool,
    /// The server's process, when it is on this host.
    pub(crate) server: Option<u32>,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The layer under test.
    pub(crate) test: Recorder,
    /// Of each slice.
    pub(crate) medians_ns: Vec<f64>,
    /// Calls per second of each slice.
    pub(crate) rates: Vec<f64>,
    /// What the test cost.
    pub(crate) cost: Cost,
    /// The floors, where both processes can reach them.
    pub(crate) floors: Option<MeasuredFloors>,
    /// The others, in the order in which they were given.
    pub(crate) others: Vec<Other>,
    /// Why it ended early; what was measured until then counts.
    pub(crate) ended: Option<BenchError>,
}

/// A contender and what it made.
#[derive(Debug)]
pub(crate) struct Other {
    /// Who.
    pub(crate) contender: Box<dyn Contender>,
    /// Of each slice.
    pub(crate) values: Vec<f64>,
    /// Why there are no more.
    pub(crate) failed: Option<String>,
}

/// Both floors.
#[derive(Debug)]
pub(crate) struct MeasuredFloors {
    /// One cache line.
    pub(crate) line: Floor,
    /// One frame.
    pub(crate) frame: Floor,
}

/// One floor.
#[derive(Debug)]
pub(crate) struct Floor {
    all: Recorder,
    slice: Recorder,
    /// Of each slice.
    medians_ns: Vec<f64>,
}

impl Floor {
    fn new() -> Result<Self, BenchError> {
        Ok(Self { all: Recorder::new()?, slice: Recorder::new()?, medians_ns: Vec::new() })
    }

    fn finish_slice(&mut self) -> Result<(), BenchError> {
        self.medians_ns.push(self.slice.fine_median_ns());
        self.all.add(&self.slice)?;
        self.slice.reset();
        Ok(())
    }

    /// All slices together.
    pub(crate) fn all(&self) -> &Recorder {
        &self.all
    }

    /// Of each slice; the first was measured before the test's first.
    pub(crate) fn medians_ns(&self) -> &[f64] {
        &self.medians_ns
    }

    /// See [`drift_pct`].
    pub(crate) fn drift_pct(&self) -> f64 {
        drift_pct(&self.medians_ns)
    }
}

/// By how much the slices' medians differ, in percent of the lowest; one that is lower than all others and one that is
/// higher are left out: they move no median of ten slices.
fn drift_pct(medians_ns: &[f64]) -> f64 {
    let mut sorted = medians_ns.to_vec();
    sorted.sort_by(f64::total_cmp);
    let kept = if sorted.len() > 4 { &sorted[1..sorted.len() - 1] } else { &sorted[..] };
    match (kept.first(), kept.last()) {
        (Some(low), Some(high)) if *low > 0.0 => (high - low) * 100.0 / low,
        _ => 0.0,
    }
}

/// Measures after warming up.
///
/// # Errors
/// When not even the warm-up came to its end; later ones are in what was measured.
pub(crate) fn measure(
    target: &mut dyn Target,
    mut floors: Option<&mut Floors>,
    others: Vec<Box<dyn Contender>>,
    amount: &Amount,
) -> Result<Measured, BenchError> {
    let others = others.into_iter().map(|contender| Other { contender, values: vec![], failed: None });
    let mut measured = Measured {
        test: Recorder::new()?,
        medians_ns: vec![],
        rates: vec![],
        cost: Cost::default(),
        floors: None,
        others: others.collect(),
        ended: None,
    };
    let floor_count = (amount.count / amount.slices).clamp(FLOOR_MIN, FLOOR_MAX);
    let mut warm = Recorder::new()?;
    announce_test(floors.as_deref_mut())?;
    target.run(amount.warmup, &mut warm)?;
    if let Some(floors) = floors.as_deref_mut() {
        MeasuredFloors::new()?.slice(floors, FLOOR_MIN)?;
        measured.floors = Some(MeasuredFloors::new()?);
    }
    let mut meter = Meter::start(amount.server, &target.counted());
    let ended = slices(target, floors, &mut measured, amount, floor_count, &mut meter);
    // A worker that is gone counts nothing.
    let counted = if ended.is_ok() { target.counted() } else { Counted::default() };
    measured.cost = meter.finish(measured.test.count(), counted);
    measured.ended = ended.err();
    Ok(measured)
}

fn slices(
    target: &mut dyn Target,
    mut floors: Option<&mut Floors>,
    measured: &mut Measured,
    amount: &Amount,
    floor_count: u64,
    meter: &mut Meter,
) -> Result<(), BenchError> {
    let progress = progress(amount.is_quiet, amount.slices);
    let Amount { count, slices, .. } = *amount;
    let mut slice_of_test = Recorder::new()?;
    if let (Some(floors), Some(measured)) = (floors.as_deref_mut(), measured.floors.as_mut()) {
        measured.slice(floors, floor_count)?;
    }
    for slice in 0..slices {
        let calls = count * (slice + 1) / slices - count * slice / slices;
        slice_of_test.reset();
        announce_test(floors.as_deref_mut())?;
        meter.begin();
        let done = target.run(calls, &mut slice_of_test);
        meter.end();
        // What a slice that broke off has counts too, but not as a slice.
        measured.test.add(&slice_of_test)?;
        done?;
        measured.medians_ns.push(slice_of_test.fine_median_ns());
        measured.rates.push(slice_of_test.per_second());
        if let Some(floors) = floors.as_deref_mut() {
            if let Some(measured) = &mut measured.floors {
                measured.slice(floors, floor_count)?;
            }
            for other in &mut measured.others {
                other.slice(floors, calls.clamp(1, CONTENDER_MAX));
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(())
}

impl Other {
    fn slice(&mut self, floors: &mut Floors, count: u64) {
        if self.failed.is_some() {
            return;
        }
        match self.contender.slice(floors, count) {
            Ok(value) => self.values.push(value),
            Err(error) => self.failed = Some(error.to_string()),
        }
    }
}

impl MeasuredFloors {
    fn new() -> Result<Self, BenchError> {
        Ok(Self { line: Floor::new()?, frame: Floor::new()? })
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<(), BenchError> {
        floors.announce(Phase::Line)?;
        floors.line(count, &mut self.line.slice)?;
        self.line.finish_slice()?;
        floors.announce(Phase::Frame)?;
        floors.frame(count, &mut self.frame.slice)?;
        self.frame.finish_slice()
    }
}

fn announce_test(floors: Option<&mut Floors>) -> Result<(), BenchError> {
    floors.map_or(Ok(()), |floors| floors.announce(Phase::Test))
}

/// Only for people who watch: moves between slices, never within one.
fn progress(is_quiet: bool, slices: u64) -> ProgressBar {
    if is_quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} slice {pos}/{len}  {elapsed}");
    let bar = ProgressBar::new(slices);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_the_widest_difference_but_for_one_each_way() {
        assert!((drift_pct(&[400.0, 440.0, 420.0]) - 10.0).abs() < 1e-9);
        assert!((drift_pct(&[900.0, 400.0, 440.0, 420.0, 100.0]) - 10.0).abs() < 1e-9);
        assert!(drift_pct(&[400.0, 400.0, 400.0, 900.0, 900.0]) > 100.0);
        assert_eq!(drift_pct(&[]).to_bits(), 0);
    }
}
