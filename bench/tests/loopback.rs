//! The program as people start it: two processes, their report, their errors, and nothing left behind.

#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Output, Stdio},
    time::Duration,
};

use gimmal::Instant;
use gimmal_testkit::ChildGuard;
use serde_json::Value;

fn bench(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gimmal-bench")).args(line.split_whitespace()).output().unwrap()
}

fn record(line: &str) -> Value {
    let output = bench(line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {said}");
    let record =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}\n{said}"));
    conforms(&serde_json::from_str(include_str!("../schema.json")).unwrap(), &record, line);
    record
}

/// Whether `value` is what `schema` says; as much of JSON Schema as ours uses.
fn conforms(schema: &Value, value: &Value, place: &str) {
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{place}: the schema says {other}"),
    };
    let fits = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|kind| is(kind.as_str().unwrap())),
        kind => is(kind.as_str().unwrap()),
    };
    assert!(fits, "{place}: {value} is not {}", schema["type"]);
    if let Value::Object(fields) = value {
        for name in schema["required"].as_array().unwrap() {
            assert!(fields.contains_key(name.as_str().unwrap()), "{place}: {name} is missing");
        }
        for (name, value) in fields {
            let schema = &schema["properties"][name];
            assert!(schema.is_object(), "{place}: {name} is not in the schema");
            conforms(schema, value, &format!("{place}.{name}"));
        }
    }
    if let (Value::Array(items), true) = (value, schema["items"].is_object()) {
        items.iter().for_each(|item| conforms(&schema["items"], item, &format!("{place}[]")));
    }
}

/// What must hold on the busiest machine.
fn plausible(report: &Value) {
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
    assert!(number("p50_ns") >= 50.0 && number("p50_ns") <= number("p99_ns"), "{report}");
    assert!(number("p99_ns") <= number("p999_ns") && number("p999_ns") <= number("max_ns"), "{report}");
    assert!(number("calls_per_s") > 1.0, "{report}");
    assert!(number("line_floor_p50_ns") > 10.0 && number("frame_floor_p50_ns") > 10.0, "{report}");
    assert!(number("ratio_to_frame_floor") > 0.0 && number("floor_drift_pct") >= 0.0, "{report}");
    assert_eq!(report["cpus"].as_array().unwrap().len(), 2);
    assert!(!report["commit"].as_str().unwrap().is_empty());
    assert!(!report["environment"]["kernel"].as_str().unwrap().is_empty(), "{report}");
    assert_eq!(report["is_complete"], true);
}

#[test]
fn lat_says_what_it_must() {
    // The tenth of them that is watched is many beside what a busy host adds.
    let report = record("lat --loopback -n 100000 --json");
    plausible(&report);
    let cost = &report["cost"];
    assert!(
        cost["client_cpu_ns"].as_f64() > Some(0.0) && cost["server_cpu_ns"].as_f64() > Some(0.0),
        "{cost}"
    );
    for work in [&cost["client_work"], &cost["server_work"]] {
        assert!(work["switches"].is_number(), "{cost}");
        // Where this system counts them: the few are of the look itself. On one core, waiting is yielding.
        let few = work["system_calls"].as_f64().is_none_or(|calls| calls < 0.05);
        assert!(few || report["cpus"][0] == report["cpus"][1], "{cost}");
    }
    assert!(
        cost["negotiated"].as_str().unwrap().contains("data path") && cost.to_string().contains("doorbells")
    );
    assert_eq!(
        (&report["provider"], &report["layer"], &report["mode"]),
        (&"shm".into(), &"engine".into(), &"inline".into())
    );
    assert_eq!(
        (&report["bytes"], &report["window"], &report["count"]),
        (&64.into(), &1.into(), &100_000.into())
    );
}

