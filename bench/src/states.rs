//! States of the host: what was measured is grouped by what a cache line cost meanwhile, and compared within a group only.
//!
//! ```text
//!  line  frame  line  test  line  bare ring  line │ frame …        every piece has a line on both sides
//!  400    530   405   640   398      …        66                   the ring's two differ: it was moved, and is left out
//! ```
//! A hypervisor puts two virtual cores on threads of one core, on cores that share a cache, or far apart, and moves them
//! within tens of milliseconds. Neither times nor ratios of one such state are those of another.

use std::fmt;

use crate::slices::{Estimate, median};

/// Two lines that differ by more, percent, were not in one state: the host moved the cores between them.
pub const STILL_PCT: f64 = 15.0;
/// Lines within this, percent, are of the same state, also of two runs.
pub const SAME_PCT: f64 = 25.0;
/// Slices from which on a state's ratio is believed.
pub const SLICES_MIN: usize = 7;
/// Slices from which on a state is one.
const STATE_MIN: usize = 3;
/// The slowest line of a group over its fastest: all lie within [`SAME_PCT`] of its median, and neighbours stay apart.
const WIDTH: f64 = 1.35;

/// Whether two times differ by at most `pct` of the smaller one.
#[must_use]
pub fn is_near(one: f64, other: f64, pct: f64) -> bool {
    let (low, high) = if one < other { (one, other) } else { (other, one) };
    low > 0.0 && high <= low * (1.0 + pct / 100.0)
}

/// What was measured in one go, between two lines.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Piece {
    /// Its number.
    pub value: f64,
    /// What a line took right before and right after it, nanoseconds; 0 where there is none.
    pub lines_ns: [f64; 2],
}

impl Piece {
    /// What a line took meanwhile; `None` when the host moved the cores, or nobody knows.
    #[must_use]
    pub fn line_ns(&self) -> Option<f64> {
        let [before, after] = self.lines_ns;
        is_near(before, after, STILL_PCT).then(|| f64::midpoint(before, after))
    }
}

/// A slice of the test, and what was measured in turns with it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Slice {
    /// Its median time.
    pub test: Piece,
    /// Calls per second.
    pub rate: f64,
    /// The frame floor's median.
    pub frame: Piece,
    /// The contenders' by their order; none from those that were not asked.
    pub others: Vec<Option<Piece>>,
    /// In which start of the processes.
    pub start: u32,
}

/// Slices during which a line cost the same.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// What it cost, the median.
    pub line_ns: f64,
    /// Which slices.
    pub slices: Vec<usize>,
}

impl State {
    /// Whether a piece was measured in this state.
    fn has(&self, piece: &Piece) -> bool {
        piece.line_ns().is_some_and(|line| is_near(line, self.line_ns, SAME_PCT))
    }
}

/// The states that were seen, that with most slices first, and how many slices are in none.
#[must_use]
pub fn states(slices: &[Slice]) -> (Vec<State>, usize) {
    let mut left: Vec<(f64, usize)> =
        slices.iter().enumerate().filter_map(|(at, slice)| Some((slice.test.line_ns()?, at))).collect();
    left.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut states = Vec::new();
    while let Some((from, to)) = densest(&left).filter(|(from, to)| to - from >= STATE_MIN.min(slices.len()))
    {
        let group: Vec<(f64, usize)> = left.drain(from..to).collect();
        let lines: Vec<f64> = group.iter().map(|(line, _)| *line).collect();
        let mut members: Vec<usize> = group.iter().map(|(_, at)| *at).collect();
        members.sort_unstable();
        states.push(State { line_ns: median(&lines).unwrap_or(0.0), slices: members });
    }
    let found: usize = states.iter().map(|state| state.slices.len()).sum();
    (states, slices.len() - found)
}

