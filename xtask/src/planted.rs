//! Planted bugs: the simulation must find every one, and nothing where none is planted.
//!
//! A bug is a patch, `engine/mutants/NAME.patch`, that is applied to a copy of the sources. A patch that no longer applies is a
//! failure.

use std::{
    io,
    process::{Command, ExitStatus},
};

use crate::{
    patched::{self, Copy},
    tree,
};

const PROGRAMS: [&str; 4] = ["sim", "proto_credit", "heart", "faults"];

/// Seeds of each run. A few find most bugs, and a run that never ends takes all of its time with each seed.
const SEEDS: [&str; 2] = ["3", "20"];

/// How long a program may take, seconds: long, since it may get only what others leave of the processors.
const LIMIT_S: u32 = 1200;

/// How timeout(1) ends when the time is over.
const TIMED_OUT: i32 = 124;

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
                return found(program, output.status, &text.concat()).map(Some);
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

/// What a failed program found: the test that panicked first, or that it did not end. A program that ends otherwise found nothing:
/// it was killed, or could not start.
fn found(program: &str, status: ExitStatus, text: &str) -> io::Result<String> {
    let panic = text.lines().find_map(|line| {
        let (thread, place) = line.strip_prefix("thread '")?.split_once(" panicked at ")?;
        // In words that are not counted as a failure of this tier.
        Some(format!("by {}, {}", thread.split('\'').next()?, place.trim_end_matches(':')))
    });
    match (panic, status.code()) {
        (Some(by), _) => Ok(by),
        (None, Some(TIMED_OUT)) => Ok(format!("by {program}, which did not end within {LIMIT_S} s")),
        (None, _) => {
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            Err(io::Error::other(format!("{program} named no test: {status}; its last lines: {last:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn only_a_test_or_a_time_out_finds_a_bug() {
        let panicked = "thread 'r47' (7) panicked at src/sim.rs:3:5:\nno";
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(found("sim", exit(101), panicked).unwrap(), "by r47, src/sim.rs:3:5");
        assert!(found("sim", exit(TIMED_OUT), "").unwrap().contains("sim, which did not end"));
        for status in [ExitStatus::from_raw(9), exit(127), exit(101)] {
            assert!(found("sim", status, "error: no such thing").is_err(), "{status}");
        }
    }
}