#[test]
fn several_starts_make_one_run() {
    let report = record("lat --loopback -n 6001 --starts 3 --pairs 4 --against uds --json");
    plausible(&report);
    assert_eq!((&report["starts"], &report["count"]), (&3.into(), &6001.into()));
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn slices_are_told_by_the_state_of_the_host() {
    let report = record("rate --loopback -n 10000 --pairs 20 -O 8 --json");
    let states = report["states"].as_array().unwrap();
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
    let held: f64 = states.iter().map(|state| number(state, "slices")).sum();
    // Twenty slices at least, of which each is in one state or in none.
    assert!(held + number(&report, "slices_left_out") > 19.0, "{report}");
    for (at, state) in states.iter().enumerate() {
        assert!(number(state, "line_ns") > 10.0 && number(state, "per_s") > 1.0, "{state}");
        assert!(at == 0 || number(state, "slices") <= number(&states[at - 1], "slices"), "{report}");
        if let Some(ratio) = state["ratio_to_frame_floor"].as_f64() {
            let [low, high] = [0, 1].map(|end| state["ratio_to_frame_floor_interval"][end].as_f64().unwrap());
            assert!(low <= ratio && ratio <= high, "{state}");
            assert!(at > 0 || report["ratio_to_frame_floor"] == state["ratio_to_frame_floor"], "{report}");
        }
    }
}

#[test]
fn a_limit_ends_a_run_in_time() {
    let started = Instant::now();
    let report = record("lat --loopback -n 1g --pairs 3 --limit-s 1 --json");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(report["is_complete"] == true && report["count"].as_u64() < Some(1_000_000_000), "{report}");
}

#[test]
fn rate_keeps_a_window() {
    let report = record("rate --loopback -n 20k -O 32 -s 256 --json");
    plausible(&report);
    assert_eq!(
        (&report["bytes"], &report["window"], &report["count"]),
        (&256.into(), &32.into(), &20_000.into())
    );
}

#[test]
fn every_layer_and_mode() {
    for line in [
        "lat --loopback -n 300 --pairs 3 --json --mode handoff",
        "rate --loopback -n 2000 --pairs 3 --json --mode handoff -O 8",
        "lat --loopback -n 2000 --pairs 3 --json --layer rpc",
        "rate --loopback -n 2000 --pairs 3 --json --layer rpc -O 8",
        "rpc --loopback -n 2000 --pairs 3 --json --verify",
        "rate --loopback -n 2000 --pairs 3 --json --layer typed -O 8",
        "lat --loopback -n 300 --pairs 3 --json --layer rpc --mode handoff",
        "rate --loopback -n 2000 --pairs 3 --json --layer rpc --mode handoff -O 8",
        "lat --loopback -n 300 --pairs 3 --json --layer typed --mode handoff",
    ] {
        plausible(&record(line));
    }
}

/// The row whose name begins so.
fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["name"].as_str().unwrap().starts_with(name));
    found.unwrap_or_else(|| panic!("{name} in {report}"))
}

/// It was measured, and its ratio lies in its interval.
fn was_measured(row: &Value) {
    assert!(row["slices"].as_u64() > Some(0), "{row}");
    let [low, high] = [0, 1].map(|end| row["ratio_interval"][end].as_f64().unwrap());
    let ratio = row["ratio"].as_f64().unwrap();
    assert!(row["value"].as_f64().unwrap() > 0.0 && low <= ratio && ratio <= high, "{row}");
}

#[test]
fn rate_has_the_bare_ring_beside_it() {
    let report = record("rate --loopback -n 20k -O 32 --pairs 7 --json");
    was_measured(row(&report, "bare unbatched copying ring, window 32"));
    assert!(report["handoff_per_exchange"].is_null());
}

#[test]
fn handed_off_has_inline_and_the_bare_exchange_beside_it() {
    for layer in ["engine", "rpc"] {
        let report =
            record(&format!("lat --loopback -n 300 --mode handoff --layer {layer} --pairs 5 --json"));
        was_measured(row(&report, "the same, inline"));
        was_measured(row(&report, "bare thread exchange"));
        assert!(report["handoff_per_exchange"].is_number(), "{report}");
    }
}

#[test]
fn sockets_are_measured_in_both_processes() {
    for (test, mode) in [("lat", "inline"), ("lat", "handoff"), ("rate -O 8", "inline"), ("bw", "inline")] {
        let report =
            record(&format!("{test} --loopback -n 300 --mode {mode} --against tcp,uds --pairs 3 --json"));
        was_measured(row(&report, "kernel TCP"));
        was_measured(row(&report, "unix socket"));
    }
}

