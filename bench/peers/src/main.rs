//! 64-byte echoes of tarpc and tonic over a unix socket, of iceoryx2's request-response and of UCX, beside gimmal's typed calls
//! and the echo of its engine, one at a time and 32 at once.
//!
//! ```text
//!  round 1: engine, inline, driven, handed off, tarpc, tonic, iceoryx2     round 2: the same …
//!  each: server started on its core, client on the other, warmed up, measured, ended
//! ```
//! `cargo run --release` prints one table and whether the targets are met; `--json` one object; `--record` keeps the table.

#![forbid(unsafe_code)]

mod compare;
mod exchange;
mod grpc;
mod iox;
mod measure;
mod ours;
mod rpc;
mod way;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use gimmal_bench::args::Cores;
use measure::Pins;
use way::Way;

/// 64-byte echoes between two processes: gimmal over shared memory, its peers beside it.
#[derive(Parser, Debug)]
#[command(version)]
pub(crate) struct Cli {
    /// Calls of one slice.
    #[arg(long, default_value = "20000", value_parser = clap::value_parser!(u32).range(10..))]
    calls: u32,
    /// Slices of each; everybody takes turns.
    #[arg(long, default_value = "7", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
    /// Writes the table to this file too, from which `gimmal-bench results` makes RESULTS.md.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Only these; targets that need others are left out.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Way>,
    #[command(subcommand)]
    serve: Option<Serve>,
}

#[derive(Subcommand, Debug)]
enum Serve {
    /// The other side; started by the first.
    #[command(hide = true)]
    Serve { way: Way, place: PathBuf, core: usize },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Serve::Serve { way, place, core }) = &cli.serve {
        return way::serve(*way, place, *core);
    }
    let cores = Cores::choose(None)?;
    let pins = Pins { client: cores.client, server: cores.server };
    let comparison = compare::run(pins, cli.calls.try_into()?, cli.rounds, &cli.only)?;
    if let Some(path) = &cli.record {
        std::fs::write(path, comparison.tables().to_toml())?;
    }
    if cli.json {
        println!("{}", comparison.to_json());
    } else {
        print!("{}", comparison.tables());
    }
    Ok(())
}
