//! The rounds, the table, and what gimmal is to reach.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use gimmal_bench::{
    against::ucx_echo::UcxEcho,
    environment::Environment,
    results::{Table, Tables},
    slices::{Estimate, median},
};
use serde_json::{Value, json};

use crate::{
    measure::{BYTES, Pins, Times},
    way::{Way, slice},
};

/// Calls at once, of the rows that have many.
const WINDOW: usize = 32;

/// All contenders, in the order of a round. iceoryx2's clients have one request in flight each.
const ROWS: [(Way, usize, &str); 31] = [
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
    (Way::TonicChannel, 1, "tonic over gimmal, channel, shm"),
    (Way::TonicDriven, 1, "tonic over gimmal, driven, shm"),
    (Way::TonicAlone, 1, "tonic in one process, no transport"),
    (Way::Iceoryx2, 1, "iceoryx2, request-response, polled"),
    (Way::Ucx, 1, UCX),
    (Way::Polled, WINDOW, "gimmal, polled without a runtime"),
    (Way::Driven, WINDOW, "gimmal, driven on tokio, shm"),
    (Way::Tokio, WINDOW, "gimmal, tokio's thread at both ends"),
    (Way::Handoff, WINDOW, "gimmal, handed off, tokio, shm"),
    (Way::Threads, WINDOW, "gimmal, multi-thread runtimes, shm"),
    (Way::Tarpc, WINDOW, "tarpc, unix socket"),
    (Way::TarpcThreads, WINDOW, "tarpc, multi-thread runtimes"),
    (Way::Tonic, WINDOW, "tonic, unix socket"),
    (Way::TonicChannel, WINDOW, "tonic over gimmal, channel, shm"),
    (Way::TonicDriven, WINDOW, "tonic over gimmal, driven, shm"),
    (Way::TonicAlone, WINDOW, "tonic in one process, no transport"),
    (Way::Ucx, WINDOW, UCX),
];

const UCX: &str = "UCX, active messages (mean)";

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

const TARGETS: [Target; 16] = [
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
    Target { ours: Way::TonicChannel, theirs: Way::Tonic, bound: Bound::RoundTrip(0.2) },
    Target { ours: Way::TonicChannel, theirs: Way::Tonic, bound: Bound::Rate(4.0) },
    Target { ours: Way::TonicDriven, theirs: Way::Tonic, bound: Bound::Rate(8.0) },
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

/// Processes that ran or wanted to, over the last minute.
fn load() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split(' ').next().unwrap_or_default().to_owned()
}

/// Everybody, or only these, in turns.
pub(crate) fn run(pins: Pins, calls: usize, rounds: u32, only: &[Way]) -> Result<Comparison> {
    let environment = Environment::read(std::path::Path::new("/"), pins.client);
    let before = load();
    let mut ucx = UcxEcho::for_cores(BYTES, pins.client, pins.server);
    let is_wanted = |way: Way| only.is_empty() || only.contains(&way);
    if let Err(why) = &ucx
        && is_wanted(Way::Ucx)
    {
        eprintln!("UCX is left out: {why}");
    }
    let wanted = ROWS.into_iter().filter(|(way, ..)| is_wanted(*way) && (*way != Way::Ucx || ucx.is_ok()));
    let mut rows: Vec<Row> =
        wanted.map(|(way, window, what)| Row { way, window, what, values: vec![] }).collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for row in &mut rows {
            let times = match &mut ucx {
                Ok(ucx) if row.way == Way::Ucx => {
                    let per_second = ucx.rate(row.window, u64::try_from(calls)?)?;
                    Times { median_ns: 1e9 / per_second, per_second }
                }
                _ => slice(row.way, pins, calls, row.window)?,
            };
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

    /// For people: everybody with one call at a time and with a window, and what the targets came to.
    pub(crate) fn tables(&self) -> Tables {
        let guest = if self.environment.is_guest { "virtual " } else { "" };
        let date = std::process::Command::new("date").args(["-u", "+%F"]).output();
        let date = date.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
        let table = |title: &str, method, columns: &[&str], rows| Table {
            machine: format!("{}, {} {guest}cores", self.environment.cpu, self.environment.cores),
            date: date.as_ref().cloned().unwrap_or_default(),
            build: self.environment.commit.clone(),
            title: title.to_owned(),
            method,
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows,
            notes: vec![],
        };
        let method = format!(
            "`bench/peers`: two processes on cores {} and {}, medians of {} slices of {} calls, in turns. Ratios to tarpc are medians of \
             pairs; below 1 is better for a round trip, above 1 for a rate. The load was {} before and {} after.",
            self.pins.client, self.pins.server, self.rounds, self.calls, self.load.0, self.load.1
        );
        let columns = ["client", "round trip, ns", "to tarpc", "calls/s, 32 in flight", "to tarpc"];
        let echoes =
            table("64-byte echoes by client, beside other libraries", method, &columns, self.lines());
        let method = "The same run. A ratio is the median of the pairs, with its 95 % interval.".to_owned();
        let columns = ["target", "ratio", "interval", "is"];
        let targets = self.reached().into_iter().map(|Reached { name, estimate, is_met }| {
            let Estimate { median, low, high } = estimate;
            let verdict = if is_met { "met" } else { "**missed**" };
            vec![name, format!("{median:.3}"), format!("{low:.3}..{high:.3}"), verdict.to_owned()]
        });
        let targets = table("Targets of these echoes", method, &columns, targets.collect());
        Tables { table: vec![echoes, targets] }
    }

    /// A line for each way.
    fn lines(&self) -> Vec<Vec<String>> {
        let cells = |way: Way, window: usize| {
            let value = self.row(way, window).and_then(|row| median(&row.values));
            let ratio = self.ratio(way, Way::Tarpc, window).filter(|_| way != Way::Tarpc);
            [value.map(|value| format!("{value:.0}")), ratio.map(|ratio| format!("{:.3}", ratio.median))]
                .map(Option::unwrap_or_default)
        };
        let mut lines: Vec<(Way, Vec<String>)> = Vec::new();
        for row in &self.rows {
            if lines.iter().all(|(way, _)| *way != row.way) {
                let mut line = vec![row.what.to_owned()];
                line.extend([1, WINDOW].into_iter().flat_map(|window| cells(row.way, window)));
                lines.push((row.way, line));
            }
        }
        lines.into_iter().map(|(_, line)| line).collect()
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
    !matches!(way, Way::Exchange | Way::Tarpc | Way::TarpcThreads | Way::Tonic | Way::Iceoryx2 | Way::Ucx)
}

fn name(way: Way) -> String {
    format!("{way:?}").to_lowercase()
}
