//! Runs the tiers of a plan and says what they came to.

#![expect(
    clippy::disallowed_types,
    reason = "an instant is asked how long ago it was, and nothing is added to it"
)]

use std::{
    fs, io,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use regex::Regex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{
    child::Runner,
    count::{Causes, Count},
    list::{Tier, Turn},
    plan::Plan,
};
use crate::tree;

/// A fresh build is shorter, and half as large, when nothing is kept for the next change; daily work wants it kept.
const SPARE: &str = "export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}\n";
/// What runs in the lane takes what others leave of the processors.
const IDLE: &str = "chrt --idle --pid 0 $$ 2>/dev/null || renice -n 19 $$ >/dev/null\n";
/// What the whole run may take where `GIMMAL_TEST_LIMIT_S` names no other number of seconds. It then ends by itself and says what took
/// the time, which a run that somebody else ends cannot.
const LIMIT_S: u64 = 4_800;

/// Runs the tiers with these names, all where there are none. `true` when nothing failed.
///
/// # Errors
/// A name that no tier has, or a log that cannot be written.
pub fn run(names: &[String]) -> io::Result<bool> {
    let plan = Plan::of(names).map_err(io::Error::other)?;
    let logs = tree::root().join("target/tests");
    // There may be none.
    let _ = fs::remove_dir_all(&logs);
    fs::create_dir_all(&logs)?;
    let is_quick = names == ["quick"];
    let session = Session::new(logs, if is_quick { "" } else { SPARE });
    let limit_s = match std::env::var("GIMMAL_TEST_LIMIT_S") {
        Ok(text) => {
            text.parse().map_err(|_| io::Error::other("GIMMAL_TEST_LIMIT_S is a number of seconds"))?
        }
        Err(_) => LIMIT_S,
    };
    let is_interrupted = catch()?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| session.watch(&is_interrupted, &is_done, Duration::from_secs(limit_s)));
        session.carry_out(&plan, io::stdout().is_terminal(), &mut io::stdout());
        is_done.store(true, Ordering::Release);
    });
    let is_good = session.conclude();
    Ok(is_good && !is_interrupted.load(Ordering::Acquire))
}

/// A flag that is set by the signals that ask for an end.
fn catch() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::default();
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

struct Session {
    logs: PathBuf,
    /// Begins every command.
    before: &'static str,
    front: Runner,
    lane: Runner,
    sums: Mutex<Sums>,
}

#[derive(Default)]
struct Sums {
    count: Count,
    causes: Causes,
    failures: String,
    /// The tiers that are over, each with the seconds that it took.
    took: Vec<(&'static str, u64)>,
    /// Why everything was ended before its time.
    ended: Option<String>,
}

/// Where the tiers of one thread show what they print.
struct Screen<'a> {
    runner: &'a Runner,
    before: String,
    shows_all: bool,
    out: &'a mut dyn Write,
    /// Told once when what waits for the lab may begin.
    begun: Option<mpsc::Sender<()>>,
}

