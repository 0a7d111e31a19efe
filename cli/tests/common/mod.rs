//! Commands of `gimmal`: those that end by themselves, and those that run until a signal.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, and a test may fail")]

pub(crate) mod frames;

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
};

/// A call may take long on a machine with other things to do.
pub(crate) const PATIENCE: [&str; 2] = ["--timeout-ms", "60000"];

pub(crate) fn gimmal(arguments: &[&str]) -> Output {
    let (command, more) = arguments.split_first().unwrap();
    let is_of_calls = ["call", "describe", "health", "top"].contains(command);
    let patience = PATIENCE.iter().filter(|_| is_of_calls);
    Command::new(env!("CARGO_BIN_EXE_gimmal")).arg(command).args(patience).args(more).output().unwrap()
}

pub(crate) fn said(arguments: &[&str]) -> String {
    let output = gimmal(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn complaint(arguments: &[&str]) -> String {
    let output = gimmal(arguments);
    assert!(!output.status.success(), "{arguments:?} should fail");
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Where it listens: what its first line begins with.
    pub(crate) at: String,
}

impl Running {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_gimmal")).args(arguments))
    }

    /// Starts it by a command that becomes it.
    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        if output.read_line(&mut line).unwrap() == 0 {
            panic!("it ended before it said where it listens: {}", child.wait().unwrap());
        }
        let at = line.split(" -> ").next().unwrap().to_owned();
        Self { child, output, at }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Ends it by SIGKILL, and waits until it is gone: a process that dies holds its address for some time yet.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// How many sockets it has open.
    pub(crate) fn sockets(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Ends it by SIGTERM, and returns its counters.
    pub(crate) fn stop(mut self) -> serde_json::Value {
        self.signal(rustix::process::Signal::TERM);
        let mut lines = String::new();
        self.output.read_to_string(&mut lines).unwrap();
        assert!(self.child.wait().unwrap().success(), "{lines}");
        serde_json::from_str(lines.lines().last().unwrap()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
