//! Runs one host program to its end, within a time limit, and says what it printed when it fails.

use std::{
    fs::File,
    io::Write,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use gimmal_transport::Instant;

use crate::{packages, signals};

const POLL: Duration = Duration::from_millis(20);
const ERROR_LINES_MAX: usize = 15;

/// A program that is looked up like [`packages::find`] does.
pub(crate) fn tool(name: &str) -> Command {
    let mut command = packages::find(name).map_or_else(|| Command::new(name), Command::new);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Runs `command` with stdout going to `stdout`.
pub(crate) fn run_into(mut command: Command, limit: Duration, stdout: Stdio) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut errors = tempfile::tempfile()?;
    let mut child = command
        .stdout(stdout)
        .stderr(errors.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let signal = signals::seen();
        if signal.is_some() || Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            match signal {
                Some(signal) => return Err(signal.into()),
                None => bail!("{name} took longer than {} s", limit.as_secs()),
            }
        }
        thread::sleep(POLL);
    };
    if status.success() { Ok(()) } else { Err(failure(&name, status, &mut errors)) }
}

/// Runs `command` and forgets what it prints, unless it fails.
pub(crate) fn run(command: Command, limit: Duration) -> Result<()> {
    run_into(command, limit, Stdio::null())
}

/// Runs `command` and returns what it prints.
pub(crate) fn read(command: Command, limit: Duration) -> Result<String> {
    use std::io::{Read, Seek};
    let mut output = tempfile::tempfile()?;
    run_into(command, limit, output.try_clone()?.into())?;
    let mut text = String::new();
    output.rewind()?;
    output.read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    File::create(path)
        .and_then(|mut file| file.write_all(content))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The last lines of a log, for an error message.
pub(crate) fn tail(text: &str, lines_max: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

fn failure(name: &str, status: ExitStatus, errors: &mut File) -> anyhow::Error {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    let _ = errors.rewind().and_then(|()| errors.read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    anyhow::anyhow!("{name}: {status}\n{}", tail(&text, ERROR_LINES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = tool("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(read(sh("echo yes"), Duration::from_secs(10)).unwrap(), "yes\n");
    }

    #[test]
    fn a_failure_quotes_stderr() {
        let error = run(sh("echo why >&2; exit 3"), Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("why"), "{error}");
    }

    #[test]
    fn a_limit_holds() {
        let started = Instant::now();
        assert!(run(sh("exec sleep 20"), Duration::from_millis(100)).is_err());
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
    }
}