impl Session {
    fn new(logs: PathBuf, before: &'static str) -> Self {
        Self { logs, before, front: Runner::default(), lane: Runner::default(), sums: Mutex::default() }
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends everything when a signal asks for it, or when it has taken longer than `limit`.
    fn watch(&self, is_interrupted: &AtomicBool, is_done: &AtomicBool, limit: Duration) {
        let started = Instant::now();
        while !is_done.load(Ordering::Acquire) {
            let is_late = started.elapsed() > limit;
            if is_late || is_interrupted.load(Ordering::Acquire) {
                let late = format!("it took longer than its limit of {} s", limit.as_secs());
                self.sums().ended =
                    Some(if is_late { late } else { "a signal asked for its end".to_owned() });
                thread::scope(|scope| {
                    scope.spawn(|| self.lane.end());
                    self.front.end();
                });
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs the tiers of a plan; what is shown is written to `out`, all of it where `shows_all` is set.
    fn carry_out(&self, plan: &Plan, shows_all: bool, out: &mut dyn Write) {
        let (begun, waits) = mpsc::channel();
        let before = self.before.to_owned();
        thread::scope(|scope| {
            let lane = scope.spawn(move || self.lane(plan, &waits));
            let mut screen = Screen {
                runner: &self.front,
                before: before.clone(),
                shows_all,
                out: &mut *out,
                begun: Some(begun),
            };
            self.tiers(&plan.first, &mut screen);
            // The lab may never have come to that.
            drop(screen);
            self.lane.resume();
            let aside = lane.join().unwrap_or_default();
            let _ = out.write_all(&aside);
            let mut screen = Screen { runner: &self.front, before, shows_all, out: &mut *out, begun: None };
            self.tiers(&plan.last, &mut screen);
        });
    }

    /// What runs beside the rest; its output, which is shown when the lab is done.
    fn lane(&self, plan: &Plan, begun: &mpsc::Receiver<()>) -> Vec<u8> {
        let mut aside = Vec::new();
        let before = format!("{}{IDLE}", self.before);
        let mut screen = Screen {
            runner: &self.lane,
            before: before.clone(),
            shows_all: false,
            out: &mut aside,
            begun: None,
        };
        self.tiers(&plan.early, &mut screen);
        if !plan.beside.is_empty() || !plan.last.is_empty() {
            // An error: the tiers in front are over.
            let _ = begun.recv();
        }
        self.tiers(&plan.beside, &mut screen);
        for tier in &plan.last {
            if let Some(line) = tier.build {
                // What fails here fails again in its turn, and is told there.
                let _ = self.lane.run(&format!("{before}{line}"), &self.log(tier), tier.limit(), &mut |_| ());
            }
        }
        aside
    }

    fn log(&self, tier: &Tier) -> PathBuf {
        self.logs.join(format!("{}.log", tier.name))
    }

    fn tiers(&self, tiers: &[Tier], screen: &mut Screen<'_>) {
        for tier in tiers {
            if screen.runner.is_ended() {
                return;
            }
            // The lane is never halted by itself.
            let is_alone = tier.turn == Turn::Alone;
            if is_alone {
                self.lane.halt();
            }
            let count = self.tier(tier, screen);
            if is_alone {
                self.lane.resume();
            }
            self.sums().count.add(count);
        }
    }

    fn tier(&self, tier: &Tier, screen: &mut Screen<'_>) -> Count {
        let (started, log) = (Instant::now(), self.log(tier));
        let begins = tier.steps.first().map_or("", |step| step.line);
        let _ = writeln!(screen.out, "\n== {}: {begins}", tier.name);
        let (mut count, mut is_good) = (Count::default(), true);
        for step in tier.steps {
            if step.is_timed {
                self.lane.halt();
            }
            let (own, is_own_good) = self.step(step.line, &log, tier.limit(), screen);
            count.add(own);
            is_good &= is_own_good;
            if step.is_timed {
                self.lane.resume();
                screen.begun = None;
            }
            if step.is_needed && !is_own_good {
                break;
            }
        }
        let count = count.closed(is_good);
        if count.failed > 0 {
            self.sums().failures += &failures(tier.name, &log);
        }
        let (took, budget) = (started.elapsed().as_secs(), tier.budget_s);
        self.sums().took.push((tier.name, took));
        let over = if took > budget { ", more than its" } else { ", of a" };
        let Count { passed, failed, skipped, .. } = count;
        let _ = writeln!(
            screen.out,
            "-- {}: {passed} ok, {failed} failed, {skipped} skipped in {took} s{over} budget of {budget} s",
            tier.name
        );
        count
    }

    fn step(&self, line: &str, log: &Path, limit: Duration, screen: &mut Screen<'_>) -> (Count, bool) {
        let measured = Regex::new("wanted (at most )?[0-9]").expect("the pattern is a constant");
        let line = format!("{}{line}", screen.before);
        let (out, shows_all) = (&mut *screen.out, screen.shows_all);
        let ended = screen.runner.run(&line, log, limit, &mut |line| {
            self.sums().causes.note(line);
            if shows_all || measured.is_match(line) {
                let _ = out.write_all(line.as_bytes());
            }
        });
        match ended {
            Ok(ended) => (ended.count, ended.is_good),
            Err(error) => {
                let _ = writeln!(screen.out, "{error}");
                (Count::default(), false)
            }
        }
    }

    /// Prints why tests were skipped, what failed, and the sum as the last line. `true` when nothing failed.
    fn conclude(&self) -> bool {
        let sums = self.sums();
        let Count { passed, failed, skipped, .. } = sums.count;
        if skipped > 0 {
            println!("\n== what was skipped\n{}", sums.causes.to_string().trim_end());
        }
        let without = sums.causes.missing(skipped);
        if without > 0 {
            println!("{without:>6}  and no line says why");
        }
        if !sums.failures.is_empty() {
            println!("\n== what failed\n{}", sums.failures.trim_end());
        }
        let mut took = sums.took.clone();
        took.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let took: Vec<String> = took.iter().map(|(name, took)| format!("{name} {took}")).collect();
        println!("\n== how long the tiers took, seconds\n{}", took.join(", "));
        if let Some(why) = &sums.ended {
            println!("\n== not all of it ran: {why}");
        }
        println!("\n{passed} passed, {failed} failed, {skipped} skipped");
        failed == 0 && sums.ended.is_none()
    }
}

/// What a log says of failures, and how it ends; each line begins with the tier's name.
fn failures(name: &str, log: &Path) -> String {
    /// Lines shown from one that tells of a failure.
    const BEHIND: usize = 9;
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tells =
        |line: &str| line.contains("FAILED") || line.contains("panicked at") || line.starts_with("error");
    let is_near = |at: usize| lines[at.saturating_sub(BEHIND - 1)..=at].iter().any(|line| tells(line));
    let near = (0..lines.len()).filter(|at| is_near(*at)).map(|at| lines[at]).take(60);
    let end = lines.iter().skip(lines.len().saturating_sub(20)).copied();
    let shown = near.chain(["... and its end:"]).chain(end);
    shown.map(|line| format!("{name}: {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::list::Step;

    const fn step(line: &'static str, is_timed: bool) -> Step {
        Step { line, is_needed: true, is_timed }
    }

    const fn tier(name: &'static str, turn: Turn, steps: &'static [Step]) -> Tier {
        Tier { name, turn, budget_s: 60, steps, build: None }
    }

    const ALONE: Tier = tier("alone", Turn::Alone, &[step("echo wanted 1", false)]);
    const LAB: Tier = tier(
        "lab",
        Turn::Lab,
        &[step("echo 2 passed, 0 failed", true), step("false", false), step("echo never", false)],
    );
    const EARLY: Tier = tier(
        "early",
        Turn::FromStart,
        &[step("echo SKIP one: no such device; echo 3 passed, 0 failed, 1 skipped", false)],
    );
    const BESIDE: Tier = tier("beside", Turn::BesideLab, &[step("true", false)]);
    const LAST: Tier =
        Tier { build: Some("echo built"), ..tier("last", Turn::AfterLab, &[step("echo run", false)]) };

    /// What runs beside the lab waits until that has measured, and is shown behind it; a tier ends with a step that the others need.
    #[test]
    fn the_lane_waits_for_the_lab_and_is_shown_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::new(folder.path().to_owned(), "");
        let plan =
            Plan { first: vec![ALONE, LAB], early: vec![EARLY], beside: vec![BESIDE], last: vec![LAST] };
        let mut out = Vec::new();
        session.carry_out(&plan, false, &mut out);
        let text = String::from_utf8(out).unwrap();
        let places: Vec<usize> = [
            "-- alone: 1 ok",
            "-- lab: 2 ok, 1 failed",
            "-- early: 3 ok, 0 failed, 1 skipped",
            "-- beside: 1 ok",
            "-- last: 1 ok",
        ]
        .iter()
        .map(|line| text.find(line).unwrap_or_else(|| panic!("{line} is missing: {text}")))
        .collect();
        assert!(places.is_sorted(), "{text}");
        assert!(text.contains("wanted 1"), "{text}");
        assert_eq!(fs::read_to_string(folder.path().join("last.log")).unwrap(), "built\nrun\n");
        let sum = session.sums().count;
        assert_eq!(sum, Count { passed: 8, failed: 1, skipped: 1, unseen: 0 });
        assert_eq!(session.sums().causes.to_string(), "     1  no such device\n");
        assert!(!session.conclude());
    }

    #[test]
    fn failures_are_shown_with_what_follows_and_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("it.log");
        let quiet = "ok\n".repeat(30);
        fs::write(&log, format!("{quiet}thread 'a' panicked at b:1:\nleft: 1\n{quiet}the end\n")).unwrap();
        let shown = failures("unit", &log);
        assert!(shown.starts_with("unit: thread 'a' panicked at b:1:\nunit: left: 1\nunit: ok\n"), "{shown}");
        assert!(shown.ends_with("unit: ok\nunit: the end\n"), "{shown}");
        assert_eq!(shown.lines().count(), 9 + 1 + 20);
    }
}
