//! `--name value` pairs, for programs too small for more.

use std::{collections::HashMap, str::FromStr};

pub(crate) type Failure = Box<dyn std::error::Error>;

/// What was on the command line.
#[derive(Debug)]
pub(crate) struct Args {
    usage: &'static str,
    values: HashMap<String, String>,
}

impl Args {
    /// Words of `flags` stand alone; every other name has a value.
    pub(crate) fn read(usage: &'static str, flags: &[&str]) -> Result<Self, Failure> {
        let mut values = HashMap::new();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let name = word.trim_start_matches('-').to_owned();
            if !word.starts_with('-') || name.is_empty() {
                return Err(format!("'{word}'?\nusage: {usage}").into());
            }
            let value = if flags.contains(&name.as_str()) {
                String::new()
            } else {
                words.next().ok_or_else(|| format!("{word} needs a value\nusage: {usage}"))?
            };
            values.insert(name, value);
        }
        Ok(Self { usage, values })
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(crate) fn maybe<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        let Some(text) = self.values.get(name) else { return Ok(None) };
        let wrong = || format!("-{name} '{text}' is not right\nusage: {}", self.usage);
        text.parse().map(Some).map_err(|_| wrong().into())
    }

    pub(crate) fn get<T: FromStr>(&self, name: &str, otherwise: T) -> Result<T, Failure> {
        Ok(self.maybe(name)?.unwrap_or(otherwise))
    }

    pub(crate) fn need<T: FromStr>(&self, name: &str) -> Result<T, Failure> {
        self.maybe(name)?.ok_or_else(|| format!("-{name} is missing\nusage: {}", self.usage).into())
    }
}

/// Ends the program: the error on stderr and 1, or 0.
pub(crate) fn finish(result: Result<(), Failure>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
