//! The slices: line, frame, line, test, line, others, line; as many as the calls need.
//!
//! ```text
//!  pair    slice │ slice │ … │ slice │ programs of others, once       a slice of the test takes 10 ms (`--slice-ms`)
//! ```
//! The lines around every piece tell its core placement ([`crate::states`]).

use std::{io::IsTerminal as _, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    against::Contender,
    clock::Stamp,
    cost::{Cost, Meter},
    error::BenchError,
    floors::{Floors, Phase},
    recorder::Recorder,
    slices::median,
    states::{Piece, Slice},
    target::{Counted, Target},
    work::{Watch, Work},
};

/// Lines bounced around each piece.
const LINES: u64 = 500;
/// Frames of one slice, at least.
const FRAMES_MIN: u64 = 500;
/// Frames of a slice, at most.
const FRAMES_MAX: u64 = 8_000;
/// Calls of a slice, at least.
const CALLS_MIN: u64 = 4;
/// Exchanges of a contender's first slice, at most: how long one takes is not known yet.
const FIRST_MAX: u64 = 1_000;
/// Exchanges that another contender makes in one slice, at most.
pub(crate) const CONTENDER_MAX: u64 = 200_000;
/// Calls in which the kernel counts what both sides do, at most.
const WATCHED_MAX: u64 = 10_000;

/// How much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Calls to measure, in all slices together.
    pub(crate) count: u64,
    /// Calls before.
    pub(crate) warmup: u64,
    /// Programs of others have so many turns.
    pub(crate) pairs: u64,
    /// How long a slice of the test takes, and of a contender that can choose.
    pub(crate) slice: Duration,
    /// All slices together take no longer; calls that are left then are not made.
    pub(crate) limit: Option<Duration>,
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
    /// All slices, whole ones only.
    pub(crate) slices: Vec<Slice>,
    /// Of each pair, as programs of others are compared with it: the medians of its slices' times and rates.
    pub(crate) pairs: Vec<[f64; 2]>,
    /// What the test cost, in the last start.
    pub(crate) cost: Cost,
    /// The floors, where both processes can reach them.
    pub(crate) floors: Option<MeasuredFloors>,
    /// The others, in the order in which they were given.
    pub(crate) others: Vec<Other>,
    /// Why it ended early; what was measured until then counts.
    pub(crate) ended: Option<BenchError>,
}

/// What the starts before made. Their contenders are gone: they ended with their servers.
#[derive(Debug)]
pub(crate) struct Earlier {
    measured: Measured,
    /// Of each contender, what it made, and why there is no more.
    others: Vec<(Vec<f64>, Option<String>)>,
    starts: u32,
}

impl Measured {
    /// Keeps what was made for the next start; the contenders are given back, to be ended.
    pub(crate) fn set_aside(mut self, starts: u32) -> (Earlier, Vec<Other>) {
        let mut gone = std::mem::take(&mut self.others);
        let others = gone.iter_mut().map(|other| (std::mem::take(&mut other.values), other.failed.take()));
        let others = others.collect();
        (Earlier { measured: self, others, starts }, gone)
    }

    /// One run of this start and those before it.
    ///
    /// # Errors
    /// As [`Recorder::add`].
    pub(crate) fn after(mut self, earlier: Earlier) -> Result<Self, BenchError> {
        let Earlier { measured: mut all, others, starts } = earlier;
        all.test.add(&self.test)?;
        all.slices.extend(self.slices.into_iter().map(|slice| Slice { start: starts, ..slice }));
        all.pairs.append(&mut self.pairs);
        if let (Some(all), Some(floors)) = (&mut all.floors, &self.floors) {
            all.line.add(&floors.line)?;
            all.frame.add(&floors.frame)?;
        }
        for (other, (mut values, failed)) in self.others.iter_mut().zip(others) {
            // Values belong to pairs by their order: who failed once has none from there on.
            if failed.is_none() {
                values.append(&mut other.values);
            } else {
                other.failed = failed;
            }
            other.values = values;
        }
        Ok(Self { others: self.others, cost: self.cost, ended: self.ended, ..all })
    }
}

