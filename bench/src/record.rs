//! The parts of a report: what was measured beside the test, in one core placement, at one load, in a soak.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{recorder::Recorder, states::SLICES_MIN};

/// Less than this part of what was offered is too little.
const REACHED: f64 = 0.95;
/// A p99 above this many times that of the lowest load is too slow.
const SLOW: u64 = 10;

/// What was measured while a cache line cost the same.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HostState {
    /// What it cost, there and back; the median of the slices.
    pub line_ns: f64,
    /// Slices of the test.
    pub slices: usize,
    /// Starts of the processes that saw it, three slices each; with less they are taken together.
    #[serde(default)]
    pub starts: usize,
    /// The median of their medians.
    pub p50_ns: f64,
    /// The median of their rates.
    pub per_s: f64,
    /// As in the report, of this state.
    pub ratio_to_frame_floor: Option<f64>,
    /// As in the report, of this state.
    pub ratio_to_frame_floor_interval: Option<[f64; 2]>,
    /// The contenders in this core placement, without other programs, which start too slowly for that.
    pub rows: Vec<StateRow>,
}

impl HostState {
    /// Whether there are slices enough to believe its ratios.
    #[must_use]
    pub const fn is_sure(&self) -> bool {
        self.slices >= SLICES_MIN
    }
}

/// Someone who was measured beside the test, in one state.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StateRow {
    /// What is measured in turns with the test.
    pub name: String,
    /// What the number says.
    pub what: String,
    /// Pairs in this state.
    pub slices: usize,
    /// As of the state, of these pairs.
    #[serde(default)]
    pub starts: usize,
    /// The test's number over this one's, median of the pairs.
    pub ratio: f64,
    /// Where it lies with 95 % confidence.
    pub ratio_interval: [f64; 2],
}

/// Someone who was measured beside the test.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// What is measured in turns with the test.
    pub name: String,
    /// What the number says.
    pub what: String,
    /// Median of the slices: nanoseconds, or per second.
    pub value: Option<f64>,
    /// Pairs of it and the test that are compared: those of the state most seen; of a program all.
    pub slices: usize,
    /// The test's number over this one's, median of the pairs.
    pub ratio: Option<f64>,
    /// Where the ratio lies with 95 % confidence (all pairs, of less than six).
    pub ratio_interval: Option<[f64; 2]>,
    /// Why there is no number, or not from every slice.
    pub note: Option<String>,
    /// A program of others: what is typed to get its number by hand, the server's command and the client's.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// A part of a test with a distribution of its own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// What, for people.
    pub name: String,
    /// What it is ordered by: connections, offered calls per second.
    pub at: f64,
    /// How many were measured.
    pub count: u64,
    /// Half of them took at most this.
    pub p50_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// As many were done in a second.
    pub per_s: f64,
    /// So many bytes, where they are what is moved.
    #[serde(default)]
    pub bytes_per_s: Option<f64>,
    /// What else there is to say.
    pub note: Option<String>,
}

/// What became of the calls of a soak.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Soaked {
    /// How long it took, seconds.
    pub seconds: f64,
    /// Calls whose answer was compared, byte by byte, and right.
    pub verified: u64,
    /// Bytes of these answers.
    pub verified_bytes: u64,
    /// Times that we killed the server.
    pub kills: u64,
    /// Connections after the first.
    pub reconnects: u64,
    /// The longest time without a server, milliseconds.
    pub away_ms_max: u64,
    /// Calls that failed, and for certain did not run.
    pub not_run: u64,
    /// Calls that failed, and may have run.
    pub maybe_ran: u64,
    /// Calls that failed although they ran.
    pub ran: u64,
}

/// The highest of the loads that were reached without the p99 rising far above that of the lowest one.
#[must_use]
pub fn knee(parts: &[Part]) -> Option<usize> {
    let base = parts.iter().min_by(|one, other| one.at.total_cmp(&other.at))?.p99_ns.max(1);
    let holds = |part: &Part| part.per_s >= part.at * REACHED && part.p99_ns <= base.saturating_mul(SLOW);
    let held = parts.iter().enumerate().filter(|(_, part)| holds(part));
    held.max_by(|(_, one), (_, other)| one.at.total_cmp(&other.at)).map(|(index, _)| index)
}

