//! Suites: a file of command lines of this program, each run in a process of its own, and counts of instructions.
//!
//! ```text
//!  suite.toml ── [[run]]s ──► gimmal-bench LINE --json, in rounds ──► records ──► a table, a file, a comparison
//!             └─ [[instructions]] ──► valgrind PROGRAM, few and many rounds: the difference is exact
//! ```
//! A run without a core placement of enough slices is repeated.

use std::{
    fmt,
    io::Write as _,
    path::{Path, PathBuf},
    process,
};

use clap::Parser as _;
use serde::Deserialize;

use crate::{
    against::program::is_installed,
    args::{Cli, Command, Suite},
    environment::Environment,
    error::BenchError,
    html, invocation, out,
    record::time,
    regress,
    report::{self, Report},
    rounds::rounds,
};

/// The ready ones.
const READY: [(&str, &str); 5] = [
    ("quick", include_str!("../suites/quick.toml")),
    ("full", include_str!("../suites/full.toml")),
    ("paper", include_str!("../suites/paper.toml")),
    ("tcp", include_str!("../suites/tcp.toml")),
    ("regress", include_str!("../suites/regress.toml")),
];
/// Repeats of a run without a core placement of enough slices.
const REPEATS: u32 = 2;
/// Rounds of which instructions are counted; the difference leaves out what happens once.
const ROUNDS: [u64; 2] = [1000, 6000];

/// A file of runs.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// What it is for.
    about: String,
    #[serde(default)]
    run: Vec<Line>,
    #[serde(default)]
    instructions: Vec<Counted>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// What follows `gimmal-bench`, as it is typed.
    line: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counted {
    name: String,
    /// A program beside this one and its arguments; the rounds are put behind.
    line: String,
}

/// Reads a suite by its name or from a file; every line is looked at before the first is run.
fn read(name: &str) -> Result<File, BenchError> {
    let text = match READY.iter().find(|(ready, _)| *ready == name) {
        Some((_, text)) => (*text).to_owned(),
        None => std::fs::read_to_string(name).map_err(|error| {
            let names: Vec<&str> = READY.iter().map(|(ready, _)| *ready).collect();
            BenchError::Arguments(format!(
                "{name}: {error}; a suite is one of {}, or a file",
                names.join(", ")
            ))
        })?,
    };
    let file: File =
        toml::from_str(&text).map_err(|error| BenchError::Arguments(format!("{name}: {error}")))?;
    for Line { line } in &file.run {
        let parsed = Cli::try_parse_from(std::iter::once("gimmal-bench").chain(line.split_whitespace()));
        let cli = parsed.map_err(|error| BenchError::Arguments(format!("{name}: {line}: {error}")))?;
        if matches!(
            cli.command,
            Command::Serve(_)
                | Command::Suite(_)
                | Command::Agree { .. }
                | Command::Report { .. }
                | Command::Advise { .. }
                | Command::Results { .. }
                | Command::Pages { .. }
        ) {
            return Err(BenchError::Arguments(format!("{name}: {line}: measures nothing")));
        }
    }
    Ok(file)
}

/// Runs a suite; an error at the end when a run broke off or a baseline was better.
///
/// # Errors
/// See [`BenchError`].
pub(crate) fn run(suite: &Suite) -> Result<(), BenchError> {
    let file = read(&suite.name)?;
    let more: Vec<String> = suite.with.split_whitespace().map(str::to_owned).collect();
    let baseline = suite.baseline.as_deref().map(html::read).transpose()?;
    eprintln!("gimmal-bench: {}: {}", suite.name, file.about);
    let mut save = suite.save.as_deref().map(Saved::create).transpose()?;
    let (mut records, mut broken) = (Vec::new(), Vec::new());
    let mut left: Vec<&str> = file.run.iter().map(|Line { line }| &**line).collect();
    // Standard output has the records alone where a program reads it.
    let say = |text: fmt::Arguments<'_>| {
        if !suite.json {
            return out::line(text);
        }
        eprintln!("gimmal-bench: {text}");
        Ok(())
    };
    for repeat in 0..=REPEATS {
        let mut restless = Vec::new();
        rounds(&left, &more, |line, (made, why)| {
            if made.iter().any(|report| report.warning().is_some()) {
                if why.is_none() && repeat < REPEATS {
                    say(format_args!("  too few comparable samples of \"{line}\": it is run again"))?;
                    restless.push(line);
                    return Ok(());
                }
                say(format_args!("  too few comparable samples of \"{line}\": do not compare it"))?;
            }
            for report in &made {
                if suite.json { out::json(report) } else { out::line(summary(report)) }?;
            }
            broken.extend(why.map(|why| format!("{line}: {why}")));
            save.as_mut().map_or(Ok(()), |save| save.add(&made))?;
            records.extend(made);
            Ok(())
        })?;
        left = restless;
    }
    for counted in &file.instructions {
        match instructions(counted) {
            Ok(report) => {
                say(format_args!("{:<52} {:>9} instructions a round", report.layer, report.count))?;
                if suite.json {
                    out::json(&report)?;
                }
                save.as_mut().map_or(Ok(()), |save| save.add(std::slice::from_ref(&report)))?;
                records.push(report);
            }
            Err(why) => say(format_args!("{:<52} SKIP {why}", counted.name))?,
        }
    }
    for warning in report::warnings(&records) {
        say(format_args!("WARNING {warning}"))?;
    }
    if let Some(page) = &suite.page {
        std::fs::write(page, html::page(&[records.clone()])?)
            .map_err(BenchError::system("writing the page"))?;
    }
    if let Some(baseline) = baseline {
        broken.extend(regress::tell(&baseline, &records, suite.tolerance)?);
    }
    match broken.len() {
        0 => Ok(()),
        number => Err(BenchError::Suite { number, what: broken.join("\n  ") }),
    }
}

