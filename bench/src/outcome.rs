//! From slices to a report: ratios within each core placement, and the contenders of the test.

use crate::{
    against::{Goal, Quantity, Role},
    args::Run,
    environment::Environment,
    measure::{CONTENDER_MAX, Measured, Other},
    plan::Plan,
    record::{HostState, Row, StateRow},
    report::Report,
    session::Job,
    slices::{Estimate, median},
    states::{Compared, Side, Slice, State, ratio, states, within},
};

/// What the numbers of a run mean.
struct Meaning<'a> {
    measured: &'a Measured,
    /// One call at a time: times are compared, else rates.
    is_alone: bool,
    /// Calls have a frame beside them.
    has_frame: bool,
    bytes: usize,
}

/// The report of a run with slices.
pub(crate) fn report(
    run: &Run,
    job: &Job,
    plan: &Plan,
    measured: &Measured,
    absent: Vec<Row>,
    environment: Environment,
) -> Report {
    let Measured { test, floors, .. } = measured;
    let is_alone = plan.window == 1;
    let has_frame = floors.is_some() && job.goal != Goal::Bandwidth;
    let meaning = Meaning { measured, is_alone, has_frame, bytes: job.bytes };
    let (found, left_out) = states(&measured.slices);
    let each = (run.count / run.pairs).clamp(1, CONTENDER_MAX);
    let main = found.first();
    let mut rows: Vec<Row> = (0..measured.others.len()).map(|at| meaning.row(at, main, each)).collect();
    rows.extend(absent);
    // Where nothing held still the ratio is of everything, and a warning says so.
    let frame = meaning.over_frame(main).or_else(|| meaning.over_frame(None));
    Report {
        line_floor_p50_ns: floors.as_ref().map(|floors| floors.line.quantile_ns(0.5)),
        frame_floor_p50_ns: floors.as_ref().map(|floors| floors.frame.quantile_ns(0.5)),
        ratio_to_frame_floor: frame.map(|frame| frame.ratio.median),
        ratio_to_frame_floor_interval: frame.map(|frame| frame.ratio.interval()),
        floor_drift_pct: floors.as_ref().map(|_| drift_pct(&measured.slices)),
        handoff_per_exchange: meaning.handoff(main).or_else(|| meaning.handoff(None)),
        rows,
        states: found.iter().map(|state| meaning.state(state)).collect(),
        slices_left_out: if floors.is_some() { left_out } else { 0 },
        starts: run.starts,
        cost: Some(measured.cost.clone()),
        is_complete: measured.ended.is_none(),
        ..Report::of(run, job, plan, test, environment)
    }
}