/// A contender and what it made.
#[derive(Debug)]
pub(crate) struct Other {
    /// What is measured in turns with the test.
    pub(crate) contender: Box<dyn Contender>,
    /// Whether it is another program. Those start more slowly than a core placement lasts, so they have one turn per
    /// pair.
    pub(crate) is_program: bool,
    /// Of each pair, from a program.
    pub(crate) values: Vec<f64>,
    /// Why there are no more.
    pub(crate) failed: Option<String>,
    pace: Pace,
}

/// How many exchanges make a slice, learnt from the last one.
#[derive(Clone, Copy, Debug)]
struct Pace {
    per_second: f64,
    slice: Duration,
}

impl Pace {
    /// Of `left`, the next slice's; what would be left for a short one more goes with the last.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts far below 2^53, none below 0"
    )]
    fn next(self, left: u64) -> u64 {
        let slice = (self.per_second * self.slice.as_secs_f64()).min(left as f64) as u64;
        let slice = slice.max(CALLS_MIN).min(left);
        if left - slice < slice.div_ceil(2) { left } else { slice }
    }
}

/// Both floors, all slices together.
#[derive(Debug)]
pub(crate) struct MeasuredFloors {
    /// One cache line.
    pub(crate) line: Recorder,
    /// One frame.
    pub(crate) frame: Recorder,
}

/// The floors, and what was measured of them.
struct Gauge<'a> {
    floors: &'a mut Floors,
    measured: MeasuredFloors,
    scratch: Recorder,
    /// The line behind the last piece, while nothing else has run.
    last_ns: Option<f64>,
}

impl<'a> Gauge<'a> {
    fn new(floors: &'a mut Floors) -> Result<Self, BenchError> {
        let measured = MeasuredFloors { line: Recorder::new()?, frame: Recorder::new()? };
        Ok(Self { floors, measured, scratch: Recorder::new()?, last_ns: None })
    }

    fn line(&mut self) -> Result<f64, BenchError> {
        self.scratch.reset();
        self.floors.announce(Phase::Line)?;
        self.floors.line(LINES, &mut self.scratch)?;
        self.measured.line.add(&self.scratch)?;
        Ok(self.scratch.fine_median_ns())
    }

    /// Measures a piece between two lines.
    fn around(
        &mut self,
        piece: impl FnOnce(&mut Floors) -> Result<f64, BenchError>,
    ) -> Result<Piece, BenchError> {
        let before = self.before()?;
        let value = piece(self.floors)?;
        self.piece(before, value)
    }

    fn before(&mut self) -> Result<f64, BenchError> {
        match self.last_ns.take() {
            Some(line) => Ok(line),
            None => self.line(),
        }
    }

    fn piece(&mut self, before: f64, value: f64) -> Result<Piece, BenchError> {
        let after = self.line()?;
        self.last_ns = Some(after);
        Ok(Piece { value, lines_ns: [before, after] })
    }

