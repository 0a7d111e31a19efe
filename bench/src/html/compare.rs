//! Two runs beside each other, by ratios that were measured in each.

use super::{
    label::label,
    markup::{Bar, ratios},
};
use crate::{regress, report::Report};

/// The widest that both intervals allow.
fn quotient(now: Option<[f64; 2]>, then: Option<[f64; 2]>) -> Option<[f64; 2]> {
    let ([low, high], [then_low, then_high]) = now.zip(then)?;
    (then_low > 0.0).then(|| [low / then_high, high / then_low])
}

/// Compares the tests of two runs by their ratios to baselines and contenders, within one core placement.
pub(super) fn compared(page: &mut String, older: &[Report], newer: &[Report]) {
    let mut all = Vec::new();
    for report in newer {
        let Some(before) = older.iter().find(|before| before.name() == report.name()) else { continue };
        let mut bar = |text: String, now: f64, then: f64, ends: [Option<[f64; 2]>; 2]| {
            if then > 0.0 {
                all.push(Bar::ratio(text, now / then, quotient(ends[0], ends[1])));
            }
        };
        for (state, then) in regress::shared(&report.states, &before.states) {
            let text = format!("{}, cache line {:.0} ns", label(report), state.line_ns);
            if let (Some(now), Some(old)) = (state.ratio_to_frame_floor, then.ratio_to_frame_floor) {
                let ends = [state.ratio_to_frame_floor_interval, then.ratio_to_frame_floor_interval];
                bar(format!("{text}, to the frame floor"), now, old, ends);
            }
            for row in &state.rows {
                let Some(other) = then.rows.iter().find(|other| other.name == row.name) else { continue };
                let ends = [Some(row.ratio_interval), Some(other.ratio_interval)];
                bar(format!("{text}, to {}", row.name), row.ratio, other.ratio, ends);
            }
        }
        for row in report.rows.iter().filter(|row| !row.commands.is_empty()) {
            let Some(other) = before.rows.iter().find(|other| other.name == row.name) else { continue };
            if let Some((now, then)) = row.ratio.zip(other.ratio) {
                let ends = [row.ratio_interval, other.ratio_interval];
                bar(format!("{}, to {}", label(report), row.name), now, then, ends);
            }
        }
    }
    if all.is_empty() {
        page.push_str("<p>The two runs have no test in common, or no core placement in common.</p>");
        return;
    }
    let note = "Ratios to baselines and to other programs, which were measured in each run beside the test: that of the \
                newer run over that of the older one, in the same core placement. At the dashed line nothing changed.";
    page.push_str(&ratios("Newer run over older run", note, &all));
}
