//! What became of numbered calls, and whether the server's book agrees.

use std::{collections::BTreeSet, fmt, ops::Range};

use anyhow::ensure;
use gimmal::{CallError, Client, Fate};

use crate::{patience::ask, tally::TallyClient};

/// Numbers of one question to the book.
const PIECE: u64 = 10_000;

/// What became of numbered calls.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    pub(crate) answered: BTreeSet<u64>,
    pub(crate) not_run: BTreeSet<u64>,
    pub(crate) maybe_ran: BTreeSet<u64>,
}

impl fmt::Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [answered, not_run, maybe_ran] =
            [&self.answered, &self.not_run, &self.maybe_ran].map(BTreeSet::len);
        write!(f, "{answered} answered, {not_run} not run, {maybe_ran} may have run")
    }
}

impl Fates {
    /// Notes that a call failed.
    pub(crate) fn failed(&mut self, number: u64, error: &CallError) {
        match error.fate() {
            Fate::NotRun => self.not_run.insert(number),
            Fate::MaybeRan | Fate::Ran => self.maybe_ran.insert(number),
        };
    }

    /// Compares them with the book of the server that has been there all the time.
    pub(crate) fn agree(&self, tally: &TallyClient<Client>, numbers: Range<u64>) -> anyhow::Result<()> {
        let mut seen = BTreeSet::new();
        let mut from = numbers.start;
        while from < numbers.end {
            let to = numbers.end.min(from + PIECE);
            seen.extend(ask(|| tally.seen(from, to).wait())?);
            from = to;
        }
        let lied: Vec<_> = self.not_run.intersection(&seen).collect();
        ensure!(lied.is_empty(), "told NotRun, but they ran: {lied:?}");
        ensure!(self.answered.is_subset(&seen), "answered, but they never ran");
        let twice = ask(|| tally.twice(numbers.start, numbers.end).wait())?;
        ensure!(twice.is_empty(), "ran twice: {twice:?}");
        println!("the book agrees");
        Ok(())
    }
}
