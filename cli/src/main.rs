//! `gimmal doctor` walks through what a connection needs and says what is missing; `gimmal devices` shows what there is.
//!
//! ```text
//! main ─► doctor ─► kernel, device, limits, peer      the checks, each judged only when what it needs is fine
//!   │       ├─────► machine ─► tree (/sys, /proc, /dev), transport (libraries, addresses, route, connect)
//!   │       └─────► report      text or JSON
//!   └───► devices
//! ```
//! Exit codes: 0 all is well, 1 something needed is wrong, 2 the command line is.

#![forbid(unsafe_code)]

mod connect;
mod devices;
mod doctor;
mod machine;
mod report;
mod tree;

use std::{process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use gimmal_transport::Address;

use crate::machine::Live;

/// What RDMA and shared memory have on this machine, and what they lack.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks what a connection needs; names what is wrong and the command that mends it.
    Doctor {
        /// A peer to reach: rdma://host:port or shm://name.
        url: Option<Address>,
        /// For programs.
        #[arg(long)]
        json: bool,
        /// How long the peer may take.
        #[arg(long, default_value_t = 5000)]
        timeout_ms: u64,
    },
    /// Lists RDMA devices, their ports and GIDs.
    Devices {
        /// For programs.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(is_well) => ExitCode::from(u8::from(!is_well)),
        Err(error) => {
            eprintln!("gimmal: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is well.
fn run(command: Command) -> Result<bool, Box<dyn std::error::Error>> {
    match command {
        Command::Doctor { url, json, timeout_ms } => {
            let report = doctor::examine(&Live::new(Duration::from_millis(timeout_ms)), url.as_ref());
            report.print(json)?;
            Ok(report.ok)
        }
        Command::Devices { json } => {
            devices::print(&gimmal_transport::verbs::devices()?, json)?;
            Ok(true)
        }
    }
}