impl Meaning<'_> {
    /// The test over the frame floor: of the medians, or of the rates, the floor's at window 1.
    fn over_frame(&self, state: Option<&State>) -> Option<Compared> {
        let slices = &self.measured.slices;
        if !self.has_frame {
            None
        } else if self.is_alone {
            ratio(slices, state, Side::Frame, |slice| slice.test.value, |nanos| nanos)
        } else {
            ratio(slices, state, Side::Frame, |slice| slice.rate, |nanos| 1e9 / nanos.max(1.0))
        }
    }

    /// What is divided by a number of this kind.
    #[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
    fn ours(&self, quantity: Quantity, times: f64, rate: f64) -> f64 {
        match quantity {
            Quantity::RoundTrip => times,
            Quantity::PerSecond => rate,
            Quantity::Bytes => rate * self.bytes as f64,
        }
    }

    /// The test over a contender.
    fn over_other(&self, at: usize, state: Option<&State>) -> Option<Compared> {
        let quantity = self.measured.others.get(at)?.contender.quantity();
        let ours = |slice: &Slice| self.ours(quantity, slice.test.value, slice.rate);
        ratio(&self.measured.slices, state, Side::Other(at), ours, |value| value)
    }

    /// Compares the test with another program, which has one turn per pair.
    fn over_program(&self, other: &Other) -> Option<Compared> {
        let quantity = other.contender.quantity();
        let pairs = self.measured.pairs.iter();
        let ours: Vec<f64> = pairs.map(|[times, rate]| self.ours(quantity, *times, *rate)).collect();
        Some(Compared {
            ratio: Estimate::of_ratios(&ours, &other.values)?,
            value: median(&other.values)?,
            slices: other.values.len(),
            starts: 0,
        })
    }

    /// The row of one contender: in the state most seen, where it was measured there.
    fn row(&self, at: usize, main: Option<&State>, count: u64) -> Row {
        let other = &self.measured.others[at];
        let mut note = other.failed.clone();
        let compared = if other.is_program {
            self.over_program(other)
        } else {
            let held = main.and_then(|main| self.over_other(at, Some(main)));
            held.or_else(|| {
                let all = self.over_other(at, None);
                if all.is_some() && note.is_none() {
                    note = Some("of all slices: it held still in none of the state above".to_owned());
                }
                all
            })
        };
        Row {
            name: other.contender.name(),
            what: other.contender.label().to_owned(),
            value: compared.map(|compared| compared.value),
            slices: compared.map_or(0, |compared| compared.slices),
            ratio: compared.map(|compared| compared.ratio.median),
            ratio_interval: compared.map(|compared| compared.ratio.interval()),
            note,
            commands: other.contender.commands(count),
        }
    }

    /// Handed off: what it costs more than inline, in bare exchanges; of each slice, then the median.
    fn handoff(&self, state: Option<&State>) -> Option<f64> {
        let others = &self.measured.others;
        let of = |role| others.iter().position(|other| other.contender.role() == role);
        let sides = [Side::Other(of(Role::Inline)?), Side::Other(of(Role::Exchange)?)];
        let (mut more, mut exchanges) = (vec![], vec![]);
        for (slice, values) in within(&self.measured.slices, state, &sides) {
            more.push(slice.test.value - values[0]);
            exchanges.push(values[1]);
        }
        Estimate::of_ratios(&more, &exchanges).map(|ratio| ratio.median)
    }

    /// One state with its own ratios.
    fn state(&self, state: &State) -> HostState {
        let of = |what: fn(&Slice) -> f64| {
            let values: Vec<f64> =
                within(&self.measured.slices, Some(state), &[]).map(|(slice, _)| what(slice)).collect();
            median(&values).unwrap_or(0.0)
        };
        let frame = self.over_frame(Some(state));
        let others = self.measured.others.iter().enumerate().filter(|(_, other)| !other.is_program);
        let rows = others.filter_map(|(at, other)| {
            let Compared { ratio, slices, starts, .. } = self.over_other(at, Some(state))?;
            let (name, what) = (other.contender.name(), other.contender.label().to_owned());
            Some(StateRow {
                name,
                what,
                slices,
                starts,
                ratio: ratio.median,
                ratio_interval: ratio.interval(),
            })
        });
        HostState {
            line_ns: state.line_ns,
            slices: state.slices.len(),
            starts: frame.map_or(0, |frame| frame.starts),
            p50_ns: of(|slice| slice.test.value),
            per_s: of(|slice| slice.rate),
            ratio_to_frame_floor: frame.map(|frame| frame.ratio.median),
            ratio_to_frame_floor_interval: frame.map(|frame| frame.ratio.interval()),
            rows: rows.collect(),
        }
    }
}

/// By how much the floors of the slices differ, in percent of the lowest; of each floor one that is lower than all
/// others
/// and one that is higher are left out.
fn drift_pct(slices: &[Slice]) -> f64 {
    let of = |what: fn(&Slice) -> f64| spread_pct(&slices.iter().map(what).collect::<Vec<_>>());
    of(|slice| slice.frame.value).max(of(|slice| slice.test.lines_ns[0]))
}

fn spread_pct(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let kept = if sorted.len() > 4 { &sorted[1..sorted.len() - 1] } else { &sorted[..] };
    match (kept.first(), kept.last()) {
        (Some(low), Some(high)) if *low > 0.0 => (high - low) * 100.0 / low,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_the_widest_difference_but_for_one_each_way() {
        assert!((spread_pct(&[400.0, 440.0, 420.0]) - 10.0).abs() < 1e-9);
        assert!((spread_pct(&[900.0, 400.0, 440.0, 420.0, 100.0]) - 10.0).abs() < 1e-9);
        assert!(spread_pct(&[400.0, 400.0, 400.0, 900.0, 900.0]) > 100.0);
        assert_eq!(spread_pct(&[]).to_bits(), 0);
    }
}
