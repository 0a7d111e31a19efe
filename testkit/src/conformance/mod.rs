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
mod case;
mod close;
mod compose;
mod connect;
mod credit;
mod event_loop;
mod flush;
mod harness;
mod key;
#[cfg(feature = "verbs")]
mod knock_rdma;
mod one_sided;
mod outcome;
mod patience;
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
use case::Case;
pub use harness::{Harness, Knock};
#[cfg(feature = "verbs")]
pub use knock_rdma::knock_on_cm;
use outcome::Outcome;
pub use real_time::{RealTime, knock_on_socket, knock_on_tcp, refusal};
pub use virtual_time::VirtualTime;

use gimmal_transport::Provider;

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

    /// Prints the report, and panics unless none fails and exactly `passed` cases hold: a case that is skipped all of a sudden is
    /// a loss.
    ///
    /// # Panics
    /// With the report.
    pub fn expect(&self, passed: usize) {
        println!("{self}");
        assert_eq!((self.failed(), self.passed()), (0, passed), "{self}");
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
    all.extend(event_loop::cases());
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