/// Where the most of the sorted values lie within [`WIDTH`] of each other; of several places the first.
fn densest(sorted: &[(f64, usize)]) -> Option<(usize, usize)> {
    let mut best = None;
    let mut end = 0;
    for (start, (low, _)) in sorted.iter().enumerate() {
        while sorted.get(end).is_some_and(|(line, _)| *line <= low * WIDTH) {
            end += 1;
        }
        if best.is_none_or(|(from, to)| end - start > to - from) {
            best = Some((start, end));
        }
    }
    best
}

/// What a slice is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The frame floor.
    Frame,
    /// A contender, by its order.
    Other(usize),
}

impl Slice {
    fn side(&self, side: Side) -> Option<Piece> {
        match side {
            Side::Frame => Some(self.frame),
            Side::Other(at) => self.others.get(at).copied().flatten(),
        }
    }
}

/// The slices in which all `sides` were measured in `state`; without one, in whichever.
pub fn within<'a>(
    slices: &'a [Slice],
    state: Option<&'a State>,
    sides: &'a [Side],
) -> impl Iterator<Item = (&'a Slice, Vec<f64>)> {
    let ours: Box<dyn Iterator<Item = &'a Slice> + 'a> = match state {
        Some(state) => Box::new(state.slices.iter().filter_map(|at| slices.get(*at))),
        None => Box::new(slices.iter()),
    };
    ours.filter_map(move |slice| {
        let values = sides.iter().map(|side| {
            let piece = slice.side(*side)?;
            state.is_none_or(|state| state.has(&piece)).then_some(piece.value)
        });
        Some((slice, values.collect::<Option<Vec<f64>>>()?))
    })
}

/// The test over one side, slice by slice: what `ours` takes of a slice over what `theirs` makes of the side's number.
/// With it how many slices, and the median of the side.
#[must_use]
pub fn ratio(
    slices: &[Slice],
    state: Option<&State>,
    side: Side,
    ours: impl Fn(&Slice) -> f64,
    theirs: impl Fn(f64) -> f64,
) -> Option<Compared> {
    let pairs: Vec<(u32, f64, f64)> = within(slices, state, &[side])
        .map(|(slice, values)| (slice.start, ours(slice), values[0]))
        .filter(|(.., value)| theirs(*value) > 0.0)
        .collect();
    let quotients = |pairs: &[(u32, f64, f64)]| -> Vec<f64> {
        pairs.iter().map(|(_, ours, value)| ours / theirs(*value)).collect()
    };
    let values: Vec<f64> = pairs.iter().map(|(.., value)| *value).collect();
    // Starts that hardly saw the state are taken together.
    let (mut starts, mut begun) = (Vec::new(), 0);
    for (at, (start, ..)) in pairs.iter().enumerate() {
        let is_last = pairs.get(at + 1).is_none_or(|(next, ..)| next != start);
        if is_last && at + 1 - begun >= STATE_MIN {
            starts.push(median(&quotients(&pairs[begun..=at]))?);
            begun = at + 1;
        }
    }
    let ratio = Estimate::of(&quotients(&pairs))?.among(&starts);
    Some(Compared { ratio, value: median(&values)?, slices: values.len(), starts: starts.len() })
}

/// What [`ratio`] found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Compared {
    /// Of the quotients.
    pub ratio: Estimate,
    /// The other side's median.
    pub value: f64,
    /// As many slices.
    pub slices: usize,
    /// Starts that had enough of them.
    pub starts: usize,
}

/// The state whose line is nearest to `line_ns`, when it is the same one.
pub fn nearest<T>(line_ns: f64, of: &[T], line: impl Fn(&T) -> f64) -> Option<&T> {
    let far = |state: &&T| (line(state) / line_ns).ln().abs();
    let found = of.iter().min_by(|one, other| far(one).total_cmp(&far(other)))?;
    is_near(line(found), line_ns, SAME_PCT).then_some(found)
}

/// Lines of states, for people: "66, 400 ns".
pub(crate) struct Lines<'a, T, F: Fn(&T) -> f64>(pub(crate) &'a [T], pub(crate) F);