/// Nanoseconds with three digits and a unit.
#[expect(clippy::cast_precision_loss, reason = "for people")]
#[must_use]
pub fn time(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        _ => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

impl Part {
    /// What a recorder has.
    pub(crate) fn of(name: String, at: f64, recorder: &Recorder, per_s: f64) -> Self {
        Self {
            name,
            at,
            count: recorder.count(),
            p50_ns: recorder.quantile_ns(0.5),
            p99_ns: recorder.quantile_ns(0.99),
            p999_ns: recorder.quantile_ns(0.999),
            max_ns: recorder.max_ns(),
            per_s,
            bytes_per_s: None,
            note: None,
        }
    }
}

impl Row {
    /// Its value as people read it: a time with its unit, or a number of something per second.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    #[must_use]
    pub fn shown_value(&self) -> Option<String> {
        let value = self.value?;
        Some(if self.what.contains("second") {
            format!("{value:.0}")
        } else {
            time(value.max(0.0).round() as u64)
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<44}", self.name)?;
        if let Some(value) = self.shown_value() {
            write!(f, " {value:>12} {}", self.what)?;
        }
        if let Some(ratio) = self.ratio {
            write!(f, "; ours is {ratio:.2} x")?;
        }
        if let Some([low, high]) = self.ratio_interval {
            write!(f, " ({low:.2} to {high:.2}, {} pairs)", self.slices)?;
        }
        match &self.note {
            Some(note) => write!(f, " [{note}]"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<36} p50 {:>9}  p99 {:>9}", self.name, time(self.p50_ns), time(self.p99_ns))?;
        write!(f, "  p99.9 {:>9}  max {:>9}", time(self.p999_ns), time(self.max_ns))?;
        if self.per_s > 0.0 {
            write!(f, "  {:>10.0} per s", self.per_s)?;
        }
        if let Some(bytes) = self.bytes_per_s {
            write!(f, "  {:>9.1} MB/s", bytes / 1e6)?;
        }
        match &self.note {
            Some(note) => write!(f, "  {note}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, verified, verified_bytes, kills, reconnects, away_ms_max, .. } = self;
        writeln!(
            f,
            "soaked             {seconds:.1} s, {verified} calls and {verified_bytes} bytes verified"
        )?;
        writeln!(
            f,
            "restarts           {kills} kills, {reconnects} reconnects, at most {away_ms_max} ms away"
        )?;
        let failed = self.not_run + self.maybe_ran + self.ran;
        let Self { not_run, maybe_ran, ran, .. } = self;
        writeln!(f, "failed calls       {failed}: {not_run} did not run, {maybe_ran} may have, {ran} did")
    }
}

impl fmt::Display for HostState {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line_ns, slices, starts, p50_ns, per_s, .. } = self;
        let p50 = time(p50_ns.max(0.0).round() as u64);
        let starts = if *starts > 1 { format!(" of {starts} starts") } else { String::new() };
        write!(f, "line {line_ns:.0} ns in {slices} slices{starts}: p50 {p50}, {per_s:.0} per s")?;
        if let (Some(ratio), Some([low, high])) =
            (self.ratio_to_frame_floor, self.ratio_to_frame_floor_interval)
        {
            write!(f, "; {ratio:.2} x frame floor ({low:.2} to {high:.2})")?;
        }
        for StateRow { name, ratio, ratio_interval: [low, high], .. } in &self.rows {
            write!(f, "; {ratio:.2} x {name} ({low:.2} to {high:.2})")?;
        }
        if self.is_sure() { Ok(()) } else { f.write_str(" [few]") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_the_last_load_that_holds() {
        let part = |at: f64, per_s: f64, p99_ns| Part { at, per_s, p99_ns, ..Part::default() };
        let parts = [part(10.0, 10.0, 5), part(50.0, 50.0, 9), part(90.0, 89.0, 30), part(100.0, 93.0, 20)];
        assert_eq!(knee(&parts), Some(2));
        assert_eq!(knee(&[part(10.0, 5.0, 5)]), None);
        assert_eq!(knee(&[]), None);
    }
}
