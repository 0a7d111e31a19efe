//! `gimmal doctor` walks through what a connection needs and says what is missing; `gimmal devices` shows what there
//! is.
//!
//! ```text
//! main ─► doctor ─► kernel, device, limits, peer      the checks, each judged only when what it needs is fine
//!   │       ├─────► machine ─► tree (/sys, /proc, /dev), transport (libraries, addresses, route, connect)
//!   │       └─────► report      text or JSON
//!   ├───► devices
//!   ├───► pages                       manual pages and completions
//!   ├───► edge                        HTTP/2 to gimmal, and back
//!   ├───► tunnel                      connections of programs as streams
//!   ├───► live                        call: a server's methods, and calls by hand
//!   └───► top                         top, health: a server's counters, connections and health
//! ```
//! Exit codes: 0 all is well, 1 something needed is wrong, 2 the command line is.

#![forbid(unsafe_code)]

mod connect;
mod credentials;
mod devices;
mod doctor;
mod edge;
mod live;
mod machine;
mod pages;
mod report;
mod signals;
mod top;
mod tree;
mod tunnel;

use std::{error::Error, io, path::PathBuf, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    credentials::{Credentials, in_options},
    machine::Live,
};

/// Checks this machine for RDMA and shared memory, and looks at live gimmal servers.
#[derive(Debug, Parser)]
#[command(name = "gimmal", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks what a connection needs. Names each problem and the command that fixes it.
    Doctor {
        /// Also connect to this peer: rdma://host:port, tcp://host:port, tcp+tls://host:port, shm://name or gimmal://host:port.
        url: Option<doctor::Peer>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        credentials: Credentials,
        /// Milliseconds to wait for the peer.
        #[arg(long, default_value_t = 5000)]
        timeout_ms: u64,
    },
    /// Asks a live server for its health. Exit code 0: it serves. 1: it does not, or does not answer.
    Health {
        #[command(flatten)]
        server: live::Server,
        /// One of its services, by name [default: the server as a whole].
        #[arg(long, default_value = "", hide_default_value = true)]
        service: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the methods of a live server, or calls one: `gimmal call shm://name Service.method 1 text [2,3]`.
    Call {
        #[command(flatten)]
        server: live::Server,
        /// The method to call, Service.method. Without it, all methods are listed.
        method: Option<String>,
        /// Arguments as JSON; text needs no quotes. A raw method gets the bytes as typed. Items that the method reads are
        /// lines of standard input.
        arguments: Vec<String>,
        /// The text of an argument that is bulk.
        #[arg(long)]
        bulk: Option<String>,
        /// Print one object with the answer or the error, and the metadata.
        #[arg(long)]
        json: bool,
    },
    /// Prints the services of a live server as Rust traits, with their types.
    Describe {
        #[command(flatten)]
        server: live::Server,
        /// Print the methods and their schemas as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows a live server: connections, counters, health.
    Top {
        #[command(flatten)]
        server: live::Server,
        /// Print a line of JSON for each update.
        #[arg(long)]
        json: bool,
        /// Milliseconds between two updates.
        #[arg(long, default_value_t = 1000)]
        interval_ms: u64,
        /// Number of updates [default: no limit].
        #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
        count: u64,
    },
    /// Carries HTTP/2, gRPC included, to a server of gimmal, or from one to a server of HTTP/2, until SIGTERM:
    /// `gimmal edge --listen http://0.0.0.0:50051 --to shm://greeter`.
    Edge(edge::Edge),
    /// Carries connections of programs that nobody changes over one connection of gimmal, until SIGTERM. At the programs:
    /// `gimmal tunnel --listen tcp:127.0.0.1:6379 --to rdma://db:7471/redis`. At their servers:
    /// `gimmal tunnel --listen rdma://0.0.0.0:7471 --map redis=tcp:127.0.0.1:6379`.
    Tunnel(tunnel::Tunnel),
    /// Writes the manual pages and the completions of shells to a folder.
    #[command(hide = true)]
    Pages {
        /// The folder.
        folder: PathBuf,
    },
    /// Lists RDMA devices, their ports and GIDs.
    Devices {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(is_well) => ExitCode::from(u8::from(!is_well)),
        Err(error) if is_unread(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gimmal: {}", in_options(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Whether who reads our output has seen enough.
fn is_unread(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes the log to stderr: warnings, or what `GIMMAL_LOG` asks for.
fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GIMMAL_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

/// Whether all is well.
fn run(command: Command) -> Result<bool, Box<dyn Error>> {
    match command {
        Command::Doctor { url, json, credentials, timeout_ms } => {
            if let Some(url) = &url {
                credentials.check(&[&url.to_string()])?;
            }
            let machine = Live::new(Duration::from_millis(timeout_ms), credentials.key()?, credentials.tls());
            let report = match &url {
                None => doctor::examine(&machine, None),
                Some(doctor::Peer::At(address)) => doctor::examine(&machine, Some(address)),
                Some(doctor::Peer::Best(url)) => doctor::examine_best(&machine, url),
            };
            match report.print(json) {
                Err(error) if !is_unread(&error) => Err(error.into()),
                _ => Ok(report.ok),
            }
        }
        Command::Call { server, method, arguments, bulk, json } => {
            live::call(&server, method.as_deref(), &arguments, bulk.as_deref(), json)?;
            Ok(true)
        }
        Command::Describe { server, json } => {
            live::describe(&server, json)?;
            Ok(true)
        }
        Command::Health { server, service, json } => top::health(&server, service, json),
        Command::Top { server, json, interval_ms, count } => {
            let interval = Duration::from_millis(interval_ms);
            let updates = top::Updates { interval, count, json };
            top::top(&server, &updates)
        }
        Command::Edge(edge) => {
            log();
            edge::run(&edge)
        }
        Command::Tunnel(tunnel) => {
            log();
            tunnel::run(&tunnel)
        }
        Command::Pages { folder } => {
            pages::write(Args::command(), &folder)?;
            Ok(true)
        }
        Command::Devices { json } => {
            devices::print(&gimmal_rdma::device::devices()?, json)?;
            Ok(true)
        }
    }
}
