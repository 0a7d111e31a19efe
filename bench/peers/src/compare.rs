//! The rounds, the table, and what gimmal is to reach.

use std::{collections::BTreeMap, fmt};

use anyhow::{Result, ensure};
use gimmal_bench::{
    environment::Environment,
    slices::{Estimate, median},
};
use serde_json::{Value, json};

use crate::{
    measure::{BYTES, Pins},
    way::{Way, slice},
};

/// Calls at once, of the rows that have many.
const WINDOW: usize = 32;

/// All contenders, in the order of a round. iceoryx2's clients have one request in flight each.
const ROWS: [(Way, usize, &str); 23] = [
    (Way::Engine, 1, "gimmal, engine's echo, shm"),
    (Way::Inline, 1, "gimmal, inline, postcard, shm"),
    (Way::Flat, 1, "gimmal, inline, zerocopy, shm"),
    (Way::Vectors, 1, "gimmal, inline, async handler, shm"),
    (Way::Polled, 1, "gimmal, polled without a runtime"),
    (Way::Driven, 1, "gimmal, driven on tokio, shm"),
    (Way::Tokio, 1, "gimmal, tokio's thread at both ends"),
    (Way::Handoff, 1, "gimmal, handed off, tokio, shm"),
    (Way::Threads, 1, "gimmal, multi-thread runtimes, shm"),
    (Way::Blocking, 1, "gimmal, handed off, blocking, shm"),
    (Way::Exchange, 1, "two threads, one core"),
    (Way::Tarpc, 1, "tarpc, unix socket"),
    (Way::TarpcThreads, 1, "tarpc, multi-thread runtimes"),
    (Way::Tonic, 1, "tonic, unix socket"),
    (Way::Iceoryx2, 1, "iceoryx2, request-response, polled"),
    (Way::Polled, WINDOW, "gimmal, polled without a runtime"),
    (Way::Driven, WINDOW, "gimmal, driven on tokio, shm"),
    (Way::Tokio, WINDOW, "gimmal, tokio's thread at both ends"),
    (Way::Handoff, WINDOW, "gimmal, handed off, tokio, shm"),
    (Way::Threads, WINDOW, "gimmal, multi-thread runtimes, shm"),
    (Way::Tarpc, WINDOW, "tarpc, unix socket"),
    (Way::TarpcThreads, WINDOW, "tarpc, multi-thread runtimes"),
    (Way::Tonic, WINDOW, "tonic, unix socket"),
];

/// What is to be reached: a way's share of another's round trip, or a multiple of its rate.
struct Target {
    ours: Way,
    theirs: Way,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    /// At most this share of a round trip, with one call at a time.
    RoundTrip(f64),
    /// At most this share, after the round trip of another way was taken off ours.
    RoundTripBeyond(Way, f64),
    /// At least this multiple of the rate, with a window.
    Rate(f64),
}

const TARGETS: [Target; 13] = [
    Target { ours: Way::Flat, theirs: Way::Engine, bound: Bound::RoundTrip(1.25) },
    Target { ours: Way::Inline, theirs: Way::Engine, bound: Bound::RoundTrip(1.25) },
    Target { ours: Way::Driven, theirs: Way::Tonic, bound: Bound::RoundTrip(1.0 / 20.0) },
    Target { ours: Way::Driven, theirs: Way::Tarpc, bound: Bound::RoundTrip(1.0 / 10.0) },
    Target { ours: Way::Driven, theirs: Way::Tarpc, bound: Bound::Rate(10.0) },
    Target { ours: Way::Tokio, theirs: Way::Inline, bound: Bound::RoundTrip(3.0) },
    Target { ours: Way::Tokio, theirs: Way::Polled, bound: Bound::Rate(0.6) },
    Target { ours: Way::Handoff, theirs: Way::Tarpc, bound: Bound::RoundTrip(0.5) },
    Target { ours: Way::Handoff, theirs: Way::Exchange, bound: Bound::RoundTripBeyond(Way::Inline, 1.5) },
    Target { ours: Way::Handoff, theirs: Way::Tarpc, bound: Bound::Rate(5.0) },
    Target { ours: Way::Threads, theirs: Way::TarpcThreads, bound: Bound::RoundTrip(0.4) },
    Target { ours: Way::Threads, theirs: Way::TarpcThreads, bound: Bound::Rate(5.0) },
    Target { ours: Way::Blocking, theirs: Way::Exchange, bound: Bound::RoundTrip(1.5) },
];

/// One line: nanoseconds of each slice, or calls per second where there is a window.
struct Row {
    way: Way,
    window: usize,
    what: &'static str,
    values: Vec<f64>,
}

/// What was measured.
pub(crate) struct Comparison {
    rows: Vec<Row>,
    rounds: u32,
    calls: usize,
    pins: Pins,
    environment: Environment,
    load: (String, String),
}

/// Load averages, as the kernel tells them.
fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Everybody, or only these, in turns.
pub(crate) fn run(pins: Pins, calls: usize, rounds: u32, only: &[Way]) -> Result<Comparison> {
    let environment = Environment::read(std::path::Path::new("/"), pins.client);
    let before = load();
    let wanted = ROWS.into_iter().filter(|(way, ..)| only.is_empty() || only.contains(way));
    let mut rows: Vec<Row> =
        wanted.map(|(way, window, what)| Row { way, window, what, values: vec![] }).collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for row in &mut rows {
            let times = slice(row.way, pins, calls, row.window)?;
            row.values.push(if row.window == 1 { times.median_ns } else { times.per_second });
        }
    }
    ensure!(rows.iter().all(|row| row.values.iter().all(|value| *value > 0.0)), "nothing was measured");
    Ok(Comparison { rows, rounds, calls, pins, environment, load: (before, load()) })
}