    fn frame(&mut self, count: u64) -> Result<Piece, BenchError> {
        let before = self.before()?;
        self.scratch.reset();
        self.floors.announce(Phase::Frame)?;
        self.floors.frame(count, &mut self.scratch)?;
        self.measured.frame.add(&self.scratch)?;
        let value = self.scratch.fine_median_ns();
        self.piece(before, value)
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
    let mut measured = Measured {
        test: Recorder::new()?,
        slices: vec![],
        pairs: vec![],
        cost: Cost::default(),
        floors: None,
        others: others.into_iter().map(|other| Other::new(other, amount.slice)).collect(),
        ended: None,
    };
    let mut warm = Recorder::new()?;
    if let Some(floors) = floors.as_deref_mut() {
        floors.announce(Phase::Test)?;
    }
    target.run(amount.warmup, &mut warm)?;
    let gauge = floors.map(Gauge::new).transpose()?;
    let meter = Meter::start(amount.server, &target.counted());
    let pace = Pace { per_second: warm.per_second(), slice: amount.slice };
    let mut bench = Bench { target, gauge, meter, pace, slice: warm };
    if let Some(gauge) = &mut bench.gauge {
        // The first frames pay for pages; the first lines are the test's.
        gauge.frame(FRAMES_MIN)?;
        gauge.measured = MeasuredFloors { line: Recorder::new()?, frame: Recorder::new()? };
    }
    let ended = bench.pairs(&mut measured, amount);
    // A worker that is gone counts nothing.
    let counted = if ended.is_ok() { bench.target.counted() } else { Counted::default() };
    let work = if ended.is_ok() { bench.watched(amount).unwrap_or_default() } else { [None; 2] };
    measured.cost = bench.meter.finish(measured.test.count(), counted);
    [measured.cost.client_work, measured.cost.server_work] = work;
    measured.floors = bench.gauge.map(|gauge| gauge.measured);
    measured.ended = ended.err();
    Ok(measured)
}

/// What takes turns.
struct Bench<'a> {
    target: &'a mut dyn Target,
    gauge: Option<Gauge<'a>>,
    meter: Meter,
    pace: Pace,
    slice: Recorder,
}

impl Bench<'_> {
    #[expect(clippy::cast_precision_loss, reason = "counts of pairs")]
    fn pairs(&mut self, measured: &mut Measured, amount: &Amount) -> Result<(), BenchError> {
        let progress = progress(amount.is_quiet, amount.pairs);
        let Amount { count, pairs, .. } = *amount;
        for pair in 0..pairs {
            let calls = count * (pair + 1) / pairs - count * pair / pairs;
            let (mut left, first) = (calls, measured.slices.len());
            if pair > 0 && measured.others.iter().any(|other| other.is_program) {
                // They left the caches, and an emulator's translations, to themselves.
                self.get_ready()?;
                self.target.run(amount.warmup.min(calls), &mut self.slice)?;
            }
            // Each pair has its part of the time, so that programs of others keep their turns.
            let end = amount.limit.map(|limit| Stamp::now().after(limit.div_f64(pairs.max(1) as f64)));
            while left > 0 && (measured.slices.len() == first || end.is_none_or(|end| Stamp::now() < end)) {
                // Without floors there is nothing to tell slices by.
                let now = if self.gauge.is_some() { self.pace.next(left) } else { left };
                self.slice(measured, now)?;
                left -= now;
            }
            let ours = &measured.slices[first..];
            let of = |what: fn(&Slice) -> f64| median(&ours.iter().map(what).collect::<Vec<_>>());
            let times = of(|slice| slice.test.value).unwrap_or(0.0);
            measured.pairs.push([times, of(|slice| slice.rate).unwrap_or(0.0)]);
            self.programs(&mut measured.others, calls.clamp(1, CONTENDER_MAX));
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(())
    }

    /// One slice of everybody who is quick.
    fn slice(&mut self, measured: &mut Measured, calls: u64) -> Result<(), BenchError> {
        let mut slice = Slice::default();
        if let Some(gauge) = &mut self.gauge {
            slice.frame = gauge.frame(calls.clamp(FRAMES_MIN, FRAMES_MAX))?;
        }
        slice.test = self.test(measured, calls)?;
        slice.rate = self.slice.per_second();
        self.pace.per_second = slice.rate;
        if let Some(gauge) = &mut self.gauge {
            let others = measured.others.iter_mut();
            slice.others = others.map(|other| other.slice(gauge, calls)).collect::<Result<_, _>>()?;
        }
        measured.slices.push(slice);
        Ok(())
    }

    fn test(&mut self, measured: &mut Measured, calls: u64) -> Result<Piece, BenchError> {
        let Self { target, gauge, meter, slice, .. } = self;
        let mut run = |floors: Option<&mut Floors>| -> Result<f64, BenchError> {
            slice.reset();
            floors.map_or(Ok(()), |floors| floors.announce(Phase::Test))?;
            meter.begin();
            let done = target.run(calls, slice);
            meter.end();
            // What a slice that broke off has counts too, but not as a slice.
            measured.test.add(slice)?;
            done?;
            Ok(slice.fine_median_ns())
        };
        match gauge {
            Some(gauge) => gauge.around(|floors| run(Some(floors))),
            None => Ok(Piece { value: run(None)?, ..Piece::default() }),
        }
    }

    /// Before calls that are in no slice.
    fn get_ready(&mut self) -> Result<(), BenchError> {
        if let Some(gauge) = &mut self.gauge {
            gauge.floors.announce(Phase::Test)?;
        }
        self.slice.reset();
        Ok(())
    }

    /// What calls do on either side: of some more, which are not timed. As many as warmed up, at most [`WATCHED_MAX`].
    fn watched(&mut self, amount: &Amount) -> Result<[Option<Work>; 2], BenchError> {
        let calls = amount.warmup.min(WATCHED_MAX);
        if calls == 0 {
            return Ok([None; 2]);
        }
        self.get_ready()?;
        let mut watches = [Some(std::process::id()), amount.server].map(|process| process.map(Watch::new));
        // Ours last, and read first: looking is work too.
        watches.iter_mut().rev().flatten().for_each(Watch::begin);
        let done = self.target.run(calls, &mut self.slice);
        let work = watches.map(|watch| watch.map(|watch| watch.end(calls)));
        done.map(|()| work)
    }

    /// Programs of others have the cores for themselves.
    fn programs(&mut self, others: &mut [Other], count: u64) {
        let Some(gauge) = &mut self.gauge else { return };
        for other in others.iter_mut().filter(|other| other.is_program && other.failed.is_none()) {
            gauge.last_ns = None;
            match other.contender.slice(gauge.floors, count) {
                Ok(value) => other.values.push(value),
                Err(error) => other.failed = Some(error.to_string()),
            }
        }
    }
}