#[test]
fn programs_of_others_are_started_parsed_and_named_when_they_are_missing() {
    let report = record("lat --loopback -n 600 --against ucx,libfabric,perftest --pairs 2 --json");
    for (program, package) in [("ucx_perftest", "ucx-utils"), ("fi_pingpong", "libfabric-bin")] {
        let row = row(&report, program);
        if row["slices"] == 2 {
            was_measured(row);
        } else {
            let note = row["note"].as_str().unwrap();
            println!("SKIP: {program}: {note}");
            // On a busy machine a program may take too long; one that is not there is named with its package.
            assert!(note.contains(package) || note.starts_with(program), "{row}");
        }
    }
    let note = row(&report, "ib_send_lat")["note"].as_str().unwrap().to_owned();
    assert!(note.contains("needs an RDMA device"), "{note}");
    assert_eq!(report["is_complete"], true);
}

#[test]
fn bandwidth_of_loans_and_the_floors_beside_it() {
    let report = record("bw --loopback -n 60 -s 1m --pairs 3 --json");
    assert_eq!((&report["bytes"], &report["count"]), (&(1 << 20).into(), &60.into()));
    let (calls, bytes) = (report["calls_per_s"].as_f64().unwrap(), report["bytes_per_s"].as_f64().unwrap());
    assert!((bytes / calls / f64::from(1 << 20) - 1.0).abs() < 1e-9, "{report}");
    let text = bench("bw --loopback -n 20 -s 1m --pairs 2");
    assert!(String::from_utf8_lossy(&text.stdout).contains("\nbytes per second   "), "{text:?}");
    was_measured(row(&report, "bare loop"));
    was_measured(row(&report, "64 B echo of the engine"));
    let report = record("bw --loopback -n 60 -s 1m --touch header -O 4 --pairs 3 --json");
    assert!(report["calls_per_s"].as_f64().unwrap() > 1.0, "{report}");
    assert!(
        report["rows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| !row["name"].as_str().unwrap().starts_with("bare"))
    );
}

/// Times of a part.
fn part<'a>(report: &'a Value, name: &str) -> &'a Value {
    let parts = report["parts"].as_array().unwrap();
    parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("{name} in {report}"))
}

#[test]
fn the_open_loop_shows_the_stalls_that_the_closed_loop_hides() {
    let report = record("load --loopback -n 30k -O 1 --rates 1000 -D 8 --stall 100 --json");
    let closed = report["p99_ns"].as_u64().unwrap();
    let open = part(&report, "offered 1000 per s");
    // A tenth of all calls is due while the server stalls: the hundredth slowest waits most of a stall.
    assert!(open["p99_ns"].as_u64().unwrap() >= 50_000_000, "{report}");
    assert!(closed < 50_000_000, "{report}");
    assert!(open["count"].as_u64().unwrap() > 3000, "{report}");
}

