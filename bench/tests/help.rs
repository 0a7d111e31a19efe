//! Every command of `gimmal-bench` has a help that people can read, and prints JSON where a program could want it.

#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{Command, Output};

use serde_json::{Value, json};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gimmal-bench")).args(arguments).output().unwrap()
}

#[test]
fn every_command_has_a_help_that_people_can_read() {
    let commands = gimmal_testkit::help::commands(env!("CARGO_BIN_EXE_gimmal-bench"));
    let all = "lat rpc rate bw load stream conn scale soak agree report suite advise results serve";
    assert_eq!(commands.join(" "), all);
}

#[test]
fn what_is_read_by_programs_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (suite, records) = (path("suite.toml"), path("records.json"));
    std::fs::write(&suite, "about = 'a test'\n[[run]]\nline = 'conn --loopback -n 3'\n").unwrap();
    let kept = bench(&["suite", &suite, "--json"]);
    assert!(kept.status.success(), "{kept:?}");
    let record: Value = serde_json::from_slice(&kept.stdout).unwrap();
    assert_eq!((&record["test"], &record["count"]), (&json!("conn"), &json!(3)));
    assert_eq!(record["command"], "gimmal-bench conn --loopback -n 3");
    assert_eq!(record["date"].as_str().unwrap().len(), "2026-11-29 09:20".len());

    // A placement that two runs saw.
    let state = json!({"line_ns": 100.0, "slices": 9, "p50_ns": 200.0, "per_s": 1.0, "rows": [],
        "ratio_to_frame_floor": 1.5, "ratio_to_frame_floor_interval": [1.4, 1.6]});
    let mut seen = record;
    (seen["test"], seen["states"]) = (json!("lat"), json!([state]));
    std::fs::write(&records, seen.to_string()).unwrap();
    let agreed = bench(&["agree", &records, &records, "--json"]);
    assert!(agreed.status.success(), "{agreed:?}");
    let verdict: Value = serde_json::from_slice(&agreed.stdout).unwrap();
    assert_eq!((&verdict["is_met"], &verdict["ratios"]), (&json!(true), &json!([1.5, 1.5])));
    let advised = bench(&["advise", &records, "--json"]);
    let advice: Value = serde_json::from_slice(&advised.stdout).unwrap();
    assert!(advised.status.success() && advice["advice"].is_array(), "{advised:?}");
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for arguments in
        [&["lat"][..], &["no-such-command"], &["report", "no-such-file"], &["suite", "no-such-suite"]]
    {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout.is_empty() && !said.is_empty(), "{arguments:?}: {output:?}");
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
    }
    assert_eq!(bench(&["lat"]).status.code(), Some(2));
}