impl<T, F: Fn(&T) -> f64> fmt::Display for Lines<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(|state| format!("{:.0}", (self.1)(state))).collect();
        if lines.is_empty() { f.write_str("unknown") } else { write!(f, "{} ns", lines.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slice in which a line took `before` and `after` around the test, and `after` from then on; the test takes
    /// `times` a frame, and a frame 100 ns more than a line.
    fn slice(before: f64, after: f64, times: f64) -> Slice {
        let piece = |value, lines_ns| Piece { value, lines_ns };
        let frame = before + 100.0;
        Slice {
            test: piece(frame * times, [before, after]),
            rate: 1e9 / (frame * times),
            frame: piece(frame, [before, before]),
            others: vec![Some(piece(frame / 2.0, [after, after])), None],
            start: 0,
        }
    }

    fn to_frame(slices: &[Slice], state: Option<&State>) -> Option<Compared> {
        ratio(slices, state, Side::Frame, |slice| slice.test.value, |value| value)
    }

    /// Three states in turns, each with a ratio of its own, and moves between them.
    fn a_restless_host() -> Vec<Slice> {
        let states = [(66.0, 2.1), (100.0, 1.4), (400.0, 1.25), (400.0, 1.25)];
        let mut slices = Vec::new();
        for round in 0..10u32 {
            for (at, (line, times)) in states.into_iter().enumerate() {
                let noise = 1.0 + f64::from(round % 5) / 100.0;
                slices.push(slice(line * noise, line, times));
                let next: (f64, f64) = states[(at + 1) % 4];
                if (next.0 - line).abs() > 1.0 {
                    slices.push(slice(line, next.0, 3.0));
                }
            }
        }
        slices
    }

    #[test]
    fn near_is_of_the_smaller_one() {
        assert!(is_near(100.0, 114.9, 15.0) && is_near(114.9, 100.0, 15.0));
        assert!(!is_near(100.0, 116.0, 15.0) && !is_near(0.0, 0.0, 15.0) && !is_near(0.0, 1.0, 15.0));
    }

    #[test]
    fn slices_are_grouped_by_their_lines_and_moved_ones_are_counted() {
        let slices = a_restless_host();
        let (found, left_out) = states(&slices);
        let counts: Vec<usize> = found.iter().map(|state| state.slices.len()).collect();
        assert_eq!((counts, left_out), (vec![20, 10, 10], 30));
        let lines: Vec<f64> = found.iter().map(|state| state.line_ns.round()).collect();
        assert_eq!(lines, [404.0, 67.0, 101.0]);
    }

    #[test]
    fn each_state_has_the_ratio_of_its_own() {
        let slices = a_restless_host();
        let (found, _) = states(&slices);
        for (state, wanted) in found.iter().zip([1.25, 2.1, 1.4]) {
            let Compared { ratio, .. } = to_frame(&slices, Some(state)).unwrap();
            assert!((ratio.median - wanted).abs() < 1e-9 && ratio.high - ratio.low < 1e-9, "{state:?}");
        }
        // Of all together it is the ratio of no state.
        let Compared { ratio, slices, .. } = to_frame(&slices, None).unwrap();
        assert!(slices == 70 && ratio.low < 2.0 && ratio.high > 2.0, "{ratio:?}");
    }

    #[test]
    fn two_runs_agree_where_one_number_of_each_would_not() {
        let run = |fast: usize, slow: usize| -> Vec<Slice> {
            let fast = std::iter::repeat_n(slice(66.0, 67.0, 2.1), fast);
            fast.chain(std::iter::repeat_n(slice(400.0, 402.0, 1.25), slow)).collect()
        };
        let (one, other) = (run(30, 10), run(10, 30));
        let (ones, others) = (states(&one).0, states(&other).0);
        assert!((to_frame(&one, None).unwrap().ratio.median - 2.1).abs() < 1e-9);
        assert!((to_frame(&other, None).unwrap().ratio.median - 1.25).abs() < 1e-9);
        for state in &ones {
            let same = nearest(state.line_ns, &others, |state| state.line_ns).unwrap();
            let ratio = |slices, state| to_frame(slices, Some(state)).unwrap().ratio.median;
            assert!((ratio(&one, state) - ratio(&other, same)).abs() < 1e-9);
        }
    }

    #[test]
    fn an_interval_takes_in_the_median_of_every_start() {
        let start =
            |start, times, count| std::iter::repeat_n(Slice { start, ..slice(66.0, 66.0, times) }, count);
        let slices: Vec<Slice> = start(0, 2.0, 30).chain(start(1, 2.2, 5)).chain(start(2, 9.0, 2)).collect();
        let Compared { ratio, slices, .. } = to_frame(&slices, None).unwrap();
        // The third start alone has too few to say anything.
        assert!(slices == 37 && (ratio.median - 2.0).abs() < 1e-9, "{ratio:?}");
        assert!(ratio.low <= 2.0 && (2.2..9.0).contains(&ratio.high), "{ratio:?}");
        // Taken with the next one it has enough.
        let slices: Vec<Slice> = start(0, 2.0, 30).chain(start(1, 9.0, 2)).chain(start(2, 2.2, 1)).collect();
        let Compared { ratio, starts, .. } = to_frame(&slices, None).unwrap();
        assert!(ratio.high >= 9.0 && starts == 2, "{ratio:?}");
    }

    #[test]
    fn a_side_that_was_moved_is_left_out_alone() {
        let mut slices = vec![slice(400.0, 400.0, 1.2); 9];
        slices[3].others[0] = Some(Piece { value: 1.0, lines_ns: [400.0, 66.0] });
        slices[4].others[0] = Some(Piece { value: 1.0, lines_ns: [66.0, 66.0] });
        let (found, left_out) = states(&slices);
        assert_eq!((found.len(), found[0].slices.len(), left_out), (1, 9, 0));
        let of = |side| ratio(&slices, Some(&found[0]), side, |slice| slice.test.value, |value| value);
        assert_eq!((of(Side::Other(0)).unwrap().slices, of(Side::Frame).unwrap().slices), (7, 9));
        assert!((of(Side::Other(0)).unwrap().ratio.median - 2.4).abs() < 1e-9);
        assert_eq!((of(Side::Other(1)), of(Side::Other(2))), (None, None));
    }

    #[test]
    fn strays_are_no_state_and_few_slices_still_are() {
        let mut slices = vec![slice(400.0, 400.0, 1.2); 9];
        slices.extend([slice(150.0, 150.0, 1.2), slice(152.0, 150.0, 1.2)]);
        assert_eq!(states(&slices).1, 2);
        assert_eq!(states(&slices[9..]).0[0].slices, [0, 1]);
        assert_eq!(states(&[]), (vec![], 0));
        assert_eq!(states(&vec![Slice::default(); 5]), (vec![], 5), "nobody measured a line");
    }

    #[test]
    fn a_group_is_no_wider_than_its_name() {
        let lines = (0..60u32).map(|step| 60.0 * 1.05f64.powi(i32::try_from(step).unwrap()));
        let slices: Vec<Slice> = lines.map(|line| slice(line, line, 1.0)).collect();
        for State { line_ns, slices: members } in states(&slices).0 {
            let fits = |at: &usize| is_near(slices[*at].test.lines_ns[0], line_ns, SAME_PCT);
            assert!(members.iter().all(fits), "{line_ns}: {members:?}");
        }
    }

    #[test]
    fn the_nearest_state_is_the_same_one_or_none() {
        let lines = [66.0, 100.0, 400.0];
        let near = |line| nearest(line, &lines, |line| *line).copied();
        assert_eq!((near(80.0), near(85.0), near(410.0)), (Some(66.0), Some(100.0), Some(400.0)));
        assert_eq!((near(200.0), near(700.0)), (None, None));
        assert_eq!(Lines(&lines, |line| *line).to_string(), "66, 100, 400 ns");
    }
}