#[test]
fn loads_are_swept_and_named() {
    let report = record("load --loopback -n 2000 --rates 500,1k -D 1 --json");
    assert_eq!(report["parts"].as_array().unwrap().len(), 2);
    assert!(part(&report, "offered 1000 per s")["per_s"].as_f64().unwrap() > 100.0, "{report}");
    let refused = bench("load --loopback -n 200 --rates 500 -D 1 --mode handoff");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn connections_are_timed_step_by_step() {
    let report = record("conn --loopback -n 20 --json");
    assert_eq!((&report["count"], report["parts"].as_array().unwrap().len()), (&20.into(), 4));
    for part in report["parts"].as_array().unwrap() {
        assert_eq!(part["count"], 20, "{part}");
    }
    assert!(report["calls_per_s"].as_f64().unwrap() > 0.1, "{report}");
}

#[test]
fn streams_are_measured_each_way_and_every_item_is_looked_at() {
    for mode in ["inline", "handoff"] {
        let line = format!("stream --loopback -n 2k --pairs 2 -s 64,4k --verify --json --mode {mode}");
        let report = record(&line);
        assert_eq!((&report["count"], &report["window"]), (&12_000.into(), &32.into()));
        for bytes in [64, 4096] {
            for direction in ["down", "up", "both"] {
                let part = part(&report, &format!("{direction}, {bytes} B"));
                assert_eq!(part["count"], 2_000, "{part}");
                let (items, bytes_per_s) = (part["per_s"].as_f64(), part["bytes_per_s"].as_f64());
                assert!(items > Some(100.0), "{part}");
                assert!((bytes_per_s.unwrap() / items.unwrap() - f64::from(bytes)).abs() < 0.5, "{part}");
            }
        }
    }
}

#[test]
fn many_connections_and_what_one_costs() {
    let report = record("scale --loopback -n 200 --connections 1,5,20 --json");
    for number in [1, 5, 20] {
        assert_eq!(part(&report, &format!("{number} connections, 1 active"))["count"], 200);
        assert!(
            part(&report, &format!("{number} connections, all active"))["count"].as_u64().unwrap() >= 200
        );
    }
    let note = part(&report, "20 connections, 1 active")["note"].as_str().unwrap().to_owned();
    assert!(note.ends_with("KiB a connection, both ends"), "{note}");
}

#[test]
fn lists_of_sizes_make_a_report_each() {
    let output = bench("lat --loopback -n 200 -s 8,64..256 --pairs 2 --json");
    let text = String::from_utf8(output.stdout).unwrap();
    let reports: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sizes: Vec<u64> = reports.iter().map(|report| report["bytes"].as_u64().unwrap()).collect();
    assert!(reports.iter().all(|report| report["cpus"] == reports[0]["cpus"]), "{text}");
    assert_eq!(sizes, [8, 64, 128, 256]);
    let folder = tempfile::tempdir().unwrap();
    let hgrm = folder.path().join("times.hgrm").display().to_string();
    let output = bench(&format!("lat --loopback -n 200 -s 8,64 --pairs 2 --format perftest --hgrm {hgrm}"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((text.lines().count(), text.matches("t_typical[usec]").count()), (3, 1), "{text}");
    for bytes in [8, 64] {
        let text = std::fs::read_to_string(format!("{hgrm}.{bytes}")).unwrap();
        assert!(text.contains("Total count    =          200]"), "{text}");
    }
    let output = bench("lat --loopback -n 200 -s 8,64 --pairs 2 --csv");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !line.contains("state of the host")).count();
    assert_eq!((lines, text.matches("test,provider").count()), (3, 1), "{text}");
}

#[test]
fn records_become_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let (records, page) = (folder.path().join("records.json"), folder.path().join("page.html"));
    let output = bench("lat --loopback -n 200 -s 64,256 --pairs 3 --against uds --json");
    std::fs::write(&records, &output.stdout).unwrap();
    let written = bench(&format!("report {} -o {}", records.display(), page.display()));
    assert!(written.status.success(), "{written:?}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.contains("unix socket"));
    // It names nothing that a browser would fetch: its links lead to its own sections.
    let is_within = |link: &str| link.starts_with('#') || link.starts_with("data:");
    assert!(!page.contains("src=") && page.split("href=\"").skip(1).all(is_within));
    std::fs::write(&records, "{}").unwrap();
    let refused = bench(&format!("report {}", records.display()));
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("records.json:1"));
}

#[test]
fn verify_catches_one_bit() {
    for mode in ["inline", "handoff"] {
        // The last byte of a line is what only a thorough look sees.
        let line = format!("lat --loopback -n 3000 -s 64 --mode {mode} --pairs 2 --json --corrupt 1500");
        let quick = bench(&line);
        assert!(quick.status.success(), "{mode}: a quick look sees one word of a line: {quick:?}");
        let output = bench(&format!("{line} --verify"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{mode}: {said}");
        assert!(said.contains("the echo is not what was sent"), "{mode}: {said}");
    }
    plausible(&record("lat --loopback -n 3000 -s 300 --pairs 2 --json --verify"));
    plausible(&record("lat --loopback -n 3000 -s 300 --pairs 2 --json --verify --layer rpc"));
}

/// The first child of a process that we started.
fn child_of(id: u32) -> String {
    let children = format!("/proc/{id}/task/{id}/children");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = std::fs::read_to_string(&children).unwrap();
        if let Some(child) = found.split_whitespace().next() {
            return child.to_owned();
        }
        assert!(Instant::now() < deadline, "no server was started");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills the server of a run once it is measuring; what the run printed before it ended. On a busy machine that takes
/// longer: until `is_enough` was measured.
fn kill_the_server_of(line: &str, is_enough: impl Fn(&Value) -> bool) -> Value {
    let mut last = String::new();
    for measuring_s in [2, 5, 15, 40] {
        let client = Command::new(env!("CARGO_BIN_EXE_gimmal-bench"))
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let server = child_of(client.id());
        std::thread::sleep(Duration::from_secs(measuring_s));
        assert!(Command::new("kill").args(["-9", &server]).status().unwrap().success());
        let killed = Instant::now();
        let output = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(killed.elapsed() < Duration::from_secs(30), "{line}: {:?}", killed.elapsed());
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("the server process ended in the middle by signal 9"), "{line}: {said}");
        if let Ok(report) = serde_json::from_slice::<Value>(&output.stdout)
            && is_enough(&report)
        {
            assert_eq!(report["is_complete"], false, "{line}");
            return report;
        }
        last = said;
    }
    panic!("{line}: nothing was measured in 40 s: {last}");
}

/// Whether there are calls, with their times.
fn has_calls(report: &Value) -> bool {
    report["count"].as_u64() > Some(0) && report["p50_ns"].as_u64() > Some(0)
}

#[test]
fn a_killed_server_ends_the_run_and_what_was_measured_is_kept() {
    for line in [
        "lat --loopback -n 1g --warmup 10 --json",
        "lat --loopback -n 1g --warmup 10 --json --mode handoff",
        "rate --loopback -n 1g --warmup 10 --json --layer rpc",
        "bw --loopback -s 64k -n 1g --warmup 10 --json",
    ] {
        kill_the_server_of(line, has_calls);
    }
}

#[test]
fn a_killed_server_ends_tests_with_parts_too() {
    let parts = |report: &Value| report["parts"].as_array().is_some_and(|parts| !parts.is_empty());
    let report = kill_the_server_of("load --loopback -n 200 --rates 100,200 -D 60 --json", parts);
    let broken = part(&report, "offered 100 per s");
    assert!(broken["count"].as_u64().unwrap() > 0 && broken["note"] == "broke off", "{report}");
    kill_the_server_of("conn --loopback -n 1m --json", has_calls);
    kill_the_server_of("stream --loopback -n 100m --pairs 1 --direction down --json", has_calls);
    kill_the_server_of("scale --loopback -n 1g --connections 1,2 --json", has_calls);
}

#[test]
fn large_bodies_get_larger_rings() {
    plausible(&record("lat --loopback -n 200 --warmup 10 --pairs 3 --json -s 300k"));
    plausible(&record("rate --loopback -n 300 --warmup 10 --pairs 3 --json -s 100k -O 16"));
}

#[test]
fn both_on_one_core() {
    plausible(&record("lat --loopback -n 200 --warmup 10 --json --cpus 0,0"));
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
    let mut serve = Command::new(env!("CARGO_BIN_EXE_gimmal-bench"));
    let mut server =
        ChildGuard::spawn(serve.args(["serve", "--address", &address]).stdout(Stdio::piped())).unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), address);
    for layer in ["engine", "rpc"] {
        for _ in 0..2 {
            let report = record(&format!("lat --address {address} --layer {layer} -n 2000 --json"));
            assert!(report["p50_ns"].as_u64().unwrap() > 0);
            assert!(report["frame_floor_p50_ns"].is_null() && report["ratio_to_frame_floor"].is_null());
        }
    }
    let large = bench(&format!("lat --address {address} -n 2000 -s 1m"));
    assert_eq!(large.status.code(), Some(2), "{large:?}");
    assert!(String::from_utf8_lossy(&large.stderr).contains("above the largest body of one frame"));
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = format!("lat -n 10 --address shm://{}", folder.path().join("nobody").display());
    for (line, code, words) in [
        (&*nobody, 69, "no connection to the server"),
        ("lat --loopback -n 10 --cpus 0,4000", 69, "core 4000 is not available"),
        ("lat --loopback -n 10 --provider sctp", 2, "invalid value"),
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
    let mut client = Command::new(env!("CARGO_BIN_EXE_gimmal-bench"));
    let client = client.args("lat --loopback -n 100g --json -s 77".split_whitespace()).stdout(Stdio::null());
    let mut client = ChildGuard::spawn(client).unwrap();
    let child = child_of(client.id());
    // Let them begin to measure.
    std::thread::sleep(Duration::from_millis(300));
    client.kill().unwrap();
    client.wait().unwrap();
    let line = format!("/proc/{child}/stat");
    let deadline = Instant::now() + Duration::from_secs(60);
    // A zombie waits for whoever adopted it; it runs no more.
    while std::fs::read_to_string(&line).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "the server goes on without its client");
        std::thread::sleep(Duration::from_millis(5));
    }
}