impl Other {
    fn new(contender: Box<dyn Contender>, slice: Duration) -> Self {
        let is_program = !contender.commands(1).is_empty();
        Self { contender, is_program, values: vec![], failed: None, pace: Pace { per_second: 0.0, slice } }
    }

    /// Its turn in a slice; at most `calls` exchanges before it is known how long one takes. What it fails of is
    /// kept, but
    /// a wrong answer ends the run: companions are layers of ours.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    fn slice(&mut self, gauge: &mut Gauge<'_>, calls: u64) -> Result<Option<Piece>, BenchError> {
        if self.is_program || self.failed.is_some() {
            return Ok(None);
        }
        let is_first = self.pace.per_second <= 0.0;
        let count = if is_first { calls.clamp(1, FIRST_MAX) } else { self.pace.next(CONTENDER_MAX) };
        let mut took = 1;
        let measured = gauge.around(|floors| {
            let first = Stamp::now();
            let value = self.contender.slice(floors, count);
            took = Stamp::now().nanos_since(first).max(1);
            value
        });
        self.pace.per_second = count as f64 * 1e9 / took as f64;
        match measured {
            Ok(piece) => Ok(Some(piece)),
            Err(error @ BenchError::Wrong(_)) => Err(error),
            Err(error) => {
                self.failed = Some(error.to_string());
                Ok(None)
            }
        }
    }
}

/// Only for people who watch: moves between pairs, never within one.
fn progress(is_quiet: bool, pairs: u64) -> ProgressBar {
    if is_quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} pair {pos}/{len}  {elapsed}");
    let bar = ProgressBar::new(pairs);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_takes_ten_milliseconds_and_all_calls_are_made() {
        let of = |per_second| Pace { per_second, slice: Duration::from_millis(10) };
        let pace = of(1e6);
        assert_eq!((pace.next(1_000_000), pace.next(14_000), pace.next(16_000)), (10_000, 14_000, 10_000));
        assert_eq!((pace.next(3), of(0.0).next(1000)), (3, 4));
        let (mut left, mut slices) = (155_555, 0);
        while left > 0 {
            left -= pace.next(left);
            slices += 1;
        }
        assert_eq!(slices, 16);
        assert_eq!(of(f64::INFINITY).next(77), 77);
    }
}
