//! The steps of `.github/workflows/ci.yml`, on this machine.

#![expect(
    clippy::disallowed_types,
    reason = "an instant is asked how long ago it was, and nothing is added to it"
)]

use std::{fs, io, process::Command, time::Instant};

use crate::tree;

const FILE: &str = ".github/workflows/ci.yml";

/// A step that runs a line of bash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The job that it is of.
    pub job: String,
    /// The line.
    pub line: String,
}

/// Runs the steps of the jobs with these names, of all jobs where there are none. A repeated line runs once. `true` when
/// each of them succeeded.
///
/// # Errors
/// The workflow cannot be read, has no job of a name, or a step cannot be started.
pub fn run(jobs: &[&str]) -> io::Result<bool> {
    let steps = steps(&fs::read_to_string(tree::root().join(FILE))?).map_err(io::Error::other)?;
    if let Some(unknown) = jobs.iter().find(|job| steps.iter().all(|step| step.job != **job)) {
        return Err(io::Error::other(format!("{FILE} has no job {unknown}")));
    }
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for Step { job, line } in steps {
        if (!jobs.is_empty() && !jobs.contains(&job.as_str())) || done.contains(&line) {
            continue;
        }
        println!("== {job}: {line}");
        let started = Instant::now();
        let is_ok = bash(&line).status()?.success();
        println!("{} {line} ({} s)", if is_ok { "ok     " } else { "FAILED " }, started.elapsed().as_secs());
        if !is_ok {
            failed.push(line.clone());
        }
        done.push(line);
    }
    failed.iter().for_each(|line| println!("FAILED  {line}"));
    println!("{} steps passed, {} failed", done.len().saturating_sub(failed.len()), failed.len());
    Ok(failed.is_empty())
}

/// A shell as the workflow has it: without the variables by which cargo names the crate that it runs, which the builds of a step would see.
fn bash(line: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-e", "-c", line]).current_dir(tree::root()).env("CARGO_INCREMENTAL", "0");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text == "CARGO" || text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The steps of a workflow, in its order.
///
/// # Errors
/// A line that does not run here: one of several lines, or one with an expression.
pub fn steps(workflow: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut job = None;
    for line in workflow.lines().skip_while(|line| *line != "jobs:").skip(1) {
        let words = line.trim_start();
        if line.strip_prefix("  ").is_some_and(|rest| rest == words) && !words.starts_with('#') {
            job = words.strip_suffix(':').map(str::to_owned);
        }
        let Some(line) = words.trim_start_matches("- ").strip_prefix("run:") else { continue };
        let line = line.trim().to_owned();
        if line.is_empty() || line.starts_with(['|', '>', '"', '\'']) || line.contains("${{") {
            return Err(format!("{FILE}: a step is one plain line of bash, not {line:?}"));
        }
        let job = job.clone().ok_or_else(|| format!("{FILE}: {line} is of no job"))?;
        steps.push(Step { job, line });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers;

    #[test]
    fn each_step_is_one_line_that_runs_here() {
        let text = fs::read_to_string(tree::root().join(FILE)).unwrap();
        assert!(!text.contains("secrets"), "a fork has none");
        let steps = steps(&text).unwrap();
        for Step { line, .. } in &steps {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["./x", "test", names @ ..] => {
                    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
                    assert_eq!(tiers::check(&names), Ok(()), "{line}");
                }
                ["bash", script, ..] => assert!(tree::root().join(script).is_file(), "{line}"),
                ["./x", "deb"] | ["cargo" | "rustup", ..] => {}
                _ => panic!("{line}: a tier, a script of the project, cargo or rustup"),
            }
        }
        let all: String = steps.iter().map(|step| format!("{}\n", step.line)).collect();
        for wanted in [
            "fmt", "lint", "unit", "seeds", "_shm", "_tcp", "msrv", "doc", "aarch64", "packages", "deb",
            "lab",
        ] {
            assert!(all.contains(wanted), "no step is about {wanted}");
        }
    }

    #[test]
    fn steps_have_their_job_and_no_second_line() {
        let workflow = "env:\n  run: no\njobs:\n  # All.\n  one:\n    steps:\n      - uses: x\n      - run: a b\n  two:\n    steps:\n      - name: n\n        run: c\n";
        let step = |job: &str, line: &str| Step { job: job.to_owned(), line: line.to_owned() };
        assert_eq!(steps(workflow).unwrap(), [step("one", "a b"), step("two", "c")]);
        for wrong in ["|", "echo ${{ github.sha }}", ""] {
            assert!(steps(&format!("jobs:\n  one:\n    steps:\n      - run: {wrong}\n")).is_err(), "{wrong}");
        }
    }
}
