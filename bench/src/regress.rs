//! Two sets of records compared by what survives a noisy machine: ratios to the floors of the same run, and instructions.

use crate::{
    html::name,
    report::{Report, Row},
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

/// All that both have.
fn compare(baseline: &[Report], records: &[Report], tolerance_pct: f64) -> Vec<Compared> {
    let mut compared = Vec::new();
    for now in records {
        let Some(then) = baseline.iter().find(|then| name(then) == name(now)) else { continue };
        if now.test == "instructions" {
            let [old, new] =
                [then, now].map(|report| u32::try_from(report.count).map_or(f64::MAX, f64::from));
            let name = format!("instructions: {}", now.layer);
            compared.push(ratio(name, [old, new], [None, None], false, INSTRUCTIONS_PCT));
            continue;
        }
        if let (Some(old), Some(new)) = (then.ratio_to_frame_floor, now.ratio_to_frame_floor) {
            let intervals = [then.ratio_to_frame_floor_interval, now.ratio_to_frame_floor_interval];
            let name = format!("{}, to frame floor", name(now));
            compared.push(ratio(name, [old, new], intervals, is_rate(now), tolerance_pct));
        }
        for row in &now.rows {
            let Some(before) = then.rows.iter().find(|before| before.name == row.name) else { continue };
            if let (Some(old), Some(new)) = (before.ratio, row.ratio) {
                let intervals = [before.ratio_interval, row.ratio_interval];
                let name = format!("{}, to {}", name(now), row.name);
                compared.push(ratio(name, [old, new], intervals, !is_time(row), tolerance_pct));
            }
        }
    }
    compared
}

/// Whether less of a row's quantity is better.
fn is_time(row: &Row) -> bool {
    !row.what.contains("second")
}

/// Prints the comparison; what is worse.
pub(crate) fn tell(baseline: &[Report], records: &[Report], tolerance_pct: f64) -> Vec<String> {
    let compared = compare(baseline, records, tolerance_pct);
    println!("beside the baseline (worse: above {tolerance_pct} % and outside both intervals)");
    if compared.is_empty() {
        return vec!["the baseline has none of these runs".to_owned()];
    }
    let mut worse = Vec::new();
    for Compared { name, then, now, worse_pct, is_worse } in compared {
        let verdict = if is_worse { "WORSE" } else { "ok" };
        let line = format!("{name:<72} {then:>9.2} -> {now:>9.2}  {worse_pct:>+6.1} %");
        println!("  {verdict:<5} {line}");
        worse.extend(is_worse.then_some(line));
    }
    worse
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn report(test: &str, ratio: f64) -> Report {
        Report {
            test: test.to_owned(),
            ratio_to_frame_floor: Some(ratio),
            ratio_to_frame_floor_interval: Some([ratio * 0.95, ratio * 1.05]),
            rows: vec![Row {
                name: "x".to_owned(),
                what: if test == "lat" { "RTT p50" } else { "echoes per second" }.to_owned(),
                ratio: Some(ratio),
                ..Row::default()
            }],
            ..Report::default()
        }
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
    fn intervals_that_meet_are_no_verdict() {
        let mut wide = report("lat", 1.5);
        wide.rows.clear();
        wide.ratio_to_frame_floor_interval = Some([1.1, 2.0]);
        assert_eq!(tell(&[report("lat", 1.2)], &[wide], 15.0), Vec::<String>::new());
    }

    #[test]
    fn instructions_are_exact() {
        let of = |count| Report { test: "instructions".to_owned(), count, ..Report::default() };
        assert_eq!(tell(&[of(1000)], &[of(1019)], 15.0).len(), 0);
        assert_eq!(tell(&[of(1000)], &[of(1030)], 15.0).len(), 1);
    }
}
