//! The program as people start it: two processes, their report, their errors, and nothing left behind.

#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

const KEYS: [&str; 17] = [
    "provider",
    "layer",
    "mode",
    "bytes",
    "window",
    "count",
    "p50_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "calls_per_s",
    "line_floor_p50_ns",
    "frame_floor_p50_ns",
    "ratio_to_frame_floor",
    "floor_drift_pct",
    "cpus",
    "commit",
];

fn bench(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gimmal-bench")).args(line.split_whitespace()).output().unwrap()
}

fn json(line: &str) -> Value {
    let output = bench(line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}\n{said}"))
}

/// What must hold on the busiest machine.
fn plausible(report: &Value) {
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), KEYS.len());
    assert!(KEYS.iter().all(|key| report.get(key).is_some()), "{report}");
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
    assert!(number("p50_ns") >= 50.0 && number("p50_ns") <= number("p99_ns"), "{report}");
    assert!(number("p99_ns") <= number("p999_ns") && number("p999_ns") <= number("max_ns"), "{report}");
    assert!(number("calls_per_s") > 1.0, "{report}");
    assert!(number("line_floor_p50_ns") > 10.0 && number("frame_floor_p50_ns") > 10.0, "{report}");
    assert!(number("ratio_to_frame_floor") > 0.0 && number("floor_drift_pct") >= 0.0, "{report}");
    assert_eq!(report["cpus"].as_array().unwrap().len(), 2);
    assert!(!report["commit"].as_str().unwrap().is_empty());
}

#[test]
fn lat_says_what_it_must() {
    let report = json("lat --loopback -n 20000 --json");
    plausible(&report);
    assert_eq!(
        (&report["provider"], &report["layer"], &report["mode"]),
        (&"shm".into(), &"engine".into(), &"inline".into())
    );
    assert_eq!(
        (&report["bytes"], &report["window"], &report["count"]),
        (&64.into(), &1.into(), &20_000.into())
    );
}

#[test]
fn rate_keeps_a_window() {
    let report = json("rate --loopback -n 20k -O 32 -s 256 --json");
    plausible(&report);
    assert_eq!(
        (&report["bytes"], &report["window"], &report["count"]),
        (&256.into(), &32.into(), &20_000.into())
    );
}

#[test]
fn every_layer_and_mode() {
    for line in [
        "lat --loopback -n 2000 --json --mode handoff",
        "rate --loopback -n 2000 --json --mode handoff -O 8",
        "lat --loopback -n 2000 --json --layer rpc",
        "rate --loopback -n 2000 --json --layer rpc -O 8",
        "lat --loopback -n 2000 --json --layer rpc --mode handoff",
        "rate --loopback -n 2000 --json --layer rpc --mode handoff -O 8",
    ] {
        plausible(&json(line));
    }
}

#[test]
fn large_bodies_get_larger_rings() {
    plausible(&json("lat --loopback -n 200 --warmup 10 --json -s 300k"));
    plausible(&json("rate --loopback -n 300 --warmup 10 --json -s 100k -O 16"));
}

#[test]
fn both_on_one_core() {
    plausible(&json("lat --loopback -n 200 --warmup 10 --json --cpus 0,0"));
}

#[test]
fn the_table_is_for_people() {
    let output = bench("lat --loopback -n 2000");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("RTT p50") && table.contains("frame floor"), "{table}");
}

#[test]
fn two_processes_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("shm://{}", folder.path().join("bench").display());
    let mut server = Command::new(env!("CARGO_BIN_EXE_gimmal-bench"))
        .args(["serve", "--address", &address])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), address);
    for layer in ["engine", "rpc"] {
        for _ in 0..2 {
            let report = json(&format!("lat --address {address} --layer {layer} -n 2000 --json"));
            assert!(report["p50_ns"].as_u64().unwrap() > 0);
            assert!(report["frame_floor_p50_ns"].is_null() && report["ratio_to_frame_floor"].is_null());
        }
    }
    let large = bench(&format!("lat --address {address} -n 2000 -s 1m"));
    assert_eq!(large.status.code(), Some(2), "{large:?}");
    assert!(String::from_utf8_lossy(&large.stderr).contains("above the largest body of one frame"));
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = format!("lat -n 10 --address shm://{}", folder.path().join("nobody").display());
    for (line, code, words) in [
        (&*nobody, 69, "no connection to the server"),
        ("lat --loopback -n 10 --cpus 0,4000", 69, "core 4000 is not available"),
        ("lat --loopback -n 10 --provider tcp", 2, "invalid value"),
        ("serve --address mem://x", 2, "serve on shm://"),
    ] {
        let output = bench(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    }
    #[cfg(not(feature = "verbs"))]
    {
        let output = bench("lat --loopback --provider verbs --address rdma://127.0.0.1:0");
        assert_eq!(output.status.code(), Some(69));
        assert!(String::from_utf8_lossy(&output.stderr).contains("not in this build"));
    }
}

#[test]
fn the_server_dies_with_its_client() {
    let mut client = Command::new(env!("CARGO_BIN_EXE_gimmal-bench"))
        .args("lat --loopback -n 100g --json -s 77".split_whitespace())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let parent = format!("/proc/{0}/task/{0}/children", client.id());
    let deadline = Instant::now() + Duration::from_secs(10);
    let child = loop {
        let children = std::fs::read_to_string(&parent).unwrap();
        if let Some(child) = children.split_whitespace().next() {
            break child.to_owned();
        }
        assert!(Instant::now() < deadline, "no server was started");
        std::thread::sleep(Duration::from_millis(5));
    };
    // Let them begin to measure.
    std::thread::sleep(Duration::from_millis(300));
    client.kill().unwrap();
    client.wait().unwrap();
    let line = format!("/proc/{child}/stat");
    let deadline = Instant::now() + Duration::from_secs(5);
    // A zombie waits for whoever adopted it; it runs no more.
    while std::fs::read_to_string(&line).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "the server goes on without its client");
        std::thread::sleep(Duration::from_millis(5));
    }
}
