//! Runs of the same tests beside each other: do they say the same?
//!
//! ```text
//!  run 1   line 66: 2.10   line 400: 1.25        state by state: the ratios of a state that several runs saw must lie
//!  run 2                   line 410: 1.22        within so many percent of their middle; what else was measured beside
//!  run 3   line 70: 2.02   line 395: 1.28        the test, within the intervals that were printed
//! ```

use std::fmt;

use serde_json::{Value, json};

use crate::{
    error::BenchError,
    out,
    record::HostState,
    report::Report,
    slices::median,
    states::{SLICES_MIN, nearest},
};

/// How the runs came out for one ratio in one state.
#[derive(Clone, PartialEq, Debug)]
struct Verdict {
    /// Which ratio.
    name: String,
    /// What a line took, nanoseconds.
    line_ns: f64,
    /// Of each run that saw the state.
    ratios: Vec<f64>,
    /// All runs saw it, not just some.
    is_of_all: bool,
    /// None of them is further from the middle, percent.
    apart_pct: f64,
    /// What is asked.
    wanted: Wanted,
    /// Whether it is met.
    is_met: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Wanted {
    /// Within percent of the middle: inline, over shared memory.
    Within(f64),
    /// Their intervals meet.
    Intervals,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, line_ns, ratios, apart_pct, .. } = self;
        let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let verdict = if self.is_met { "ok" } else { "APART" };
        write!(f, "{verdict:<5} {name}, line {line_ns:.0} ns: {} ", ratios.join(", "))?;
        if !self.is_of_all {
            f.write_str("(not seen by all) ")?;
        }
        match self.wanted {
            Wanted::Within(limit) => write!(f, "within {apart_pct:.0} % of their middle, limit {limit:.0} %"),
            Wanted::Intervals => {
                f.write_str(if self.is_met { "intervals meet" } else { "intervals do not meet" })
            }
        }
    }
}

/// A ratio of one state: to whom, what it is, its interval, and of how many starts.
type Ratio<'a> = (&'a str, f64, [f64; 2], usize);

/// The ratios of one state. A rate with a window has a floor with the same window
/// beside it; to divide it by frames that wait for each other compares the machine's rate with its latency, which move apart.
fn ratios(window: usize, state: &HostState) -> Vec<Ratio<'_>> {
    let has_ring = window > 1 && state.rows.iter().any(|row| row.name.starts_with("bare"));
    let frame = state.ratio_to_frame_floor.zip(state.ratio_to_frame_floor_interval).filter(|_| !has_ring);
    let rows = state.rows.iter().filter(|row| row.slices >= SLICES_MIN);
    let rows = rows.map(|row| (&*row.name, row.ratio, row.ratio_interval, row.starts));
    frame
        .into_iter()
        .map(|(ratio, interval)| ("frame floor", ratio, interval, state.starts))
        .chain(rows)
        .collect()
}

/// Whether a ratio is of code that never sleeps, on both sides of the line.
fn is_steady(report: &Report, to: &str) -> bool {
    let is_own = to == "frame floor" || to.starts_with("bare");
    report.provider == "shm" && report.mode == "inline" && is_own && matches!(&*report.test, "lat" | "rate")
}

