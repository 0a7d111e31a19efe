//! The slices: floors, test, floors, test, … floors.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    error::BenchError,
    floors::{Floors, Phase},
    recorder::Recorder,
    target::Target,
};

/// Slices of the test; one more of the floors.
const SLICES: u64 = 10;
/// Exchanges of one floor in one slice.
const FLOOR_MIN: u64 = 500;
/// As above, at most.
const FLOOR_MAX: u64 = 20_000;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The layer under test.
    pub(crate) test: Recorder,
    /// The floors, where both processes can reach them.
    pub(crate) floors: Option<MeasuredFloors>,
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

/// Measures `count` calls after `warmup` others.
pub(crate) fn measure(
    target: &mut dyn Target,
    mut floors: Option<&mut Floors>,
    count: u64,
    warmup: u64,
    is_quiet: bool,
) -> Result<Measured, BenchError> {
    let mut test = Recorder::new()?;
    let mut measured = match floors {
        Some(_) => Some(MeasuredFloors { line: Floor::new()?, frame: Floor::new()? }),
        None => None,
    };
    let floor_count = (count / SLICES).clamp(FLOOR_MIN, FLOOR_MAX);
    let progress = progress(is_quiet);

    test_slice(target, floors.as_deref_mut(), warmup, &mut test)?;
    floor_slice(floors.as_deref_mut(), measured.as_mut(), floor_count)?;
    test.reset();
    measured = match measured {
        Some(_) => Some(MeasuredFloors { line: Floor::new()?, frame: Floor::new()? }),
        None => None,
    };

    floor_slice(floors.as_deref_mut(), measured.as_mut(), floor_count)?;
    for slice in 0..SLICES {
        let calls = count * (slice + 1) / SLICES - count * slice / SLICES;
        test_slice(target, floors.as_deref_mut(), calls, &mut test)?;
        floor_slice(floors.as_deref_mut(), measured.as_mut(), floor_count)?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(Measured { test, floors: measured })
}

fn test_slice(
    target: &mut dyn Target,
    floors: Option<&mut Floors>,
    count: u64,
    recorder: &mut Recorder,
) -> Result<(), BenchError> {
    if let Some(floors) = floors {
        floors.announce(Phase::Test)?;
    }
    target.run(count, recorder)
}

fn floor_slice(
    floors: Option<&mut Floors>,
    measured: Option<&mut MeasuredFloors>,
    count: u64,
) -> Result<(), BenchError> {
    let (Some(floors), Some(measured)) = (floors, measured) else {
        return Ok(());
    };
    floors.announce(Phase::Line)?;
    floors.line(count, &mut measured.line.slice)?;
    measured.line.finish_slice()?;
    floors.announce(Phase::Frame)?;
    floors.frame(count, &mut measured.frame.slice)?;
    measured.frame.finish_slice()
}

/// Only for people who watch: moves between slices, never within one.
fn progress(is_quiet: bool) -> ProgressBar {
    if is_quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} slice {pos}/{len}  {elapsed}");
    let bar = ProgressBar::new(SLICES);
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
