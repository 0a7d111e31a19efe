//! The way of a typed call out of the program: which functions stand between the caller and the bytes of the frame.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{backtrace::Backtrace, cell::RefCell};

use gimmal_rpc::{Cx, LocalClient, Server};
use serde::{Deserialize, Serialize, Serializer};

/// Functions from the generated client to the encoder, at most.
const FUNCTIONS: usize = 20;
/// Changes of the crate on that way, at most: down to the ring, and up to the encoder that writes into it.
const CROSSINGS: usize = 7;

thread_local! {
    /// The stack of the thread that encoded a [`Probe`] last.
    static ENCODED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// 64 bytes that remember where they were encoded.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Probe([u64; 8]);

impl Serialize for Probe {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ENCODED.set(Backtrace::force_capture().to_string());
        self.0.serialize(serializer)
    }
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Mirror {
    async fn echo(&self, cx: &Cx, probe: Probe) -> Probe;
}

struct Plain;

impl Mirror for Plain {
    async fn echo(&self, _: &Cx, probe: Probe) -> Probe {
        probe
    }
}

/// A function of this project on the stack: its name without types, and its crate.
#[derive(PartialEq, Debug)]
struct Step {
    function: String,
    krate: &'static str,
}

/// The steps of a stack as std prints it, the caller first: two lines a frame, ` N: NAME` and `at FILE:LINE:COLUMN`.
/// The generated client is the first; a closure counts as a function of its own. Steps of other crates are left out.
fn steps(trace: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut name = "";
    for line in trace.lines().map(str::trim) {
        if let Some(file) = line.strip_prefix("at ") {
            let file = file
                .strip_prefix("./src/")
                .map_or_else(|| file.to_owned(), |file| format!("/rpc/src/{file}"));
            let krate = ["rpc", "engine", "transport"]
                .into_iter()
                .find(|krate| file.contains(&format!("/{krate}/src/")) && !file.contains(".cargo"));
            let krate = krate.or_else(|| name.contains("MirrorClient").then_some("stub"));
            if let Some(krate) = krate {
                steps.push(Step { function: plain(name), krate });
            }
        } else if let Some((_, after)) = line.split_once(": ") {
            name = after;
        }
    }
    steps.reverse();
    steps
}

/// The name without the types in angle brackets, from the last two parts of its path.
fn plain(name: &str) -> String {
    let mut depth = 0_u32;
    let mut kept = String::new();
    for c in name.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    let parts: Vec<&str> = kept.split("::").filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

/// The stack at the moment when the argument is encoded into the ring is the way out: what is above publishes the frame.
#[test]
fn a_typed_call_takes_few_functions_and_crossings_on_its_way_out() {
    if !cfg!(debug_assertions) {
        return gimmal_testkit::skip("an optimised build has joined the functions");
    }
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}", folder.path().join("way-out").display());
    let _server = Server::builder().service(serve_mirror(Plain)).listen(&url).unwrap();
    let client = MirrorClient::new(LocalClient::connect(&url).unwrap());
    let probe = Probe([7; 8]);
    // The first call announces more than the later ones.
    for _ in 0..2 {
        assert_eq!(client.echo(probe).wait().unwrap(), probe);
    }
    // The answer is encoded by the server's thread.
    let trace = ENCODED.take();
    let steps = steps(&trace);
    let crossings = steps.windows(2).filter(|pair| pair[0].krate != pair[1].krate).count();
    for Step { function, krate } in &steps {
        println!("{krate:>9}  {function}");
    }
    println!("{} functions, {crossings} crossings between crates", steps.len());
    assert!(steps.first().is_some_and(|step| step.krate == "stub"), "{trace}");
    assert!(steps.iter().any(|step| step.krate == "transport"), "{trace}");
    assert!(steps.len() <= FUNCTIONS, "{} functions:\n{trace}", steps.len());
    assert!(crossings <= CROSSINGS, "{crossings} crossings:\n{trace}");
}
