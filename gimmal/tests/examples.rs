//! Each type and function that a user starts from has an example in its documentation, which runs as a doctest.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

/// What a user starts from: the file, and how its declaration begins.
const STARTING: [(&str, &str); 28] = [
    ("rpc/src/client.rs", "pub struct Client "),
    ("rpc/src/client/builder.rs", "pub struct ClientBuilder "),
    ("rpc/src/server.rs", "pub struct Server "),
    ("rpc/src/server.rs", "pub struct ServerBuilder "),
    ("rpc/src/service.rs", "pub trait Service"),
    ("rpc/src/channel.rs", "pub struct Call<"),
    ("rpc/src/channel.rs", "pub struct CallOptions "),
    ("rpc/src/stream.rs", "pub struct Stream<"),
    ("rpc/src/stream/sink.rs", "pub struct Sink<"),
    ("rpc/src/config.rs", "pub struct Config "),
    ("rpc/src/stats.rs", "pub struct Stats "),
    ("rpc/src/balance.rs", "pub struct Balanced<"),
    ("rpc/src/layer/retry.rs", "pub struct Retry<"),
    ("rpc/src/layer/hedge.rs", "pub struct Hedge<"),
    ("rpc/src/layer/ready_made.rs", "pub struct Metrics "),
    ("rpc/src/local.rs", "pub struct LocalClient "),
    ("rpc/src/pipeline.rs", "pub struct Pipeline "),
    ("rpc/src/memory.rs", "pub struct RemoteMemory "),
    ("rpc/src/response/typed.rs", "pub struct TypedResponse<"),
    ("transport/src/key.rs", "pub struct Key "),
    ("transport/src/tls.rs", "pub struct Tls "),
    ("gimmal/src/tokio/client.rs", "pub struct LocalClient "),
    ("gimmal/src/tokio/runtime.rs", "pub struct Tokio("),
    ("gimmal/src/tokio/server.rs", "pub async fn serve_until("),
    ("plugins/io/src/open.rs", "pub fn open("),
    ("plugins/io/src/incoming.rs", "pub struct Incoming("),
    ("plugins/io/src/send.rs", "pub struct SendStream "),
    ("plugins/io/src/recv.rs", "pub struct RecvStream "),
];

/// The lines of documentation and attributes above the declaration.
fn above(text: &str, declaration: &str) -> Option<Vec<String>> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.starts_with(declaration))?;
    let is_beside = |line: &&&str| line.starts_with("///") || line.starts_with("#[");
    Some(lines[..at].iter().rev().take_while(is_beside).map(|line| (*line).to_owned()).collect())
}

#[test]
fn what_users_start_from_has_an_example_that_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut without = Vec::new();
    for (file, declaration) in STARTING {
        let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let docs = above(&text, declaration).unwrap_or_else(|| panic!("{file} has no `{declaration}`"));
        // A fence without a word is compiled and run.
        if docs.iter().filter(|line| *line == "/// ```").count() < 2 {
            without.push(format!("{file}: {declaration}"));
        }
    }
    assert!(without.is_empty(), "without an example that runs:\n{}", without.join("\n"));
}