/// Every ratio of every state that at least two of `runs` saw, [`SLICES_MIN`] slices each.
fn verdicts(runs: &[Vec<Report>], limit_pct: f64) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    let sure = |report: &Report| -> Vec<HostState> {
        report.states.iter().filter(|state| state.is_sure()).cloned().collect()
    };
    for (number, report) in
        runs.iter().enumerate().flat_map(|(number, run)| run.iter().map(move |report| (number, report)))
    {
        let same: Vec<(&Report, Vec<HostState>)> = runs
            .iter()
            .filter_map(|run| run.iter().find(|other| other.name() == report.name()))
            .map(|other| (other, sure(other)))
            .collect();
        for state in sure(report) {
            for (to, ..) in ratios(report.window, &state) {
                let title = format!("{}, to {to}", report.name());
                let is_told = verdicts.iter().any(|told| {
                    told.name == title && nearest(state.line_ns, &[told.line_ns], |line| *line).is_some()
                });
                let wanted =
                    if is_steady(report, to) { Wanted::Within(limit_pct) } else { Wanted::Intervals };
                // An interval of one start, of several, says nothing about the next.
                let is_known = |starts| wanted != Wanted::Intervals || report.starts < 2 || starts > 1;
                let found: Vec<(f64, [f64; 2])> = same
                    .iter()
                    .filter_map(|(_, states)| nearest(state.line_ns, states, |state| state.line_ns))
                    .filter_map(|state| {
                        ratios(report.window, state).into_iter().find(|(other, ..)| *other == to)
                    })
                    .filter(|(.., starts)| is_known(*starts))
                    .map(|(_, ratio, interval, _)| (ratio, interval))
                    .collect();
                // What an earlier run saw was told with it.
                if found.len() < 2 || is_told || number + 1 == runs.len() {
                    continue;
                }
                verdicts.push(judge(title, state.line_ns, &found, found.len() == runs.len(), wanted));
            }
        }
    }
    verdicts
}

fn judge(name: String, line_ns: f64, found: &[(f64, [f64; 2])], is_of_all: bool, wanted: Wanted) -> Verdict {
    let ratios: Vec<f64> = found.iter().map(|(ratio, _)| *ratio).collect();
    let middle = median(&ratios).unwrap_or(0.0);
    let apart = ratios.iter().map(|ratio| (ratio / middle - 1.0).abs() * 100.0);
    let apart_pct = apart.fold(0.0, f64::max);
    let lows = found.iter().map(|(_, [low, _])| *low).fold(0.0, f64::max);
    let highs = found.iter().map(|(_, [_, high])| *high).fold(f64::INFINITY, f64::min);
    let is_met = match wanted {
        Wanted::Within(limit) => apart_pct <= limit,
        Wanted::Intervals => lows <= highs,
    };
    Verdict { name, line_ns, ratios, is_of_all, apart_pct, wanted, is_met }
}

impl Verdict {
    fn json(&self) -> Value {
        let Self { name, line_ns, ratios, is_of_all, apart_pct, wanted, is_met } = self;
        let limit_pct = match wanted {
            Wanted::Within(limit) => Some(limit),
            Wanted::Intervals => None,
        };
        json!({
            "name": name, "line_ns": line_ns, "ratios": ratios, "is_of_all": is_of_all, "apart_pct": apart_pct,
            "limit_pct": limit_pct, "is_met": is_met,
        })
    }
}

