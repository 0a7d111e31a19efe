//! `gimmal call` and `gimmal top` against a live server.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{Command, Output};

use gimmal_rpc::{Cx, Key, ResponseWriter, Server};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Desk {
    /// Greets.
    #[idempotent]
    async fn greet(&self, cx: &Cx, name: String, times: u32) -> Vec<String>;
    /// Divides.
    async fn divide(&self, cx: &Cx, dividend: i32, divisor: i32) -> Result<i32, String>;
    /// Backwards.
    #[raw]
    fn reverse(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
}

struct Clerk;

impl Desk for Clerk {
    async fn greet(&self, _: &Cx, name: String, times: u32) -> Vec<String> {
        (0..times).map(|_| format!("hello, {name}")).collect()
    }

    async fn divide(&self, _: &Cx, dividend: i32, divisor: i32) -> Result<i32, String> {
        dividend.checked_div(divisor).ok_or_else(|| "by zero".to_owned())
    }

    fn reverse(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        let backwards: Vec<u8> = request.iter().rev().copied().collect();
        answer.write(&backwards);
    }
}

fn gimmal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gimmal")).args(arguments).output().unwrap()
}

fn said(arguments: &[&str]) -> String {
    let output = gimmal(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn complaint(arguments: &[&str]) -> String {
    let output = gimmal(arguments);
    assert!(!output.status.success(), "{arguments:?} should fail");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_live_server_is_listed_called_and_watched() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/desk", folder.path().display());
    let url = url.as_str();
    let server = Server::builder().service(serve_desk(Clerk)).listen(url).unwrap();
    let listed = said(&["call", url]);
    assert!(
        listed.contains("Desk.greet(String, u32) -> Vec<String> [async, postcard, idempotent]"),
        "{listed}"
    );
    assert_eq!(said(&["call", url, "Desk.greet", "Ada", "2"]), "[\"hello, Ada\",\"hello, Ada\"]\n");
    assert_eq!(said(&["call", url, "Desk.divide", "--", "-6", "3"]), "-2\n");
    assert_eq!(said(&["call", url, "Desk.reverse", "abc"]), "cba\n");
    assert!(complaint(&["call", url, "Desk.divide", "6", "0"]).contains("by zero"));
    assert!(complaint(&["call", url, "Desk.greet", "Ada"]).contains("takes 2 arguments, 1 were given"));
    assert!(complaint(&["call", url, "Desk.nothing"]).contains("is not served; there are"));
    let top = said(&["top", url, "--count", "5", "--interval-ms", "50"]);
    assert!(top.contains("health: serving, 1 connection\n") && top.contains("requests"), "{top}");
    let lines = said(&["top", url, "--json", "--count", "2", "--interval-ms", "50"]);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["health"]), (2, &"serving".into()));
    assert!(lines[1]["counters"]["requests"].as_u64() > lines[0]["counters"]["requests"].as_u64());
    assert!(
        lines[1]["per_second"]["requests"].as_u64() > Some(0)
            && lines[1]["connections"][0]["age_ms"].is_u64()
    );
    assert_eq!(said(&["health", url]), "serving\n");
    assert_eq!(said(&["health", url, "--service", "Desk", "--json"]), "{\"health\":\"serving\"}\n");
    let output = gimmal(&["health", url, "--service", "Nothing"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"unknown\n"[..]));
    server.set_health("", false);
    for command in ["top", "health"] {
        let more: &[&str] = if command == "top" { &["--count", "1"] } else { &[] };
        let output = gimmal(&[&[command, url], more].concat());
        assert_eq!(output.status.code(), Some(1), "a server that is unwell is a failure");
    }
    drop(server);
    assert!(complaint(&["health", url]).contains("no server is listening"));
    assert!(complaint(&["call", url]).contains("no server is listening"));
}

#[test]
fn a_key_is_read_from_its_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/keyed", folder.path().display());
    let path = folder.path().join("key");
    std::fs::write(&path, [7; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = Key::from_file(&path).unwrap();
    let _server = Server::builder().service(serve_desk(Clerk)).key(key).listen(&url).unwrap();
    let shown = path.display().to_string();
    assert_eq!(said(&["call", &url, "--key", &shown, "Desk.reverse", "abc"]), "cba\n");
    assert!(complaint(&["call", &url]).contains("the server requires a shared key"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(complaint(&["call", &url, "--key", &shown]).contains("has mode 0644"));
}

/// A server that restarts is shown before, while it is away, and after.
#[test]
fn top_survives_a_restart() {
    use std::{
        io::{BufRead as _, BufReader},
        process::Stdio,
    };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/again", folder.path().display());
    let serve = || Server::builder().service(serve_desk(Clerk)).listen(&url).unwrap();
    let mut server = Some(serve());
    let mut top = Command::new(env!("CARGO_BIN_EXE_gimmal"))
        .args(["top", &url, "--json", "--interval-ms", "20", "--count", "1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |words: &str| assert!(lines.any(|line| line.contains(words)), "it ended without {words}");
    until("serving");
    drop(server.take());
    until("error");
    server = Some(serve());
    until("serving");
    top.kill().unwrap();
    top.wait().unwrap();
    drop(server);
}

#[test]
fn the_doctor_proves_a_key() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/proved", folder.path().display());
    let path = folder.path().join("key");
    std::fs::write(&path, [7; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = Key::from_file(&path).unwrap();
    let _server = Server::builder().service(serve_desk(Clerk)).key(key).listen(&url).unwrap();
    let with = gimmal(&["doctor", &url, "--json", "--key", &path.display().to_string()]);
    assert!(with.status.success(), "{}", String::from_utf8_lossy(&with.stdout));
    let without = gimmal(&["doctor", &url]);
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stdout).contains("requires a shared key"));
    // The others take it, too.
    let shown = path.display().to_string();
    assert_eq!(said(&["health", &url, "--key", &shown]), "serving\n");
    assert!(said(&["top", &url, "--count", "1", "--key", &shown]).contains("key proved"));
}
