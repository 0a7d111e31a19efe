//! What the program leaves behind when it is ended, and what it says to a reader that has gone.

#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use gimmal_testkit::{ChildGuard, until};
use rustix::process::{Pid, Signal, kill_process};

fn bench(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gimmal-bench"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// The processes that `pid` started.
fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_running(pid: u32) -> bool {
    // A zombie runs no more.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn a_signal_leaves_neither_folders_nor_children() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = bench("lat --loopback --provider shm -n 1g --against tcp,uds");
        command.env("TMPDIR", folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = ChildGuard::spawn(&mut command).unwrap();
        until("it measures", || !children(run.id()).is_empty() && !is_empty(folder.path()));
        let server = children(run.id())[0];
        kill_process(Pid::from_child(&run), signal).unwrap();
        let mut status = None;
        until("it ends", || {
            status = run.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(code));
        assert!(is_empty(folder.path()), "{signal:?}");
        until("its server ends", || !is_running(server));
    }
}

#[test]
fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_one() {
    for more in ["", "--json", "--csv", "--format perftest"] {
        let line = format!("lat --loopback --provider shm -n 300 --warmup 10 {more}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = bench(&line).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked"), "{line}: {said}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = bench(&line).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(
            said.contains("printing: No space left on device") && !said.contains("panicked"),
            "{line}: {said}"
        );
    }
}
