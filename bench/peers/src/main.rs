//! Echoes of tarpc and tonic over sockets, of iceoryx2's request-response and of UCX, beside gimmal's typed calls, tonic's stubs over
//! gimmal and the echo of its engine, one at a time and 32 at once.
//!
//! ```text
//!  round 1: engine, inline, driven, handed off, tarpc, tonic, iceoryx2     round 2: the same …
//!  each: server started on its core, client on the other, warmed up, measured, ended
//! ```
//! `cargo run --release` prints tables, and whether the targets are met; `--over tcp` those of TCP; `--json` one object; `--record`
//! keeps the tables.

#![forbid(unsafe_code)]

mod case;
mod compare;
mod copies;
mod exchange;
mod grpc;
mod iox;
mod link;
mod list;
mod measure;
mod ours;
mod place;
mod post;
mod rpc;
mod streams;
mod tables;
mod way;

use std::{os::unix::process::CommandExt as _, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use case::Way;
use clap::{Parser, Subcommand};
use gimmal_bench::args::Cores;
use measure::Pins;
use place::Over;
use way::Serve;

/// Echoes between two processes: gimmal's, its peers beside it.
#[derive(Parser, Debug)]
#[command(version)]
pub(crate) struct Cli {
    /// What carries them.
    #[arg(long, value_enum, default_value = "shm")]
    over: Over,
    /// Calls of one slice.
    #[arg(long, default_value = "20000", value_parser = clap::value_parser!(u32).range(10..))]
    calls: u32,
    /// Slices of each; everybody takes turns.
    #[arg(long, default_value = "7", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// One JSON object in place of the tables.
    #[arg(long)]
    json: bool,
    /// Writes the tables to this file too, from which `gimmal-bench results` makes RESULTS.md. Tables of other titles stay in it.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Leaves memory to glibc as it is. Otherwise it is told to keep what is freed, in all processes, as other allocators do by
    /// themselves: else echoes of 1 MiB measure how the kernel hands out pages.
    #[arg(long)]
    plain_malloc: bool,
    /// Only these; targets that need others are left out.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Way>,
    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Subcommand, Debug)]
enum Child {
    /// The other side; started by the first.
    #[command(hide = true)]
    Serve(Serve),
    /// Takes a core.
    #[command(hide = true)]
    Burn { core: usize },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.child {
        Some(Child::Serve(serve)) => return way::serve(serve),
        Some(Child::Burn { core }) => return way::burn(core),
        None => {}
    }
    if !cli.plain_malloc {
        keep_memory()?;
    }
    let cores = Cores::choose(None)?;
    let pins = Pins { client: cores.client, server: cores.server };
    let comparison = compare::run(cli.over, pins, cli.calls.try_into()?, cli.rounds, &cli.only)?;
    if let Some(path) = &cli.record {
        tables::record(comparison.tables(), path)?;
    }
    if cli.json {
        println!("{}", comparison.to_json());
    } else {
        print!("{}", comparison.tables());
    }
    Ok(())
}

/// Settings of glibc with which a process keeps memory that it freed.
const KEEPING: [(&str, &str); 3] = [
    ("MALLOC_TRIM_THRESHOLD_", "1073741824"),
    ("MALLOC_MMAP_THRESHOLD_", "1073741824"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

/// Begins again with [`KEEPING`], once: glibc reads it when a process begins.
fn keep_memory() -> Result<()> {
    if KEEPING.iter().all(|(name, value)| std::env::var_os(name).is_some_and(|set| set == *value)) {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    Err(again.args(std::env::args_os().skip(1)).envs(KEEPING).exec()).context("beginning again")
}
