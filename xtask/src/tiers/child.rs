//! One command: its processes, its output and its log.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::count::Count;
use crate::tree;

/// How long the output of a command may stay open after its end.
const LEFT: Duration = Duration::from_secs(2);

/// How a command went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// What its closing lines add up to.
    pub(super) count: Count,
    /// Whether it ended with 0 and left no process behind.
    pub(super) is_good: bool,
}

/// Runs one command at a time. Others halt it, let it go on and end it, with everything that it has started.
#[derive(Default, Debug)]
pub(super) struct Runner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default, Debug)]
struct State {
    process: Option<Pid>,
    is_halted: bool,
    is_ended: bool,
}

impl Runner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the command, and lets none begin.
    pub(super) fn halt(&self) {
        let mut state = self.state();
        state.is_halted = true;
        state.signal(Signal::STOP);
    }

    /// Lets the command go on.
    pub(super) fn resume(&self) {
        let mut state = self.state();
        state.is_halted = false;
        state.signal(Signal::CONT);
        self.changed.notify_all();
    }

    /// Ends the command, within 5 s, and lets no other begin.
    pub(super) fn end(&self) {
        let mut state = self.state();
        (state.is_ended, state.is_halted) = (true, false);
        state.signal(Signal::TERM);
        state.signal(Signal::CONT);
        self.changed.notify_all();
        // The lab has a guest to end when it is asked.
        let is_there = |state: &mut State| state.process.is_some();
        let waited = self.changed.wait_timeout_while(state, Duration::from_secs(5), is_there);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.signal(Signal::KILL);
    }

    /// Whether nothing may begin any more.
    pub(super) fn is_ended(&self) -> bool {
        self.state().is_ended
    }

    /// Runs a line of bash, gives each line of its output to `output` and to the log, and waits for its end. What has run for longer
    /// than `limit`, halts not counted, is ended.
    ///
    /// # Errors
    /// The command cannot be started, the log not be written, or everything was ended.
    pub(super) fn run(
        &self,
        line: &str,
        log: &Path,
        limit: Duration,
        output: &mut dyn FnMut(&str),
    ) -> io::Result<Ended> {
        let mut log = File::options().create(true).append(true).open(log)?;
        let state = self.changed.wait_while(self.state(), |state| state.is_halted);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_ended {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut child = start(line)?;
        let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        state.process = process;
        drop(state);
        let (read, has_left, is_late) = thread::scope(|scope| {
            let (is_read, waits) = mpsc::channel::<()>();
            let (is_over, over) = mpsc::channel::<()>();
            let watch = scope.spawn(move || process.is_some_and(|process| end_what_is_left(process, &waits)));
            let late = scope.spawn(move || self.end_what_hangs(limit, &over));
            let read = read(&mut child, &mut log, output);
            drop((is_read, is_over));
            (read, watch.join().unwrap_or_default(), late.join().unwrap_or_default())
        });
        let status = child.wait();
        self.state().process = None;
        self.changed.notify_all();
        let (count, status) = (read?, status?);
        if let Some(signal) = status.signal() {
            output(&format!("ended by signal {signal}\n"));
        }
        if is_late {
            output(&format!("it took longer than its limit of {} s, and was ended\n", limit.as_secs()));
        }
        if has_left {
            output("it left processes behind, which were ended\n");
        }
        Ok(Ended { count, is_good: status.success() && !has_left && !is_late })
    }

    /// Ends the command when it has run for `limit`; what halts it stops the clock. Returns whether it came to that.
    fn end_what_hangs(&self, limit: Duration, is_over: &Receiver<()>) -> bool {
        const LOOK: Duration = Duration::from_millis(500);
        let mut ran = Duration::ZERO;
        while is_over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let state = self.state();
            if !state.is_halted {
                ran = ran.saturating_add(LOOK);
            }
            if ran >= limit {
                state.signal(Signal::TERM);
                drop(state);
                // A program may want a moment: the lab has a guest to end.
                let is_left = is_over.recv_timeout(Duration::from_secs(5)) == Err(RecvTimeoutError::Timeout);
                if is_left {
                    self.state().signal(Signal::KILL);
                }
                return true;
            }
        }
        false
    }
}

impl State {
    fn signal(&self, signal: Signal) {
        for pid in self.process.into_iter().flat_map(family) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }
}

fn start(line: &str) -> io::Result<Child> {
    let script = format!(
        "set -o pipefail\nexport CARGO_TERM_COLOR=never RUST_BACKTRACE=${{RUST_BACKTRACE:-0}}\n. tests/programs.sh\nexec 2>&1\n{line}"
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(tree::root()).stdin(Stdio::null()).stdout(Stdio::piped());
    // A group of its own: an interrupt from the terminal is ours to pass on.
    command.process_group(0);
    // What cargo tells a program that it runs is not for the builds below.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text == "CARGO"
            || ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
                .iter()
                .any(|begin| text.starts_with(begin))
        {
            command.env_remove(&name);
        }
    }
    command.spawn()
}

