//! The command line, and what each command does with it.

use std::{
    env,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::{
    cache,
    fabric::{Fabrics, Role},
    packages,
    pair::pair,
    run::{self, Limits},
    selftest,
    spec::{Memlock, Spec, Variable},
    verdict::Verdict,
};

/// Runs commands in guests that have real kernel RDMA (SoftRoCE, Soft-iWARP), without RDMA hardware.
#[derive(Debug, Parser)]
#[command(name = "gimmal-lab", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes what guests boot from, once, in the user's cache folder.
    Prepare,
    /// Boots one guest, runs a command in it, and returns its exit code.
    Run(Run),
    /// Boots two guests on one wire and runs a shell command in each.
    Pair(Pair),
    /// Checks the lab itself.
    Selftest,
    /// Prints the Debian packages that the lab needs, on one line.
    Packages,
}

#[derive(Debug, Args)]
struct Run {
    /// The RDMA devices of the guest.
    #[arg(long, value_enum, default_value = "both")]
    fabric: Fabrics,
    #[command(flatten)]
    guest: Guest,
    /// The program, and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct Pair {
    /// rxe, or none.
    #[arg(long, value_enum, default_value = "rxe", value_parser = ["rxe", "none"])]
    fabric: String,
    #[command(flatten)]
    guest: Guest,
    /// The shell command of the first guest.
    #[arg(long)]
    a: String,
    /// The shell command of the second guest.
    #[arg(long)]
    b: String,
}

#[derive(Debug, Args)]
struct Guest {
    /// From the start of the guest to its end; then it is killed, and the exit code is 124.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout_s: u64,
    /// Memory of a guest.
    #[arg(long, default_value_t = 4096, value_name = "MIB")]
    mem_mb: u32,
    /// Processors of a guest.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory nodes of a guest, each with as much of the memory and as many of the processors.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    nodes: u32,
    /// `ulimit -l` of the command: unlimited, or bytes.
    #[arg(long, default_value = "unlimited")]
    memlock: Memlock,
    /// Sets a variable for the command; without a value it is taken from here. Only HOME, PATH, USER, LANG and TERM
    /// come along by themselves.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,
    /// A folder on another file system than `/`, to be found at the same path; what is written there stays in the
    /// guest. The current folder is found by itself.
    #[arg(long, value_name = "FOLDER")]
    share: Vec<PathBuf>,
    /// Where files go that the command writes to $GIMMAL_LAB_OUT (in a pair: to a/ and b/ in it).
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Do not fail when the guest's kernel printed a warning.
    #[arg(long)]
    allow_kernel_warnings: bool,
}

impl Cli {
    pub(crate) fn run(self) -> Result<u8> {
        match self.command {
            Action::Prepare => {
                cache::prepare()?;
                Ok(0)
            }
            Action::Run(args) => args.run(),
            Action::Pair(args) => args.run(),
            Action::Selftest => selftest::run(),
            Action::Packages => {
                println!("{}", packages::all().join(" "));
                Ok(0)
            }
        }
    }
}

impl Run {
    fn run(self) -> Result<u8> {
        let spec = self.guest.spec(None, self.fabric, self.command)?;
        let verdict = run::run(&spec, self.guest.out.as_deref(), &self.guest.limits(), false)?;
        tell("gimmal-lab", &verdict);
        Ok(verdict.code)
    }
}

impl Pair {
    fn run(self) -> Result<u8> {
        let fabric = if self.fabric == "rxe" { Fabrics::Rxe } else { Fabrics::None };
        let shell = |script: &String| vec!["/bin/sh".to_owned(), "-c".to_owned(), script.clone()];
        let a = self.guest.spec(Some(Role::A), fabric, shell(&self.a))?;
        let b = self.guest.spec(Some(Role::B), fabric, shell(&self.b))?;
        let [a, b] = pair([&a, &b], self.guest.out.as_deref(), &self.guest.limits(), false)?;
        tell("gimmal-lab: a", &a);
        tell("gimmal-lab: b", &b);
        Ok(if a.code == 0 { b.code } else { a.code })
    }
}

impl Guest {
    fn spec(&self, role: Option<Role>, fabrics: Fabrics, command: Vec<String>) -> Result<Spec> {
        let cwd = env::current_dir()?;
        Ok(Spec {
            role,
            fabrics,
            command,
            shares: shares(&self.share, &cwd)?,
            cwd,
            env: Variable::inherited().into_iter().chain(self.env.iter().cloned()).collect(),
            memlock: self.memlock,
            mem_mb: self.mem_mb,
            cpus: self.cpus,
            nodes: self.nodes,
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            timeout: Duration::from_secs(self.timeout_s),
            allow_kernel_warnings: self.allow_kernel_warnings,
        }
    }
}

/// The wanted shares, and the current folder when it is not on the root file system.
fn shares(wanted: &[PathBuf], cwd: &Path) -> Result<Vec<PathBuf>> {
    let mut list = Vec::new();
    for folder in wanted {
        let folder = folder.canonicalize().with_context(|| format!("cannot share {}", folder.display()))?;
        list.push(folder);
    }
    let elsewhere = cwd.metadata()?.dev() != Path::new("/").metadata()?.dev();
    if elsewhere && !of_the_guest(cwd) && !list.iter().any(|folder| cwd.starts_with(folder)) {
        list.push(cwd.to_owned());
    }
    Ok(list)
}

/// These the guest has of its own; the host's would only be in the way.
fn of_the_guest(folder: &Path) -> bool {
    ["/proc", "/sys"].iter().any(|own| folder.starts_with(own))
        || ["/dev", "/dev/shm", "/dev/pts", "/run"].iter().any(|own| folder == Path::new(own))
}

fn tell(who: &str, verdict: &Verdict) {
    for line in &verdict.lines {
        eprintln!("{who}: {line}");
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_end_before_the_command() {
        let cli = Cli::parse_from(["gimmal-lab", "run", "--fabric", "siw", "--env", "A=1", "--", "ls", "-l"]);
        let Action::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!((run.fabric, run.command), (Fabrics::Siw, vec!["ls".to_owned(), "-l".to_owned()]));
        assert_eq!(run.guest.env, [Variable::new("A", "1")]);
    }

    #[test]
    fn a_pair_knows_no_siw() {
        let parse = |fabric| {
            Cli::try_parse_from(["gimmal-lab", "pair", "--fabric", fabric, "--a", "true", "--b", "true"])
        };
        assert!(parse("rxe").is_ok());
        assert!(parse("none").is_ok());
        assert!(parse("siw").is_err());
    }

    #[test]
    fn shares_on_the_root_file_system_are_not_needed() {
        assert!(shares(&[], Path::new("/")).unwrap().is_empty());
        assert!(shares(&[], Path::new("/proc")).unwrap().is_empty());
        assert!(shares(&[], Path::new("/dev/shm")).unwrap().is_empty());
        assert!(shares(&["/no/such/folder".into()], Path::new("/")).is_err());
    }
}
