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
//! The texts of the command line are the source of the man pages, too.

#![forbid(unsafe_code)]

mod accept;
mod connect;
mod counters;
mod credentials;
mod devices;
mod doctor;
mod edge;
mod live;
mod machine;
mod pages;
mod report;
mod say;
mod signals;
mod top;
mod tree;
mod tunnel;

use std::{error::Error, io, path::PathBuf, process::ExitCode, time::Duration};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{
    credentials::{Credentials, in_options},
    machine::Live,
};

/// Ends the long help of every command.
const EXIT_CODES: &str = "\
Exit codes:
  0  The command succeeded; doctor: nothing needed is wrong; health, top: the server serves.
  1  The command failed, or what it checked is wrong. Standard error says why.
  2  The command line is wrong.";

/// Checks this machine, calls live gimmal servers, and carries traffic to and from them.
#[derive(Debug, Parser)]
#[command(name = "gimmal", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks what a connection needs, and names the command that fixes each problem.
    Doctor {
        /// Also connect to this peer: rdma://host:port, tcp://host:port, tcp+tls://host:port, shm://name or gimmal://host:port.
        url: Option<doctor::Peer>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        credentials: Credentials,
        /// Milliseconds to wait for the peer.
        #[arg(long, value_name = "MS", default_value_t = 5000)]
        timeout_ms: u64,
    },
    /// Asks a live server whether it serves. The exit code is the answer.
    Health {
        #[command(flatten)]
        server: live::Server,
        /// Ask for this service, by name [default: the server as a whole].
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        service: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Calls a method of a live server, or lists its methods.
    ///
    /// For example: gimmal call shm://files Files.list '""' 0
    Call {
        #[command(flatten)]
        server: live::Server,
        /// Method to call, as Service.method [default: list all methods].
        method: Option<String>,
        /// Arguments as JSON; text needs no quotes.
        ///
        /// A raw method gets the bytes as typed. Items that the method reads are lines of standard input.
        arguments: Vec<String>,
        /// Text of the argument that is bulk.
        #[arg(long, value_name = "TEXT")]
        bulk: Option<String>,
        /// Print JSON: the answer or the error with its metadata, a line for each item, or the list of methods.
        #[arg(long)]
        json: bool,
    },
    /// Prints the services of a live server as Rust traits with their types.
    Describe {
        #[command(flatten)]
        server: live::Server,
        /// Print the methods and their schemas as one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Shows the connections, counters and health of a live server, again and again.
    Top {
        #[command(flatten)]
        server: live::Server,
        /// Print one JSON object a line for each update.
        #[arg(long)]
        json: bool,
        /// Milliseconds between two updates.
        #[arg(long, value_name = "MS", default_value_t = 1000)]
        interval_ms: u64,
        /// Number of updates [default: no limit].
        #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
        count: u64,
    },
    /// Carries HTTP/2, gRPC included, to or from a gimmal server, until SIGTERM.
    ///
    /// For example: gimmal edge --listen http://0.0.0.0:50051 --to shm://greeter
    Edge(edge::Edge),
    /// Carries connections of unchanged programs over one gimmal connection, until SIGTERM.
    ///
    /// At the programs: gimmal tunnel --listen tcp:127.0.0.1:6379 --to rdma://db:7471/redis.
    /// At their servers: gimmal tunnel --listen rdma://0.0.0.0:7471 --map redis=tcp:127.0.0.1:6379.
    Tunnel(tunnel::Tunnel),
    /// Writes the manual pages and the completions of shells to a folder.
    #[command(hide = true)]
    Pages {
        /// The folder.
        folder: PathBuf,
    },
    /// Lists RDMA devices with their limits, ports and GIDs.
    Devices {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
}

/// The command line with the exit codes below the long help of every command.
fn command_line() -> clap::Command {
    Args::command().after_long_help(EXIT_CODES).mut_subcommands(|command| command.after_long_help(EXIT_CODES))
}

fn main() -> ExitCode {
    let args = Args::from_arg_matches(&command_line().get_matches()).unwrap_or_else(|error| error.exit());
    match run(args.command) {
        Ok(is_well) => ExitCode::from(u8::from(!is_well)),
        Err(error) if say::is_unread(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            say::complain(&in_options(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Writes the log to stderr: warnings, or what `GIMMAL_LOG` asks for.
fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GIMMAL_LOG").unwrap_or_else(|_| "warn".into());
    // A log that cannot be written would be complained of on stderr, too, which panics where nobody reads that.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    log.with_env_filter(filter).with_writer(io::stderr).init();
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
                Err(error) if !say::is_unread(&error) => Err(error.into()),
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
            pages::write(command_line(), &folder)?;
            Ok(true)
        }
        Command::Devices { json } => {
            devices::print(&gimmal_rdma::device::devices()?, json)?;
            Ok(true)
        }
    }
}
