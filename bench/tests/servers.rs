//! Servers that are killed in the middle of a soak, and servers on other hosts.

#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use gimmal::Instant;
use gimmal_testkit::ChildGuard;
use serde_json::Value;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_gimmal-bench"))
}

fn bench(line: &str) -> Output {
    program().args(line.split_whitespace()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

/// What became of the calls.
fn soaked(report: &Value, key: &str) -> u64 {
    report["soak"][key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"))
}

#[test]
fn a_soak_goes_on_after_its_server_was_killed() {
    for mode in ["inline", "handoff"] {
        let line = format!("soak --loopback -D 4s --restart 1s --interval 1s -s 64,4k --mode {mode} --json");
        let output = bench(&line);
        assert!(output.status.success(), "{mode}: {}", said(&output));
        let report = report(&output);
        assert_eq!(report["is_complete"], true);
        let failed = soaked(&report, "not_run") + soaked(&report, "maybe_ran") + soaked(&report, "ran");
        assert!(soaked(&report, "kills") >= 1 && soaked(&report, "reconnects") >= 1, "{report}");
        assert!(failed >= 1 && soaked(&report, "verified") > 100, "{report}");
        assert!(soaked(&report, "away_ms_max") > 0 && soaked(&report, "away_ms_max") < 20_000, "{report}");
        let parts: Vec<u64> =
            report["parts"].as_array().unwrap().iter().map(|part| part["count"].as_u64().unwrap()).collect();
        assert_eq!((parts.len(), parts.iter().sum::<u64>()), (2, soaked(&report, "verified")));
        assert!(said(&output).contains("calls verified"), "progress: {}", said(&output));
    }
}

#[test]
fn a_quiet_soak_loses_nothing_and_says_so_to_people() {
    let output = bench("soak --loopback -D 1s -s 8,300,20k -O 8");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && table.contains("bytes verified"), "{table}{}", said(&output));
    assert!(table.contains("0 kills, 0 reconnects") && table.contains("failed calls       0"), "{table}");
}

/// A server of ours at `address`, which listens.
fn serve(address: &str) -> ChildGuard {
    let mut command = program();
    let command = command.args(["serve", "--address", address]).stdout(Stdio::piped());
    let mut server = ChildGuard::spawn(command).unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line.trim(), address);
    server
}

#[test]
fn a_soak_waits_for_a_server_that_somebody_else_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("shm://{}", folder.path().join("soak").display());
    let server = serve(&address);
    let line = format!("soak --address {address} -D 6s --json");
    let client = program().args(line.split_whitespace()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    drop(server);
    // The client counts from when it notices.
    std::thread::sleep(Duration::from_millis(1500));
    let server = serve(&address);
    let output = client.wait_with_output().unwrap();
    drop(server);
    assert!(output.status.success(), "{}", said(&output));
    let report = report(&output);
    assert_eq!((soaked(&report, "kills"), soaked(&report, "reconnects")), (0, 1), "{report}");
    assert!(soaked(&report, "away_ms_max") >= 400, "{report}");
}

#[test]
fn a_soak_whose_server_stays_away_ends_with_an_error_and_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("shm://{}", folder.path().join("soak").display());
    let server = serve(&address);
    let line = format!("soak --address {address} -D 4s --json");
    let mut client = program();
    let client =
        client.args(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    drop(server);
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", said(&output));
    assert!(said(&output).contains("no connection to the server"), "{}", said(&output));
    let report = report(&output);
    assert!(report["is_complete"] == false && soaked(&report, "verified") > 0, "{report}");
    assert_eq!(bench(&line).status.code(), Some(69), "there was none to begin with");
}

/// A program that is called as ssh is, notes its host, and runs the command here.
fn fake_ssh(folder: &Path) {
    let script = "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\necho \"$1\" >>\"$SSH_LOG\"\n\
                  [ \"$1\" != unreachable ] || exit 255\nshift\nexec sh -c \"$*\"\n";
    let path = folder.join("ssh");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A test against the servers of `hosts`, by the ssh in `folder`.
fn by_ssh(folder: &Path, test: &str, hosts: &Path) -> Output {
    let mut command = program();
    command.args(test.split_whitespace()).arg("--hosts").arg(hosts).env("SSH_LOG", folder.join("log"));
    let search = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.env("PATH", search).output().unwrap()
}

#[test]
fn servers_are_started_by_ssh_and_end_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fake_ssh(folder.path());
    let hosts = path("hosts");
    let server = env!("CARGO_BIN_EXE_gimmal-bench");
    let line = |name: &str, socket: &str| format!("{name} shm://{} {server}\n", path(socket).display());
    fs::write(&hosts, format!("# two\n{}{}", line("node1", "one"), line("node2", "two"))).unwrap();
    let started = Instant::now();
    for test in ["lat -n 2000 --json", "rate -O 4 -n 2000 --layer rpc --json", "soak -D 1s --json"] {
        let output = by_ssh(folder.path(), test, &hosts);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{test}: {}", said(&output));
        assert_eq!(text.lines().filter(|line| line.contains("\"is_complete\":true")).count(), 2, "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(fs::read_to_string(path("log")).unwrap(), "node1\nnode2\n".repeat(3));
    // Nobody is left who serves there.
    let again = bench(&format!("lat -n 10 --address shm://{}", path("one").display()));
    assert_eq!(again.status.code(), Some(69), "{}", said(&again));
}

#[test]
fn hosts_that_cannot_be_reached_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fake_ssh(folder.path());
    let hosts = folder.path().join("hosts");
    for (text, code, words) in [
        ("unreachable rdma://10.0.0.2:0", 69, "the server on unreachable was not started by ssh"),
        ("node rdma://10.0.0.2:0 /no/such/program", 69, "the server on node was not started by ssh"),
        ("node", 2, "hosts:1: HOST ADDRESS [PROGRAM]"),
    ] {
        fs::write(&hosts, text).unwrap();
        let output = by_ssh(folder.path(), "lat -n 10", &hosts);
        assert_eq!(output.status.code(), Some(code), "{text}: {}", said(&output));
        assert!(said(&output).contains(words), "{text}: {}", said(&output));
    }
}
