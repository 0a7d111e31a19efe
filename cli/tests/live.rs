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
    assert!(top.contains("health Serving, 1 connections") && top.contains("requests"), "{top}");
    server.set_health("", false);
    let output = gimmal(&["top", url, "--count", "1"]);
    assert_eq!(output.status.code(), Some(1), "a server that is unwell is a failure");
    drop(server);
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
