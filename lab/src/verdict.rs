//! From what a guest left behind to an exit code and the lines that explain it.

use crate::{guest::Report, tool};

/// The programs or packages it takes are not there.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The guest's kernel complained, or died.
pub(crate) const KERNEL: u8 = 70;
/// The guest did not come as far as the command, or the lab itself failed.
pub(crate) const LAB: u8 = 71;
/// As `timeout` has it.
pub(crate) const TIMEOUT: u8 = 124;

const CONSOLE_LINES_MAX: usize = 20;

/// What a kernel says when something is wrong with it.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "refcount",
    "hung task",
    "hung_task",
    "blocked for more than",
    "Call Trace",
    "Oops",
    "general protection fault",
    "UBSAN",
    "Kernel panic",
];

/// What a kernel says of a program that crashed: the command's exit code tells of that, where it matters.
const OF_A_PROGRAM: &str = "traps: ";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub code: u8,
    /// For stderr.
    pub lines: Vec<String>,
}

/// Judges a guest that ended by itself.
pub(crate) fn of(report: &Report, allow_kernel_warnings: bool) -> Verdict {
    let Some(exit) = report.exit else { return no_exit(report) };
    let lines: Vec<_> = complaints(&report.dmesg).map(|line| format!("kernel: {line}")).collect();
    let code = if lines.is_empty() || allow_kernel_warnings { exit } else { KERNEL };
    Verdict { code, lines }
}

/// Judges a guest that was stopped at its time limit.
pub(crate) fn timeout(report: &Report, seconds: u64) -> Verdict {
    let mut lines = vec![format!("killed after {seconds} s")];
    lines.extend(complaints(&report.console).map(|line| format!("kernel: {line}")));
    Verdict { code: TIMEOUT, lines }
}

/// Judges a guest that was stopped because its peer had failed, with this code if it had one: that is the failure.
pub(crate) fn left_alone(report: &Report, peer: Option<u8>) -> Verdict {
    let mut lines = vec!["killed: its peer failed".to_owned()];
    lines.extend(complaints(&report.console).map(|line| format!("kernel: {line}")));
    Verdict { code: peer.unwrap_or(LAB), lines }
}

fn no_exit(report: &Report) -> Verdict {
    let step = match &report.failed {
        Some(step) => format!("the guest could not: {step}"),
        None => "the guest ended before the command did".to_owned(),
    };
    let mut lines = vec![step];
    lines.extend(tool::tail(&report.qemu, CONSOLE_LINES_MAX).lines().map(str::to_owned));
    let console: Vec<_> = report.console.lines().collect();
    let first = console.iter().position(|line| is_complaint(line));
    let start = first.unwrap_or_else(|| console.len().saturating_sub(CONSOLE_LINES_MAX));
    lines.extend(console[start..].iter().take(CONSOLE_LINES_MAX).map(|line| (*line).to_owned()));
    let died = report.failed.is_none() && first.is_some();
    Verdict { code: if died { KERNEL } else { LAB }, lines }
}

fn complaints(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| is_complaint(line))
}

fn is_complaint(line: &str) -> bool {
    !line.contains(OF_A_PROGRAM) && COMPLAINTS.iter().any(|complaint| line.contains(complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(exit: u8, dmesg: &str) -> Report {
        Report { exit: Some(exit), dmesg: dmesg.into(), ..Report::default() }
    }

    #[test]
    fn the_exit_code_travels() {
        assert_eq!(of(&report(7, "[ 1.0] all is well"), false), Verdict { code: 7, lines: vec![] });
    }

    #[test]
    fn a_kernel_warning_is_a_failure() {
        let report = report(0, "fine\n[ 9.1] WARNING: CPU: 0 PID: 1\nfine");
        let verdict = of(&report, false);
        assert_eq!(verdict.code, KERNEL);
        assert_eq!(verdict.lines, ["kernel: [ 9.1] WARNING: CPU: 0 PID: 1"]);
        assert_eq!(of(&report, true).code, 0);
    }

    #[test]
    fn a_program_that_crashed_is_no_complaint_of_the_kernels() {
        let trap = "[  102.9] traps: ib_write_lat[798] general protection fault ip:7f7f sp:7ffc error:0 in librdmacm.so";
        assert_eq!(of(&report(0, trap), false), Verdict { code: 0, lines: vec![] });
        let oops = "[  102.9] general protection fault, probably for non-canonical address 0xdead: 0000 [#1]";
        assert_eq!(of(&report(0, oops), false).code, KERNEL);
    }

    #[test]
    fn a_guest_that_died_shows_its_console() {
        let panic = Report { console: "x\nBUG: unable\n".into(), ..Report::default() };
        assert_eq!(of(&panic, true).code, KERNEL);
        assert!(of(&panic, true).lines.contains(&"BUG: unable".to_owned()));
        let failed = Report { failed: Some("rdma link add".into()), ..Report::default() };
        assert_eq!(of(&failed, false).code, LAB);
        assert!(of(&failed, false).lines[0].contains("rdma link add"));
    }

    #[test]
    fn a_peer_that_failed_gives_the_code() {
        assert_eq!(left_alone(&Report::default(), Some(3)).code, 3);
        assert_eq!(left_alone(&Report::default(), None).code, LAB);
    }

    #[test]
    fn a_timeout_says_so() {
        let verdict = timeout(&Report::default(), 5);
        assert_eq!((verdict.code, verdict.lines[0].as_str()), (TIMEOUT, "killed after 5 s"));
    }
}
