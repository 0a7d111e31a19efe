//! The rounds, and what they came to beside the targets.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use gimmal_bench::{
    environment::Environment,
    slices::{Estimate, median},
};
use serde_json::{Value, json};

use crate::{
    case::{Case, Cores, WINDOW, Way},
    list::{Bound, Target},
    measure::{Pins, Times},
    place::Over,
    way::{Program, program, slice},
};

/// A case, and its slice of every round.
struct Row {
    case: Case,
    slices: Vec<Times>,
}

impl Row {
    fn each(&self, of: impl Fn(&Times) -> f64) -> Vec<f64> {
        self.slices.iter().map(of).collect()
    }

    /// Nanoseconds of a round trip; calls per second where there is a window; the share of a core where there are no calls.
    fn values(&self) -> Vec<f64> {
        self.each(|times| match self.case {
            Case { cores: Cores::AtRest, .. } => times.cpu_ns[0].max(times.cpu_ns[1]) / 1e9,
            Case { window: 1, .. } => times.median_ns,
            _ => times.per_second,
        })
    }
}

/// What was measured.
pub(crate) struct Comparison {
    rows: Vec<Row>,
    pub(crate) over: Over,
    pub(crate) rounds: u32,
    pub(crate) calls: usize,
    pub(crate) pins: Pins,
    pub(crate) environment: Environment,
    pub(crate) load: (String, String),
}

/// Processes that ran or wanted to, over the last minute.
fn load() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split(' ').next().unwrap_or_default().to_owned()
}

/// Everybody, or only these, in turns.
pub(crate) fn run(over: Over, pins: Pins, calls: usize, rounds: u32, only: &[Way]) -> Result<Comparison> {
    let environment = Environment::read(std::path::Path::new("/"), pins.client);
    let before = load();
    let lines = over.sections().iter().flat_map(|section| section.lines);
    let cases = lines.flat_map(|line| line.windows.iter().map(|window| line.case.with(*window)));
    let mut cases: Vec<Case> = cases.filter(|case| only.is_empty() || only.contains(&case.way)).collect();
    let mut programs: Vec<(Way, Program)> = vec![];
    let mut ways: Vec<Way> = cases.iter().map(|case| case.way).collect();
    ways.dedup();
    for way in ways {
        match program(way, pins) {
            None => {}
            Some(Ok(program)) => programs.push((way, program)),
            Some(Err(why)) => {
                eprintln!("{} is left out: {why}", Case::of(way).name());
                cases.retain(|case| case.way != way);
            }
        }
    }
    let mut rows: Vec<Row> = cases.into_iter().map(|case| Row { case, slices: vec![] }).collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for Row { case, slices } in &mut rows {
            let program = programs.iter_mut().find(|(way, _)| *way == case.way);
            slices.push(match program {
                Some((_, program)) => {
                    let per_second = program(*case, u64::try_from(calls)?)?;
                    Times { median_ns: 1e9 / per_second, p99_ns: f64::NAN, per_second, cpu_ns: [f64::NAN; 2] }
                }
                None => slice(*case, over, pins, calls)?,
            });
        }
    }
    let is_measured = |row: &Row| row.values().iter().all(|value| *value >= 0.0);
    ensure!(rows.iter().all(is_measured), "nothing was measured");
    Ok(Comparison { rows, over, rounds, calls, pins, environment, load: (before, load()) })
}

/// A target and what it came to.
pub(crate) struct Reached {
    pub(crate) name: String,
    pub(crate) estimate: Estimate,
    pub(crate) is_met: bool,
}

impl Comparison {
    fn row(&self, case: Case) -> Option<&Row> {
        self.rows.iter().find(|row| row.case == case)
    }

    pub(crate) fn has(&self, case: Case) -> bool {
        self.row(case).is_some()
    }

    /// The median of [`Row::values`].
    pub(crate) fn value(&self, case: Case) -> Option<f64> {
        median(&self.row(case)?.values())
    }