/// Records that are written as they come.
struct Saved(std::fs::File);

impl Saved {
    fn create(path: &Path) -> Result<Self, BenchError> {
        std::fs::File::create(path).map(Self).map_err(BenchError::system("creating the file of records"))
    }

    fn add(&mut self, reports: &[Report]) -> Result<(), BenchError> {
        for report in reports {
            let text = serde_json::to_string(report);
            let text = text.map_err(|error| BenchError::system("printing")(error))?;
            writeln!(self.0, "{text}").map_err(BenchError::system("writing records"))?;
        }
        Ok(())
    }
}

/// One line about a record.
fn summary(report: &Report) -> String {
    let mut text =
        format!("{:<52} p50 {:>9}  p99 {:>9}", report.name(), time(report.p50_ns), time(report.p99_ns));
    text += &format!("  {:>10.0} per s", report.calls_per_s);
    if let Some(ratio) = report.ratio_to_frame_floor {
        text += &format!("  {ratio:.2} x frame floor");
        if let Some([low, high]) = report.ratio_to_frame_floor_interval {
            text += &format!(" ({low:.2} to {high:.2})");
        }
    }
    for row in report.rows.iter().filter(|row| row.ratio.is_some()) {
        text += &format!("\n{row}");
    }
    for state in &report.states {
        text += &format!("\n  {state}");
    }
    if report.slices_left_out > 0 {
        text += &format!("\n  {} slices left out", report.slices_left_out);
    }
    text
}

/// Instructions of a round, by valgrind: many rounds less few, divided by their difference.
fn instructions(counted: &Counted) -> Result<Report, String> {
    if !is_installed("valgrind") {
        return Err("valgrind is not installed".to_owned());
    }
    let mut words = counted.line.split_whitespace();
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let name = words.next().unwrap_or_default();
    let program: PathBuf = here.parent().unwrap_or_else(|| Path::new(".")).join(name);
    if !program.is_file() {
        return Err(format!(
            "{} is not built: cargo build --release -p gimmal-bench --examples",
            program.display()
        ));
    }
    let arguments: Vec<&str> = words.collect();
    let [few, many] = ROUNDS;
    let count = |rounds: u64| collected(&program, &arguments, rounds);
    let difference = count(many)?.saturating_sub(count(few)?);
    Ok(Report {
        test: "instructions".to_owned(),
        provider: "shm".to_owned(),
        layer: counted.name.clone(),
        count: difference / (many - few),
        is_complete: true,
        date: invocation::date(),
        command: invocation::command(),
        commit: env!("GIMMAL_COMMIT").to_owned(),
        environment: Environment::read(Path::new("/"), 0),
        ..Report::default()
    })
}

fn collected(program: &Path, arguments: &[&str], rounds: u64) -> Result<u64, String> {
    let output = process::Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .arg(rounds.to_string())
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let number = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    number.ok_or_else(|| format!("valgrind counted nothing: {}", said.lines().last().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_suites_can_be_run() {
        for (name, _) in READY {
            let file = read(name).unwrap();
            assert!(file.run.len() >= 4 && !file.about.is_empty(), "{name}");
            for Line { line } in &file.run {
                assert!(line.contains("--loopback"), "{name}: {line}");
            }
        }
    }

    #[test]
    fn what_is_no_suite_is_named() {
        assert!(read("no-such").unwrap_err().to_string().contains("quick, full, paper, tcp, regress"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("suite.toml");
        for (text, words) in [
            ("about = 1", "about"),
            ("about = 'x'\nruns = []", "unknown field"),
            ("about = 'x'\n[[run]]\nline = 'lat --loopback -s many'", "lat --loopback -s many"),
            ("about = 'x'\n[[run]]\nline = 'suite quick'", "measures nothing"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(path.to_str().unwrap()).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
