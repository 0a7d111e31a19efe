//! Planted bugs: the simulation must find every one, and nothing where none is planted.
//!
//! A bug is a patch, `engine/mutants/NAME.patch`, that is applied to a copy of the sources. A patch that no longer applies is a
//! failure.

use std::{io, process::Command};

use crate::{
    patched::{self, Copy},
    tree,
};

const PROGRAMS: [&str; 4] = ["sim", "proto_credit", "heart", "faults"];

/// Seeds of each run. A few find most bugs, and a run that never ends takes all of its time with each seed.
const SEEDS: [&str; 2] = ["3", "20"];

/// How long a program may take, seconds: long, since it may get only what others leave of the processors.
const LIMIT_S: u32 = 1200;

/// Tries the bugs of `names`; without names all bugs, and whether nothing is found without them.
///
/// # Errors
/// The sources cannot be copied.
pub fn run(names: &[&str]) -> io::Result<bool> {
    let copy = Copy::make("target/planted/source")?;
    let bugs = patched::patches("engine/mutants", names)?;
    let (mut passed, mut failed) = (0, 0);
    let mut told = |what: &str, outcome: io::Result<String>| {
        let (count, word, words) = match outcome {
            Ok(words) => (&mut passed, "ok", words),
            Err(error) => (&mut failed, "FAILED", error.to_string()),
        };
        *count += 1;
        println!("{word:<7} {what}\n        {}", words.replace('\n', "\n        "));
    };
    if names.is_empty() {
        let outcome = fails(&copy).and_then(|by| match by {
            None => Ok(format!("by {}", PROGRAMS.join(", "))),
            Some(by) => Err(io::Error::other(by)),
        });
        told("nothing is found where no bug is planted", outcome);
    }
    for (name, patch) in &bugs {
        let outcome = copy.with(patch, || fails(&copy)).and_then(|by| match by {
            Some(by) => Ok(format!("{}\n{by}", patched::title(patch)?)),
            None => Err(io::Error::other("nobody noticed")),
        });
        told(&format!("found: {name}"), outcome);
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// Which test fails first, if any does.
fn fails(copy: &Copy) -> io::Result<Option<String>> {
    for seeds in SEEDS {
        for program in PROGRAMS {
            let mut command = Command::new("timeout");
            command
                .arg(LIMIT_S.to_string())
                .arg(build(copy, program)?)
                .current_dir(copy.path().join("engine"));
            command
                .env("GIMMAL_SEEDS", seeds)
                .env("PROPTEST_MAX_SHRINK_ITERS", "0")
                .env("RUST_BACKTRACE", "0");
            let output = command.output()?;
            if !output.status.success() {
                let text =
                    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                return Ok(Some(first_panic(&text.concat())));
            }
        }
    }
    Ok(None)
}

/// Builds one of the engine's test programs from the copy. Little optimisation takes the least time for building and running together.
fn build(copy: &Copy, program: &str) -> io::Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "-q", "-p", "gimmal-engine", "--no-run", "--message-format=json", "--test", program]);
    cargo.current_dir(copy.path()).env("CARGO_TARGET_DIR", tree::root().join("target/planted/build"));
    cargo
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    let text = patched::output(&mut cargo)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let built = messages.filter(|message| message["target"]["kind"][0] == "test");
    let path = built.filter_map(|message| message["executable"].as_str().map(str::to_owned)).next_back();
    path.ok_or_else(|| io::Error::other(format!("{program} was not built")))
}

/// Names the test that panicked first and its place, in words that are not counted as a failure of this tier.
fn first_panic(text: &str) -> String {
    let found = text.lines().find_map(|line| {
        let (thread, place) = line.strip_prefix("thread '")?.split_once(" panicked at ")?;
        Some(format!("by {}, {}", thread.split('\'').next()?, place.trim_end_matches(':')))
    });
    found.unwrap_or_else(|| "by a program that did not end in time".to_owned())
}
