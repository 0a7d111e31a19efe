//! Every command of `gimmal`: its help, and what it prints for programs.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::{Command, Output, Stdio};

use gimmal::Cx;
use serde_json::Value;

#[gimmal::service]
trait Echo {
    #[idempotent]
    async fn say(&self, cx: &Cx, words: String) -> Result<String, String>;
    async fn count(&self, cx: &Cx, to: u32, down: gimmal::Sink<u32>) -> u32;
}

struct Here;

impl Echo for Here {
    async fn say(&self, _: &Cx, words: String) -> Result<String, String> {
        if words == "nothing" { Err("no words".to_owned()) } else { Ok(words) }
    }

    async fn count(&self, _: &Cx, to: u32, mut down: gimmal::Sink<u32>) -> u32 {
        for number in 0..to {
            down.send(&number).await.unwrap();
        }
        to
    }
}

fn gimmal(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gimmal"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The lines of standard output, each of which must be JSON; or all of it as one value.
fn json(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    if let Ok(value) = serde_json::from_str(text) {
        return vec![value];
    }
    let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"));
    text.lines().map(value).collect()
}

#[test]
fn every_command_has_a_help_that_people_can_read() {
    let commands = gimmal_testkit::help::commands(env!("CARGO_BIN_EXE_gimmal"));
    assert_eq!(commands, ["doctor", "health", "call", "describe", "top", "edge", "tunnel", "devices"]);
}

#[test]
fn json_is_json_and_errors_are_on_standard_error() {
    let url = format!("shm://help-{}", std::process::id());
    let _server = gimmal::serve(&url, serve_echo(Here)).unwrap();
    for (arguments, code, keys) in [
        (&["doctor", &url][..], 0, &["ok", "checks"][..]),
        (&["health", &url], 0, &["health"]),
        (&["call", &url, "Echo.say", "words"], 0, &["answer", "loan", "metadata"]),
        (&["call", &url, "Echo.say", "nothing"], 1, &["error", "metadata"]),
        (&["top", &url, "--count", "1"], 0, &["health", "connections", "counters", "per_second"]),
    ] {
        let output = gimmal(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert_eq!(output.stderr.is_empty(), code == 0, "{arguments:?}: {output:?}");
        let values = json(&output);
        assert_eq!(values.len(), 1, "{arguments:?}: {output:?}");
        for key in keys {
            assert!(values[0].get(key).is_some(), "{arguments:?}: {key}: {output:?}");
        }
    }
    // The listing of methods is that of `describe`.
    let [listed, described] = ["call", "describe"].map(|command| json(&gimmal(&[command, &url, "--json"])));
    assert_eq!(listed, described);
    assert!(listed[0].as_array().unwrap().iter().any(|method| method["name"] == "say"), "{listed:?}");
    let items = json(&gimmal(&["call", &url, "Echo.count", "2", "--json"]));
    let text: Vec<String> = items.iter().map(Value::to_string).collect();
    assert_eq!(text, [r#"{"item":0}"#, r#"{"item":1}"#, r#"{"answer":2}"#]);
    // A machine without RDMA's libraries says so instead.
    let devices = gimmal(&["devices", "--json"]);
    assert!(devices.stdout.is_empty() != json_array(&devices), "{devices:?}");
}

fn json_array(output: &Output) -> bool {
    output.status.success() && json(output)[0].is_array()
}

#[test]
fn a_wrong_command_line_ends_with_2_and_a_failure_with_1() {
    for (arguments, code) in [
        (&["doctor", "--no-such-option"][..], 2),
        (&["no-such-command"], 2),
        (&["top"], 2),
        (&["doctor", "nowhere://x"], 2),
        (&["health", "shm://help-nobody-is-there", "--timeout-ms", "200"], 1),
    ] {
        let output = gimmal(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}
