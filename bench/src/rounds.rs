//! The lines of a suite in rounds: each has one start of its processes a round.
//!
//! ```text
//!  suite ──► line 1: start 1 · · · · · · · start 2 · · ·       an empty line of the child: it waits for its turn
//!        ──► line 2:   · · · start 1 · · · · · · start 2       an empty line to the child: it has it
//! ```
//! The host drifts over tens of seconds. Starts that follow each other see a short part of that; spread over the
//! whole suite,
//! a line's interval holds what the suite saw. A line without `--starts` is run as a whole in the first round.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{error::BenchError, html, report::Report};

/// What came of a line: its records, and why it broke off.
pub(crate) type Outcome = (Vec<Report>, Option<String>);

/// Runs `lines`, each in a process of its own, since it pins itself; `ended` hears of each when it has ended.
///
/// # Errors
/// When a line cannot be run at all, and what `ended` fails of.
pub(crate) fn rounds<'a>(
    lines: &[&'a str],
    more: &[String],
    mut ended: impl FnMut(&'a str, Outcome) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut queue: VecDeque<(&str, Option<Turns>)> = lines.iter().map(|line| (*line, None)).collect();
    while let Some((line, turns)) = queue.pop_front() {
        let mut turns = turns.map_or_else(|| Turns::begin(line, more), Turns::next)?;
        if turns.is_left()? {
            queue.push_back((line, Some(turns)));
        } else {
            ended(line, turns.end(line)?)?;
        }
    }
    Ok(())
}

/// In the child: waits for the next turn.
///
/// # Errors
/// When there is none, since the suite is gone.
pub(crate) fn wait() -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    writeln!(out).and_then(|()| out.flush()).map_err(BenchError::system("asking for a turn"))?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer).map_err(BenchError::system("waiting for a turn"))?;
    if read == 0 {
        Err(BenchError::Server("the suite that this run belongs to is gone".to_owned()))
    } else {
        Ok(())
    }
}

/// A running line. Dropping it ends its process.
struct Turns {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    records: String,
}

impl Turns {
    /// The first one.
    fn begin(line: &str, more: &[String]) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let mut child = Command::new(program)
            .args(line.split_whitespace())
            .args(more)
            .args(["--json", "--in-turns"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("starting a run"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (asks, answers) = pipes.ok_or_else(|| BenchError::Server("has no pipes".to_owned()))?;
        Ok(Self { child, asks, answers: BufReader::new(answers), records: String::new() })
    }

    fn next(mut self) -> Result<Self, BenchError> {
        self.asks.write_all(b"\n").map_err(BenchError::system("giving a run its turn"))?;
        Ok(self)
    }

    /// Waits until this turn is over: whether there are more.
    fn is_left(&mut self) -> Result<bool, BenchError> {
        loop {
            let before = self.records.len();
            self.answers
                .read_line(&mut self.records)
                .map_err(BenchError::system("reading a run's records"))?;
            match &self.records[before..] {
                "" => return Ok(false),
                "\n" => return Ok(true),
                _ => {}
            }
        }
    }

    fn end(mut self, line: &str) -> Result<Outcome, BenchError> {
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            // What is no text says nothing.
            let _ = errors.read_to_string(&mut said);
        }
        let status = self.child.wait().map_err(BenchError::system("waiting for a run"))?;
        let why = said.lines().next_back().unwrap_or("it said nothing").to_owned();
        Ok((html::records(&self.records, line)?, (!status.success()).then_some(why)))
    }
}
