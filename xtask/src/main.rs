//! `cargo xtask COMMAND`.

#![forbid(unsafe_code)]

use std::{io, process::ExitCode};

const USAGE: &str = "\
cargo xtask test [TIER...|quick]        the test tiers; ./x test installs what they need first
cargo xtask ci [JOB...]                 the steps of .github/workflows/ci.yml, on this machine
cargo xtask tidy [--all] [PATTERN...]   the rules of the house; --all: with what is not met yet; PATTERN: those rules
cargo xtask tidy --lower                lowers the ceilings of tests/tidy.toml to what the tree has come to
cargo xtask lines [--at REVISION]       lines of code of each crate, without tests, comments and blank lines
cargo xtask planted [NAME...]           the simulation finds every planted bug of engine/mutants
cargo xtask bench ledger [NAME...]      what each entry of bench/ledger.toml is worth on this machine
cargo xtask bench agree [PAIRS [PATTERN]]  what the bench prints of other programs, beside what they print themselves
cargo xtask bench page [FOLDER]         the bench's page in a browser, without errors; FOLDER: pictures of it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> io::Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", ..] => xtask::tiers::run(&arguments[1..]),
        ["ci", jobs @ ..] => xtask::ci::run(jobs),
        ["tidy", "--lower"] => xtask::tidy::lower().map(|()| true),
        ["tidy", "--all", ..] => xtask::tidy::run(&arguments[2..], true),
        ["tidy", ..] => xtask::tidy::run(&arguments[1..], false),
        ["planted", names @ ..] => xtask::planted::run(names),
        ["bench", "ledger", names @ ..] => xtask::ledger::run(names),
        ["bench", "agree"] => xtask::agree::run(7, ""),
        ["bench", "agree", pairs, pattern @ ..] => {
            let pairs = pairs.parse().map_err(io::Error::other)?;
            xtask::agree::run(pairs, pattern.first().unwrap_or(&""))
        }
        ["bench", "page"] => xtask::page::run(None),
        ["bench", "page", folder] => xtask::page::run(Some(folder)),
        ["lines"] => xtask::lines::table(None).map(|table| print!("{table}")).map(|()| true),
        ["lines", "--at", revision] => {
            xtask::lines::table(Some(revision)).map(|table| print!("{table}")).map(|()| true)
        }
        _ => {
            eprintln!("{USAGE}");
            Ok(false)
        }
    }
}
