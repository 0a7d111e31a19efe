//! Checks of programs: a line for each, and their sum.

use std::{
    env, io,
    process::{Command, Stdio},
};

/// What the checks came to.
#[derive(Default, Debug)]
pub struct Checks {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Checks {
    /// Prints how a check ended, and the output that goes with it.
    pub fn add(&mut self, name: &str, outcome: io::Result<String>) {
        let text = match outcome {
            Ok(text) => {
                self.passed += 1;
                println!("ok      {name}");
                text
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED  {name}");
                error.to_string()
            }
        };
        text.lines().for_each(|line| println!("        {line}"));
    }

    /// Whether `program` is installed; the `count` checks that need it are skipped otherwise.
    pub fn has(&mut self, program: &str, count: u32) -> bool {
        let found = is_installed(program);
        if !found {
            self.skipped += count;
            (0..count).for_each(|_| println!("SKIP    {program} is not installed"));
        }
        found
    }

    /// Prints the sum. Whether no check failed.
    #[must_use]
    pub fn sum(&self) -> bool {
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        self.failed == 0
    }
}

/// Whether a folder of `PATH` has `program`.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Runs `words`, a program and its arguments, for at most `seconds`; what it printed.
///
/// # Errors
/// It cannot be started, or fails; with what it printed on standard error.
pub fn run(seconds: u32, words: &[&str], environment: &[(&str, &str)]) -> io::Result<String> {
    let output = bounded(seconds, words, environment).stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(io::Error::other(format!("{}: {}\n{}", words.join(" "), output.status, text(&output.stderr))))
}

/// The command of `words`, which ends after `seconds`.
#[must_use]
pub fn bounded(seconds: u32, words: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", &seconds.to_string()]).args(words).envs(environment.iter().copied());
    command
}
