//! The main job: a server exports a folder, a client lists it, fetches every file and compares it.
//!
//! Small files come in the answer, large ones as bulk. Server and client are two processes.

#![forbid(unsafe_code)]

mod client;
mod demo;
mod report;
mod server;
mod service;
mod tree;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Serves a folder, or fetches one.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a folder until standard input ends.
    Serve {
        /// The folder.
        folder: PathBuf,
        /// Where: shm://name, tcp://host:port, rdma://host:port.
        #[arg(long)]
        address: String,
    },
    /// Fetches everything a server has and compares it with a folder.
    Fetch {
        /// Where the server is.
        #[arg(long)]
        address: String,
        #[command(flatten)]
        options: client::Options,
    },
    /// Both, as two processes.
    Demo {
        /// The folder; by default the documentation and libraries that come with Rust, or /usr/share/doc.
        folder: Option<PathBuf>,
        /// Over what.
        #[arg(long, value_enum, default_value_t = demo::Provider::Shm)]
        provider: demo::Provider,
        /// With verbs: the lab's fabric, whose address the environment names.
        #[arg(long, default_value = "rxe")]
        fabric: String,
        #[command(flatten)]
        options: client::Options,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Serve { folder, address } => server::run(&folder, &address),
        Command::Fetch { address, options } => client::run(&address, &options),
        Command::Demo { folder, provider, fabric, options } => demo::run(folder, provider, &fabric, options),
    }
}
