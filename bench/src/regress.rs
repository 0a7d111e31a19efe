//! Compares two sets of records by instructions, and by ratios to the baselines of the same run in the same core
//! placement.

use crate::{
    error::BenchError,
    out,
    record::HostState,
    report::Report,
    states::{Lines, SLICES_MIN, nearest},
};

/// Instructions may grow by this without being told, percent: what the linker lays out differs.
const INSTRUCTIONS_PCT: f64 = 2.0;

/// What was compared, and how it came out.
#[derive(Clone, PartialEq, Debug)]
struct Compared {
    name: String,
    then: f64,
    now: f64,
    /// Percent by which it is worse; below 0 it is better.
    worse_pct: f64,
    is_worse: bool,
}

/// Whether more of this test's ratio is better.
fn is_rate(report: &Report) -> bool {
    matches!(&*report.test, "rate" | "bw")
}

/// `now` against `then`; worse only when the intervals do not meet either.
fn ratio(
    name: String,
    [then, now]: [f64; 2],
    [before, after]: [Option<[f64; 2]>; 2],
    more_is_better: bool,
    tolerance_pct: f64,
) -> Compared {
    let quotient = if more_is_better { then / now } else { now / then };
    let worse_pct = (quotient - 1.0) * 100.0;
    let apart = match (before, after) {
        (Some([low, _]), Some([_, high])) if more_is_better => high < low,
        (Some([_, high]), Some([low, _])) => low > high,
        _ => true,
    };
    Compared { name, then, now, worse_pct, is_worse: worse_pct > tolerance_pct && apart }
}

/// Ratios of one test that may be compared: names, numbers, intervals, and whether more is better.
type Ratios = Vec<(String, f64, Option<[f64; 2]>, bool)>;

/// Of what was measured while a line cost the same.
fn ratios_of(report: &Report, state: &HostState) -> Ratios {
    let frame = state.ratio_to_frame_floor.map(|ratio| {
        let name = "frame floor".to_owned();
        (name, ratio, state.ratio_to_frame_floor_interval, is_rate(report))
    });
    let rows = state.rows.iter();
    frame
        .into_iter()
        .chain(rows.map(|row| (row.name.clone(), row.ratio, Some(row.ratio_interval), !is_time(&row.what))))
        .collect()
}

/// Of programs, which meet many states in one turn.
fn ratios_of_programs(report: &Report) -> Ratios {
    let rows = report.rows.iter().filter(|row| !row.commands.is_empty());
    rows.filter_map(|row| Some((row.name.clone(), row.ratio?, row.ratio_interval, !is_time(&row.what))))
        .collect()
}

/// All that both have.
fn compare(baseline: &[Report], records: &[Report], tolerance_pct: f64) -> Vec<Compared> {
    let mut compared = Vec::new();
    for now in records {
        let Some(then) = baseline.iter().find(|then| then.name() == now.name()) else { continue };
        if !is_same_machine(then, now) {
            continue;
        }
        if now.test == "instructions" {
            let [old, new] =
                [then, now].map(|report| u32::try_from(report.count).map_or(f64::MAX, f64::from));
            let name = format!("instructions: {}", now.layer);
            compared.push(ratio(name, [old, new], [None, None], false, INSTRUCTIONS_PCT));
            continue;
        }
        let mut both = |place: &str, then: Ratios, now_has: Ratios| {
            for (who, new, after, more_is_better) in now_has {
                let Some((_, old, before, _)) = then.iter().find(|(name, ..)| *name == who) else { continue };
                let name = format!("{}, {place}to {who}", now.name());
                compared.push(ratio(name, [*old, new], [*before, after], more_is_better, tolerance_pct));
            }
        };
        both("", ratios_of_programs(then), ratios_of_programs(now));
        for (state, before) in shared(&now.states, &then.states) {
            both(&format!("line {:.0} ns, ", state.line_ns), ratios_of(then, before), ratios_of(now, state));
        }
    }
    compared
}

/// The states of `now` that were seen in `then` too, often enough both times, and those.
pub(crate) fn shared<'a>(
    now: &'a [HostState],
    then: &'a [HostState],
) -> impl Iterator<Item = (&'a HostState, &'a HostState)> {
    let sure = now.iter().filter(|state| state.is_sure());
    sure.filter_map(|state| {
        let before = nearest(state.line_ns, then, |state| state.line_ns)?;
        before.is_sure().then_some((state, before))
    })
}

/// Neither ratios nor instructions (the C library chooses its copies by the processor) say anything about another
/// processor, or another build.
fn is_same_machine(then: &Report, now: &Report) -> bool {
    let (then, now) = (&then.environment, &now.environment);
    (&then.cpu, &then.build) == (&now.cpu, &now.build)
}

/// What both have and no ratio of which was compared, each with the reason.
fn not_compared(baseline: &[Report], records: &[Report]) -> Vec<String> {
    let line = |state: &HostState| state.line_ns;
    let mut told = Vec::new();
    for now in records {
        let Some(then) = baseline.iter().find(|then| then.name() == now.name()) else { continue };
        if !is_same_machine(then, now) {
            let of = |report: &Report| format!("{} ({})", report.environment.cpu, report.environment.build);
            told.push(format!("{}: measured on {}, now on {}", now.name(), of(then), of(now)));
        } else if shared(&now.states, &then.states).next().is_none() && !now.states.is_empty() {
            let (then, now_seen) = (Lines(&then.states, line), Lines(&now.states, line));
            let seen = format!("lines of {then} then, of {now_seen} now");
            told.push(format!(
                "{}: no state of the host was seen {SLICES_MIN} times in both: {seen}",
                now.name()
            ));
        }
    }
    told
}