/// A target and what it came to.
struct Reached {
    name: String,
    estimate: Estimate,
    is_met: bool,
}

impl Comparison {
    fn row(&self, way: Way, window: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.way == way && row.window == window)
    }

    fn ratio(&self, ours: Way, theirs: Way, window: usize) -> Option<Estimate> {
        Estimate::of_ratios(&self.row(ours, window)?.values, &self.row(theirs, window)?.values)
    }

    /// As [`Comparison::ratio`] of single calls, after the round trips of `other` were taken off ours.
    fn ratio_beyond(&self, ours: Way, other: Way, theirs: Way) -> Option<Estimate> {
        let (ours, other) = (self.row(ours, 1)?, self.row(other, 1)?);
        let beyond: Vec<f64> =
            ours.values.iter().zip(&other.values).map(|(ours, other)| ours - other).collect();
        Estimate::of_ratios(&beyond, &self.row(theirs, 1)?.values)
    }

    fn reached(&self) -> Vec<Reached> {
        let reach = |target: &Target| {
            let (ours, theirs) = (target.ours, target.theirs);
            let (ours_name, theirs_name) = (name(ours), name(theirs));
            let (estimate, is_met, name);
            match target.bound {
                Bound::RoundTrip(limit) => {
                    estimate = self.ratio(ours, theirs, 1)?;
                    is_met = estimate.median <= limit;
                    name = format!("{ours_name} <= {limit} x {theirs_name}, RTT, window 1");
                }
                Bound::RoundTripBeyond(other, limit) => {
                    estimate = self.ratio_beyond(ours, other, theirs)?;
                    is_met = estimate.median <= limit;
                    name = format!(
                        "{ours_name} - {} <= {limit} x {theirs_name}, RTT, window 1",
                        self::name(other)
                    );
                }
                Bound::Rate(limit) => {
                    estimate = self.ratio(ours, theirs, WINDOW)?;
                    is_met = estimate.median >= limit;
                    name = format!("{ours_name} >= {limit} x {theirs_name}, rate, window {WINDOW}");
                }
            }
            Some(Reached { name, estimate, is_met })
        };
        TARGETS.iter().filter_map(reach).collect()
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "way": name(row.way),
                "what": row.what,
                "window": row.window,
                "unit": if row.window == 1 { "ns" } else { "calls_per_s" },
                "median": median(&row.values),
                "slices": row.values,
            })
        };
        let target = |reached: &Reached| {
            let Estimate { median, low, high } = reached.estimate;
            json!({ "target": reached.name, "ratio": median, "interval": [low, high], "is_met": reached.is_met })
        };
        let ratios: BTreeMap<String, Value> = self
            .rows
            .iter()
            .flat_map(|ours| self.rows.iter().map(move |theirs| (ours, theirs)))
            .filter(|(ours, theirs)| {
                ours.window == theirs.window && is_ours(ours.way) && !is_ours(theirs.way)
            })
            .filter_map(|(ours, theirs)| {
                let Estimate { median, low, high } = Estimate::of_ratios(&ours.values, &theirs.values)?;
                let key = format!("{}/{} window {}", name(ours.way), name(theirs.way), ours.window);
                Some((key, json!({ "ratio": median, "interval": [low, high] })))
            })
            .collect();
        json!({
            "bytes": BYTES,
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

fn is_ours(way: Way) -> bool {
    !matches!(way, Way::Exchange | Way::Tarpc | Way::TarpcThreads | Way::Tonic | Way::Iceoryx2)
}

fn name(way: Way) -> String {
    format!("{way:?}").to_lowercase()
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{BYTES} B echo, two processes on cores {} and {}; medians of {} slices of {} calls, in turns; ratios with \
             95 % intervals",
            self.pins.client, self.pins.server, self.rounds, self.calls
        )?;
        writeln!(f, "load before and after: {} | {}", self.load.0, self.load.1)?;
        for window in [1, WINDOW] {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.window == window).collect();
            let peers: Vec<&Row> =
                rows.iter().copied().filter(|row| row.way == Way::Engine || !is_ours(row.way)).collect();
            let what = if window == 1 { "RTT p50, ns" } else { "calls per s" };
            write!(f, "\n{:<36} {what:>12}", format!("{window} at a time"))?;
            for peer in &peers {
                write!(f, "  {:>24}", format!("x {}", name(peer.way)))?;
            }
            writeln!(f)?;
            for row in &rows {
                write!(f, "{:<36} {:>12.0}", row.what, median(&row.values).unwrap_or(0.0))?;
                for peer in &peers {
                    let ratio = Estimate::of_ratios(&row.values, &peer.values);
                    let text = ratio.filter(|_| is_ours(row.way) && row.way != peer.way).map_or_else(
                        || "-".to_owned(),
                        |Estimate { median, low, high }| format!("{median:.3} ({low:.3}..{high:.3})"),
                    );
                    write!(f, "  {text:>24}")?;
                }
                writeln!(f)?;
            }
        }
        writeln!(f)?;
        for Reached { name, estimate: Estimate { median, low, high }, is_met } in self.reached() {
            let word = if is_met { "met   " } else { "MISSED" };
            writeln!(f, "{word}  {name}: {median:.3} ({low:.3}..{high:.3})")?;
        }
        Ok(())
    }
}
