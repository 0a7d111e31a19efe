//! `gimmal doctor` walks through what a connection needs and says what is missing; `gimmal devices` shows what there is.
//!
//! ```text
//! main ─► doctor ─► kernel, device, limits, peer      the checks, each judged only when what it needs is fine
//!   │       ├─────► machine ─► tree (/sys, /proc, /dev), transport (libraries, addresses, route, connect)
//!   │       └─────► report      text or JSON
//!   ├───► devices
//!   └───► live                        call, top: a server's reflection, and calls by hand
//! ```
//! Exit codes: 0 all is well, 1 something needed is wrong, 2 the command line is.

#![forbid(unsafe_code)]

mod connect;
mod devices;
mod doctor;
mod live;
mod machine;
mod report;
mod tree;

use std::{error::Error, io, process::ExitCode, time::Duration};

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
    /// Lists the methods of a live server, or calls one: `gimmal call shm://name Service.method 1 text [2,3]`.
    Call {
        #[command(flatten)]
        server: live::Server,
        /// Service.method; none: lists them.
        method: Option<String>,
        /// Its arguments as JSON; text needs no quotes. A raw method gets them as they are.
        arguments: Vec<String>,
    },
    /// Shows what a live server does: connections, counters, health.
    Top {
        #[command(flatten)]
        server: live::Server,
        /// Between two looks.
        #[arg(long, default_value_t = 1000)]
        interval_ms: u64,
        /// How many looks.
        #[arg(long, default_value_t = u64::MAX)]
        count: u64,
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
        Err(error) if is_unread(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gimmal: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether who reads our output has seen enough.
fn is_unread(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether all is well.
fn run(command: Command) -> Result<bool, Box<dyn Error>> {
    match command {
        Command::Doctor { url, json, timeout_ms } => {
            let report = doctor::examine(&Live::new(Duration::from_millis(timeout_ms)), url.as_ref());
            match report.print(json) {
                Err(error) if !is_unread(&error) => Err(error.into()),
                _ => Ok(report.ok),
            }
        }
        Command::Call { server, method, arguments } => {
            live::call(&server, method.as_deref(), &arguments)?;
            Ok(true)
        }
        Command::Top { server, interval_ms, count } => live::top(&server, interval_ms, count),
        Command::Devices { json } => {
            devices::print(&gimmal_rdma::device::devices()?, json)?;
            Ok(true)
        }
    }
}
