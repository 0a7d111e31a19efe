//! Suites: runs in rounds, kept, compared with a baseline and with each other.

#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_gimmal-bench"))
}

fn bench(line: &str) -> Output {
    program().args(line.split_whitespace()).output().unwrap()
}

#[test]
fn a_run_of_a_suite_waits_for_its_turns() {
    let begin = || {
        let line = "lat --loopback -n 900 --pairs 3 --starts 3 --json --in-turns";
        let mut command = program();
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.args(line.split_whitespace()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map(Result::unwrap))
    };
    let (mut child, mut lines) = begin();
    for _ in 0..2 {
        assert_eq!(lines.next().unwrap(), "");
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    let record: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert_eq!((&record["starts"], &record["count"]), (&json!(3), &json!(900)));
    assert!(child.wait().unwrap().success() && lines.next().is_none());

    // Without a suite there is none to wait for.
    let (mut child, mut lines) = begin();
    assert_eq!(lines.next().unwrap(), "");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the suite that this run belongs to is gone"));
}

/// On a machine whose state changes all the time, none may be seen in enough slices of a run.
const TRIES: usize = 3;

/// Whether each run saw some state often enough to be compared.
fn are_sure(records: &str) -> bool {
    records.lines().all(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        record["states"].as_array().unwrap().iter().any(|state| state["slices"].as_u64() >= Some(7))
    })
}

#[test]
fn a_suite_is_run_kept_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (suite, kept, page) = (path("suite.toml"), path("kept.json"), path("page.html"));
    let lines = "about = 'a test'\n[[run]]\nline = 'lat --loopback -n 3000 --pairs 25 --starts 3'\n\
                 [[run]]\nline = 'rate --loopback -n 6000 -O 4 --pairs 25'\n\
                 [[instructions]]\nname = 'nothing'\nline = 'examples/no-such-program 1'\n";
    std::fs::write(&suite, lines).unwrap();
    let mut records = String::new();
    for _ in 0..TRIES {
        let output = bench(&format!("suite {suite} --save {kept} --page {page}"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains("lat shm engine inline, 64 B") && said.contains("SKIP"), "{said}");
        assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
        records = std::fs::read_to_string(&kept).unwrap();
        assert_eq!(records.lines().count(), 2, "{records}");
        if are_sure(&records) {
            break;
        }
    }

    // A baseline in which everything was ten thousand times better, in every state that a host can have.
    let better = records.lines().map(|line| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        let factor = if record["test"] == "lat" { 1e-4 } else { 1e4 };
        let ratio = record["ratio_to_frame_floor"].as_f64().unwrap() * factor;
        let lines = std::iter::successors(Some(10.0), |line| Some(line * 1.2)).take_while(|line| *line < 1e7);
        let states = lines.map(|line_ns| {
            json!({"line_ns": line_ns, "slices": 99, "p50_ns": 1.0, "per_s": 1.0, "rows": [],
                "ratio_to_frame_floor": ratio, "ratio_to_frame_floor_interval": [ratio, ratio]})
        });
        record["states"] = states.collect::<Vec<_>>().into();
        record.to_string()
    });
    let baseline = path("better.json");
    std::fs::write(&baseline, better.collect::<Vec<_>>().join("\n")).unwrap();
    let mut said = String::new();
    let is_told = (0..TRIES).any(|_| {
        let worse = bench(&format!("suite {suite} --baseline {baseline}"));
        said = String::from_utf8_lossy(&worse.stdout).into_owned();
        worse.status.code() == Some(1) && said.matches("WORSE").count() >= 2
    });
    assert!(is_told, "{said}");
    let agreed = bench(&format!("agree {kept} {kept}"));
    let said = String::from_utf8_lossy(&agreed.stdout).into_owned();
    assert!(agreed.status.success() && said.contains("of them in all 2 runs"), "{said}");
    let apart = bench(&format!("agree {kept} {baseline}"));
    assert_eq!(apart.status.code(), Some(1), "{apart:?}");

    let advice = bench(&format!("advise {kept}"));
    assert!(advice.status.success() && String::from_utf8_lossy(&advice.stdout).contains("lat shm engine"));
    assert_eq!(bench("suite no-such-suite").status.code(), Some(2));
}