    /// Processor time of a call at client and server, nanoseconds.
    pub(crate) fn cpu_ns(&self, case: Case) -> Option<[f64; 2]> {
        let row = self.row(case)?;
        let side = |side: usize| median(&row.each(|times| times.cpu_ns[side])).filter(|ns| ns.is_finite());
        Some([side(0)?, side(1)?])
    }

    pub(crate) fn ratio(&self, ours: Case, theirs: Case) -> Option<Estimate> {
        Estimate::of_ratios(&self.row(ours)?.values(), &self.row(theirs)?.values())
    }

    /// As [`Comparison::ratio`], after the round trips of `other` were taken off ours.
    fn ratio_beyond(&self, ours: Case, other: Case, theirs: Case) -> Option<Estimate> {
        let (ours, other) = (self.row(ours)?.values(), self.row(other)?.values());
        let beyond: Vec<f64> = ours.iter().zip(&other).map(|(ours, other)| ours - other).collect();
        Estimate::of_ratios(&beyond, &self.row(theirs)?.values())
    }

    fn reach(&self, target: &Target) -> Option<Reached> {
        let Target { ours, theirs, bound } = *target;
        let (ours_name, theirs_name) = (ours.name(), theirs.name());
        let most = |estimate: Estimate, limit| (estimate, estimate.median <= limit);
        let ((estimate, is_met), name) = match bound {
            Bound::RoundTrip(limit) => (
                most(self.ratio(ours, theirs)?, limit),
                format!("{ours_name} <= {limit} x {theirs_name}, RTT, window 1"),
            ),
            Bound::RoundTripBeyond(other, limit) => (
                most(self.ratio_beyond(ours, other, theirs)?, limit),
                format!("{ours_name} - {} <= {limit} x {theirs_name}, RTT, window 1", other.name()),
            ),
            Bound::Rate(limit) => {
                let estimate = self.ratio(ours.with(WINDOW), theirs.with(WINDOW))?;
                let name = format!("{ours_name} >= {limit} x {theirs_name}, rate, window {WINDOW}");
                ((estimate, estimate.median >= limit), name)
            }
            Bound::Core(limit) => (
                most(Estimate::of(&self.row(ours)?.values())?, limit),
                format!("{ours_name} <= {limit} of a core on either side"),
            ),
        };
        Some(Reached { name, estimate, is_met })
    }

    pub(crate) fn reached(&self) -> Vec<Reached> {
        self.over.targets().iter().filter_map(|target| self.reach(target)).collect()
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "case": row.case.name(),
                "window": row.case.window,
                "unit": match row.case {
                    Case { cores: Cores::AtRest, .. } => "cores",
                    Case { window: 1, .. } => "ns",
                    _ => "calls_per_s",
                },
                "median": median(&row.values()),
                "slices": row.values(),
                "p99_ns": median(&row.each(|times| times.p99_ns)),
                "per_second": median(&row.each(|times| times.per_second)),
                "cpu_ns": self.cpu_ns(row.case),
            })
        };
        let target = |reached: &Reached| {
            let Estimate { median, low, high } = reached.estimate;
            json!({ "target": reached.name, "ratio": median, "interval": [low, high], "is_met": reached.is_met })
        };
        let pairs =
            self.rows.iter().flat_map(|ours| self.rows.iter().map(move |theirs| (ours.case, theirs.case)));
        let ratios: BTreeMap<String, Value> = pairs
            .filter(|(ours, theirs)| {
                let alike = Case { way: theirs.way, idling: theirs.idling, ..*ours };
                alike == *theirs && ours.way.is_ours() && !theirs.way.is_ours()
            })
            .filter_map(|(ours, theirs)| {
                let Estimate { median, low, high } = self.ratio(ours, theirs)?;
                let key = format!("{}/{} window {}", ours.name(), theirs.name(), ours.window);
                Some((key, json!({ "ratio": median, "interval": [low, high] })))
            })
            .collect();
        json!({
            "calls": self.calls,
            "rounds": self.rounds,
            "cpus": [self.pins.client, self.pins.server],
            "load": [self.load.0, self.load.1],
            "environment": self.environment,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "ratios": ratios,
            "targets": self.reached().iter().map(target).collect::<Vec<_>>(),
        })
    }
}
