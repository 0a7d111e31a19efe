//! The conformance suite: the contract of [`provider`](gimmal_transport::provider) as named cases, generic over the provider.
//!
//! Both ends run in one thread, two ports polled in turn, with bounded waits; so it works in virtual time (sim)
//! and in real time (shm, verbs). A case says what it needs; where that is missing it is skipped by name.
//!
//! ```text
//!  run(harness) ─► probe: one connection, its terms say what can be had
//!               └► each case: Bench ─► Rig (two ports, a listener) ─► Duo (a connection: both ids, credit)
//! ```

mod bench;
mod bulk;
mod close;
mod compose;
mod connect;
mod credit;
mod flush;
mod harness;
mod key;
mod one_sided;
mod poll;
mod publish;
mod real_time;
mod refused;
mod rig;
mod user_memory;
mod virtual_time;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bench::Bench;
pub use gimmal_transport::parts::Knock;
pub use harness::Harness;
pub use real_time::{RealTime, knock_on_socket};
pub use virtual_time::VirtualTime;

use gimmal_transport::{DataPath, Negotiated, Provider};

/// What a case says: nothing, or what went wrong.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Ends the case when something does not hold.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+).into());
        }
    };
}
use ensure;

/// What a case cannot do without.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // a set of independent needs
struct Needs {
    ring: bool,
    send_recv: bool,
    arrivals: bool,
    words: bool,
    bulk: bool,
    reads: bool,
    in_place: bool,
    atomics: bool,
    knock: bool,
}

const ANY: Needs = Needs {
    ring: false,
    send_recv: false,
    arrivals: false,
    words: false,
    bulk: false,
    reads: false,
    in_place: false,
    atomics: false,
    knock: false,
};
const KNOCK: Needs = Needs { knock: true, ..ANY };
const BULK: Needs = Needs { bulk: true, ..ANY };

impl Needs {
    fn missing(self, seen: &Negotiated, can_knock: bool) -> Option<&'static str> {
        let bulk = seen.initiator_depth.granted > 0 && seen.responder_resources.granted > 0;
        [
            (self.ring && seen.path != DataPath::Ring, "needs a receive ring"),
            (self.send_recv && seen.path != DataPath::SendRecv, "needs the send/recv path"),
            (self.arrivals && !seen.arrivals_count, "needs receives that are used up"),
            (self.words && !seen.credit_words, "needs credit in shared words"),
            (self.bulk && !bulk, "needs bulk"),
            (self.reads && (!bulk || seen.bulk_in_place), "needs bulk by READ"),
            (self.in_place && !seen.bulk_in_place, "needs bulk in place"),
            (self.atomics && !seen.atomics, "needs atomic operations"),
            (self.knock && !can_knock, "needs a harness that can speak foreign bytes"),
        ]
        .into_iter()
        .find_map(|(missing, what)| missing.then_some(what))
    }
}

struct Case<P: Provider> {
    name: &'static str,
    needs: Needs,
    run: fn(&mut Bench<'_, P>) -> Outcome,
}

/// How one case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not, and how.
    Failed(String),
    /// It could not be run, and why.
    Skipped(&'static str),
}

/// All cases and how they ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// What ran.
    pub provider: String,
    /// The terms of the probe, for people.
    pub terms: String,
    /// Name and verdict, in order.
    pub cases: Vec<(&'static str, Verdict)>,
}

impl Report {
    /// Cases that hold.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.count(|verdict| *verdict == Verdict::Passed)
    }

    /// Cases that do not.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Failed(_)))
    }

    /// Cases that could not be run.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Skipped(_)))
    }

    fn count(&self, is: impl Fn(&Verdict) -> bool) -> usize {
        self.cases.iter().filter(|(_, verdict)| is(verdict)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.cases {
            match verdict {
                Verdict::Passed => writeln!(f, "ok     {name}")?,
                Verdict::Failed(why) => writeln!(f, "FAILED {name}: {why}")?,
                Verdict::Skipped(why) => writeln!(f, "SKIP   {name}: {why}")?,
            }
        }
        let (passed, failed, skipped) = (self.passed(), self.failed(), self.skipped());
        write!(f, "conformance {}: {passed} passed, {failed} failed, {skipped} skipped", self.provider)
    }
}

/// All cases, in the order of the clauses.
fn cases<P: Provider>() -> Vec<Case<P>> {
    let mut all = compose::cases();
    all.extend(publish::cases());
    all.extend(flush::cases());
    all.extend(poll::cases());
    all.extend(credit::cases());
    all.extend(bulk::cases());
    all.extend(user_memory::cases());
    all.extend(refused::cases());
    all.extend(one_sided::cases());
    all.extend(connect::cases());
    all.extend(key::cases());
    all.extend(close::cases());
    all
}

/// Runs every case whose name contains one of the parts of `filter` between commas (empty: all), telling `watch` of each before it starts.
pub fn run_some<P: Provider>(
    harness: &mut impl Harness<P>,
    filter: &str,
    mut watch: impl FnMut(&'static str),
) -> Report {
    let is_wanted = |name: &str| filter.split(',').any(|part| name.contains(part));
    let provider = harness.name();
    let mut report = Report { provider, terms: String::new(), cases: Vec::new() };
    let can_knock = harness.can_knock();
    watch("probe");
    let seen = match guard(|| Bench::<P>::probe(harness)) {
        Ok(seen) => seen,
        Err(why) => {
            report.cases.push(("probe", Verdict::Failed(why)));
            return report;
        }
    };
    report.terms = seen.to_string();
    for case in cases::<P>().into_iter().filter(|case| is_wanted(case.name)) {
        let verdict = if let Some(why) = case.needs.missing(&seen, can_knock) {
            Verdict::Skipped(why)
        } else {
            watch(case.name);
            let outcome = guard(|| (case.run)(&mut Bench::new(harness)).and_then(|()| harness.check()));
            outcome.map_or_else(Verdict::Failed, |()| Verdict::Passed)
        };
        report.cases.push((case.name, verdict));
    }
    report
}

/// Runs every case.
pub fn run<P: Provider>(harness: &mut impl Harness<P>) -> Report {
    run_some(harness, "", |_| {})
}

/// A panic of a provider fails its case and not the run.
fn guard<T>(work: impl FnOnce() -> Outcome<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}