/// Ends what a command left behind with its output open, which nobody else would end. Whether there was something.
fn end_what_is_left(process: Pid, is_read: &Receiver<()>) -> bool {
    // It stays to be reaped.
    let _ = waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let is_left = is_read.recv_timeout(LEFT) == Err(RecvTimeoutError::Timeout);
    if is_left {
        let _ = kill_process_group(process, Signal::KILL);
    }
    is_left
}

fn read(child: &mut Child, log: &mut File, output: &mut dyn FnMut(&str)) -> io::Result<Count> {
    let mut count = Count::default();
    let Some(stdout) = child.stdout.take() else { return Ok(count) };
    let mut reader = BufReader::new(stdout);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        log.write_all(&bytes)?;
        let line = String::from_utf8_lossy(&bytes);
        count.add(Count::of(&line));
        output(&line);
        bytes.clear();
    }
    Ok(count)
}

/// A process and all below it: `timeout` puts what it starts into a group of its own, which a signal to ours does not reach.
fn family(first: Pid) -> Vec<Pid> {
    let mut parents: Vec<(Pid, Pid)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        parents.extend(parse(&stat));
    }
    let mut found = vec![first];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// The numbers of a process and of its parent, from `/proc/PID/stat`.
fn parse(stat: &str) -> Option<(Pid, Pid)> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    // A name may have spaces and parentheses in it.
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    Some((Pid::from_raw(pid)?, Pid::from_raw(parent)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(100);

    fn try_line(line: &str) -> (Ended, Vec<String>, String) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("it.log");
        let mut lines = Vec::new();
        let ended = Runner::default().run(line, &log, LONG, &mut |line| lines.push(line.to_owned())).unwrap();
        (ended, lines, fs::read_to_string(log).unwrap())
    }

    #[test]
    fn output_is_shown_logged_and_counted() {
        let (ended, lines, log) = try_line("echo 3 passed, 1 failed >&2; echo it; exit 4");
        assert!(!ended.is_good);
        assert_eq!((ended.count.passed, ended.count.failed), (3, 1));
        assert_eq!(lines, ["3 passed, 1 failed\n", "it\n"]);
        assert_eq!(log, "3 passed, 1 failed\nit\n");
    }

    #[test]
    fn what_a_command_leaves_behind_is_ended_and_said() {
        let seconds = format!("61.{}", std::process::id());
        let (ended, lines, _) = try_line(&format!("sleep {seconds} & echo 1 passed, 0 failed"));
        assert!(!ended.is_good && ended.count.passed == 1);
        assert_eq!(lines.last().unwrap(), "it left processes behind, which were ended\n");
        wait_until("it was not ended", || !sleepers(&seconds).contains(&'S'));
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let seconds = format!("62.{}", std::process::id());
        let line = format!("echo 1 passed, 0 failed; timeout 70 sleep {seconds}");
        let (limit, mut last) = (Duration::from_secs(1), String::new());
        let show = &mut |line: &str| line.clone_into(&mut last);
        let ended = Runner::default().run(&line, &folder.path().join("it.log"), limit, show).unwrap();
        assert!(!ended.is_good && ended.count.passed == 1);
        assert_eq!(last, "it took longer than its limit of 1 s, and was ended\n");
        wait_until("it was not ended", || sleepers(&seconds).is_empty());
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1_500 {
            if is_so() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{what}");
    }

    /// The states of the processes whose command line is `sleep SECONDS`, as the kernel names them.
    fn sleepers(seconds: &str) -> Vec<char> {
        let folders = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let command = format!("sleep\0{seconds}\0");
        let ours =
            folders.filter(|path| fs::read_to_string(path.join("cmdline")).is_ok_and(|line| line == command));
        let stats = ours.filter_map(|path| fs::read_to_string(path.join("stat")).ok());
        stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
    }

    #[test]
    fn what_a_command_has_started_is_halted_and_ended_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let (log, runner) = (folder.path().join("it.log"), Runner::default());
        // A number that nobody else sleeps for.
        let seconds = format!("60.{}", std::process::id());
        // `timeout` starts a group of its own.
        let line = format!("timeout 60 sleep {seconds}");
        thread::scope(|scope| {
            let command = scope.spawn(|| runner.run(&line, &log, LONG, &mut |_| ()));
            wait_until("it never started", || sleepers(&seconds) == ['S']);
            runner.halt();
            wait_until("it was not halted", || sleepers(&seconds) == ['T']);
            runner.resume();
            wait_until("it did not go on", || sleepers(&seconds) == ['S']);
            runner.end();
            assert!(!command.join().unwrap().unwrap().is_good);
        });
        wait_until("it did not end", || sleepers(&seconds).is_empty());
        assert!(runner.run("true", &log, LONG, &mut |_| ()).is_err(), "nothing begins afterwards");
    }

    #[test]
    fn a_process_may_have_any_name() {
        let pids = |pid, parent| Some((Pid::from_raw(pid)?, Pid::from_raw(parent)?));
        assert_eq!(parse("12 (a b) c) S 7 1 1"), pids(12, 7));
        assert_eq!(parse("nonsense"), None);
    }
}