/// Prints how the runs agree. Returns what does not, among it that there was nothing to compare.
pub(crate) fn tell(runs: &[Vec<Report>], limit_pct: f64, as_json: bool) -> Result<Vec<String>, BenchError> {
    let verdicts = verdicts(runs, limit_pct);
    let mut wrong = Vec::new();
    for verdict in &verdicts {
        if as_json { out::json(&verdict.json()) } else { out::line(verdict) }?;
        // The others are printed: a neighbour's load is in them.
        wrong.extend((!verdict.is_met && verdict.wanted != Wanted::Intervals).then(|| verdict.to_string()));
    }
    let (others, inline): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|verdict| verdict.wanted == Wanted::Intervals);
    let of_all = inline.iter().filter(|verdict| verdict.is_of_all).count();
    let met = others.iter().filter(|verdict| verdict.is_met).count();
    if !as_json {
        let (inline, others, runs) = (inline.len(), others.len(), runs.len());
        out::line(format_args!("{inline} inline ratios compared, {of_all} of them in all {runs} runs"))?;
        out::line(format_args!("{others} others compared, the intervals of {met} of them meet"))?;
    }
    if inline.is_empty() {
        wrong.push(format!("no state of the host was seen in {SLICES_MIN} slices by two runs"));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StateRow;

    fn tell(runs: &[Vec<Report>], limit_pct: f64) -> Vec<String> {
        super::tell(runs, limit_pct, false).unwrap()
    }

    fn run(mode: &str, states: &[(f64, f64)]) -> Vec<Report> {
        let states = states.iter().map(|(line_ns, ratio)| {
            let ratio_interval = [ratio * 0.9, ratio * 1.1];
            let row = StateRow {
                name: "unix socket".to_owned(),
                slices: 9,
                ratio: *ratio,
                ratio_interval,
                ..StateRow::default()
            };
            HostState {
                line_ns: *line_ns,
                slices: 9,
                ratio_to_frame_floor: Some(*ratio),
                ratio_to_frame_floor_interval: Some(ratio_interval),
                rows: vec![row],
                ..HostState::default()
            }
        });
        vec![Report {
            test: "lat".to_owned(),
            provider: "shm".to_owned(),
            mode: mode.to_owned(),
            states: states.collect(),
            ..Report::default()
        }]
    }

    #[test]
    fn runs_are_compared_state_by_state() {
        let runs = [
            run("inline", &[(66.0, 2.1), (400.0, 1.25)]),
            run("inline", &[(410.0, 1.22)]),
            run("inline", &[(70.0, 2.02), (395.0, 1.28)]),
        ];
        let found = verdicts(&runs, 15.0);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.iter().all(|verdict| verdict.is_met));
        let frame: Vec<_> = found.iter().filter(|verdict| verdict.name.ends_with("frame floor")).collect();
        assert_eq!((frame[0].ratios.len(), frame[0].is_of_all), (2, false));
        assert_eq!((&*frame[1].ratios, frame[1].is_of_all), (&[1.25, 1.22, 1.28][..], true));
        assert_eq!(tell(&runs, 15.0), Vec::<String>::new());
        assert!(frame[1].to_string().starts_with("ok    lat shm"), "{}", frame[1]);
    }

    #[test]
    fn a_state_that_only_later_runs_saw_counts_too() {
        let runs =
            [run("inline", &[(66.0, 2.1)]), run("inline", &[(400.0, 1.2)]), run("inline", &[(400.0, 1.6)])];
        let wrong = tell(&runs, 15.0);
        assert_eq!(wrong.len(), 0, "the middle of 1.2 and 1.6 is within 15 % of both");
        assert_eq!(tell(&runs, 14.0).len(), 1);
    }

    #[test]
    fn inline_ratios_are_judged_and_others_are_told() {
        let runs = [run("inline", &[(400.0, 1.2)]), run("inline", &[(400.0, 2.0)])];
        let wrong = tell(&runs, 15.0);
        assert!(wrong.len() == 1 && wrong[0].starts_with("APART"), "{wrong:?}");
        let runs = [run("handoff", &[(400.0, 1.2)]), run("handoff", &[(400.0, 2.0)])];
        assert!(verdicts(&runs, 15.0).iter().all(|verdict| !verdict.is_met));
        assert!(tell(&runs, 15.0)[0].starts_with("no state"));
    }

    #[test]
    fn a_rate_with_a_window_is_judged_by_the_ring_of_that_window() {
        let runs = [1.2, 2.0].map(|ratio| {
            let mut run = run("inline", &[(400.0, ratio)]);
            run[0].window = 32;
            run
        });
        assert_eq!(tell(&runs, 15.0).len(), 1, "there is nothing else");
        let runs = runs.map(|mut run| {
            let row = run[0].states[0].rows[0].clone();
            run[0].states[0].rows.push(StateRow { name: "bare ring".to_owned(), ratio: 0.7, ..row });
            run
        });
        assert_eq!(tell(&runs, 15.0), Vec::<String>::new());
    }

    #[test]
    fn nothing_in_common_is_no_agreement() {
        let runs = [run("inline", &[(66.0, 2.0)]), run("inline", &[(400.0, 1.2)])];
        assert_eq!(tell(&runs, 15.0).len(), 1);
        assert_eq!(tell(&[], 15.0).len(), 1);
    }
}