/// Whether less of such a quantity is better.
pub(crate) fn is_time(what: &str) -> bool {
    !what.contains("second")
}

/// Prints the comparison. Returns what is worse.
pub(crate) fn tell(
    baseline: &[Report],
    records: &[Report],
    tolerance_pct: f64,
) -> Result<Vec<String>, BenchError> {
    let compared = compare(baseline, records, tolerance_pct);
    out::line(format_args!(
        "beside the baseline (worse: ratios of one state by {tolerance_pct} % and outside both intervals, \
         instructions by {INSTRUCTIONS_PCT} %)"
    ))?;
    let not_compared = not_compared(baseline, records);
    if compared.is_empty() && not_compared.is_empty() {
        return Ok(vec!["the baseline has none of these runs".to_owned()]);
    }
    let mut worse = Vec::new();
    for Compared { name, then, now, worse_pct, is_worse } in compared {
        let verdict = if is_worse { "WORSE" } else { "ok" };
        let line = format!("{name:<72} {then:>9.2} -> {now:>9.2}  {worse_pct:>+6.1} %");
        out::line(format_args!("  {verdict:<5} {line}"))?;
        worse.extend(is_worse.then_some(line));
    }
    for line in not_compared {
        out::line(format_args!("  none  {line}"))?;
    }
    Ok(worse)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::record::{Row, StateRow};

    fn tell(baseline: &[Report], records: &[Report], tolerance_pct: f64) -> Vec<String> {
        super::tell(baseline, records, tolerance_pct).unwrap()
    }

    fn state(line_ns: f64, ratio: f64, what: &str) -> HostState {
        let ratio_interval = [ratio * 0.95, ratio * 1.05];
        let (name, what) = ("x".to_owned(), what.to_owned());
        let row = StateRow { name, what, slices: 9, ratio, ratio_interval, ..StateRow::default() };
        HostState {
            line_ns,
            slices: 9,
            ratio_to_frame_floor: Some(ratio),
            ratio_to_frame_floor_interval: Some(ratio_interval),
            rows: vec![row],
            ..HostState::default()
        }
    }

    fn report(test: &str, ratio: f64) -> Report {
        let what = if test == "lat" { "RTT p50" } else { "echoes per second" };
        Report { test: test.to_owned(), states: vec![state(400.0, ratio, what)], ..Report::default() }
    }

    #[test]
    fn worse_depends_on_what_is_measured() {
        let worse = |old: &Report, new: &Report| tell(from_ref(old), from_ref(new), 15.0).len();
        assert_eq!(worse(&report("lat", 1.2), &report("lat", 1.5)), 2);
        assert_eq!(worse(&report("lat", 1.5), &report("lat", 1.2)), 0);
        assert_eq!(worse(&report("rate", 4.0), &report("rate", 3.0)), 2);
        assert_eq!(worse(&report("rate", 3.0), &report("rate", 4.0)), 0);
        assert_eq!(worse(&report("lat", 1.2), &report("lat", 1.3)), 0, "within the tolerance");
        assert_eq!(worse(&report("lat", 1.2), &report("rate", 1.2)), 1, "nothing in common");
    }

    #[test]
    fn states_are_compared_with_their_like_only() {
        let mut old = report("lat", 1.2);
        old.states.push(state(66.0, 2.1, "RTT p50"));
        let mut new = report("lat", 2.2);
        new.states[0].line_ns = 70.0;
        assert_eq!(compare(from_ref(&old), from_ref(&new), 15.0).len(), 2);
        assert_eq!(tell(from_ref(&old), from_ref(&new), 15.0), Vec::<String>::new());
        new.states[0].line_ns = 150.0;
        assert_eq!(compare(from_ref(&old), from_ref(&new), 15.0), []);
        let told = not_compared(from_ref(&old), from_ref(&new));
        assert!(told[0].ends_with("lines of 400, 66 ns then, of 150 ns now"), "{told:?}");
        assert_eq!(tell(from_ref(&old), from_ref(&new), 15.0), Vec::<String>::new());
        (new.states[0].line_ns, new.states[0].slices) = (400.0, 6);
        assert_eq!(compare(from_ref(&old), from_ref(&new), 15.0), [], "seen too rarely");
    }

    #[test]
    fn programs_are_compared_whatever_the_state_and_no_other_machine_is() {
        let of = |ratio| {
            let row = Row {
                name: "y".to_owned(),
                ratio: Some(ratio),
                commands: vec!["y".to_owned()],
                ..Row::default()
            };
            Report { test: "lat".to_owned(), rows: vec![row], ..Report::default() }
        };
        assert_eq!(tell(&[of(1.0)], &[of(1.5)], 15.0).len(), 1);
        let mut elsewhere = of(1.5);
        "another".clone_into(&mut elsewhere.environment.cpu);
        assert_eq!(tell(&[of(1.0)], from_ref(&elsewhere), 15.0), Vec::<String>::new());
        assert_eq!(not_compared(&[of(1.0)], &[elsewhere]).len(), 1);
    }

    #[test]
    fn intervals_that_meet_are_no_verdict() {
        let mut wide = report("lat", 1.5);
        wide.states[0].rows.clear();
        wide.states[0].ratio_to_frame_floor_interval = Some([1.1, 2.0]);
        assert_eq!(tell(&[report("lat", 1.2)], &[wide], 15.0), Vec::<String>::new());
    }

    #[test]
    fn instructions_are_exact() {
        let of = |count| Report { test: "instructions".to_owned(), count, ..Report::default() };
        assert_eq!(tell(&[of(1000)], &[of(1019)], 15.0).len(), 0);
        assert_eq!(tell(&[of(1000)], &[of(1030)], 15.0).len(), 1);
    }
}
