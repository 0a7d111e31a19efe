//! What a tunnel is told, and what it counts.

use std::{
    io::Write as _,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gimmal::config::Idle;

use crate::credentials::Credentials;

/// What gimmal's worker does with nothing to do. A worker that spins takes the core from the thread that it waits for: on two cores
/// with both programs a question and its answer took ten times as long.
pub(super) const IDLE: Idle = Idle::Event;

/// Where a tunnel listens, where it goes, and its limits.
#[derive(clap::Args, Debug)]
pub(crate) struct Tunnel {
    /// Listen here. The end at the programs: tcp:address:port, unix:path, or systemd for the sockets that it hands over; more than
    /// once. The end at their servers: a URL of gimmal.
    #[arg(long, required = true)]
    pub(super) listen: Vec<String>,
    /// The end at the programs: the other end's URL and, behind the last slash, the name of what is wanted there.
    #[arg(long)]
    pub(super) to: Option<String>,
    /// The end at the servers: what a name stands for, name=tcp:host:port or name=unix:path; more than once.
    #[arg(long)]
    pub(super) map: Vec<String>,
    /// A file of such lines, read again at SIGHUP. What it has overrides --map.
    #[arg(long)]
    pub(super) map_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) credentials: Credentials,
    /// The end at the servers: tell each server the program's address, by PROXY protocol version 2.
    #[arg(long)]
    pub(super) proxy_protocol: bool,
    /// Connections at once; one more is not accepted until another ends, or is refused at the other end.
    #[arg(long, default_value_t = 1024)]
    pub(super) connections_max: usize,
    /// Ends a connection on which nothing moves for so many seconds [default: no limit].
    #[arg(long)]
    pub(super) idle_s: Option<u64>,
    /// Seconds for open connections after SIGTERM or SIGINT.
    #[arg(long, default_value_t = 30)]
    pub(super) drain_s: u64,
    /// Print the counters at the end as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Tunnel {
    /// Streams at once, one for each connection.
    pub(super) fn streams(&self) -> usize {
        self.connections_max.clamp(1, 4096)
    }

    pub(super) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }

    pub(super) fn idle(&self) -> Option<Duration> {
        self.idle_s.map(Duration::from_secs)
    }
}

/// What a tunnel did.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections that were carried.
    pub(super) connections: AtomicU64,
    /// Connections that were not: no such name, nobody listens, or too many.
    pub(super) refused: AtomicU64,
    /// Connections that ended by force.
    pub(super) reset: AtomicU64,
    /// Connections that ended because nothing moved.
    pub(super) idle: AtomicU64,
    /// Bytes into the tunnel, and out of it.
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// Prints all of them; that nobody reads it is no error.
    pub(super) fn print(&self, is_drained: bool, as_json: bool) {
        let all = [
            ("connections", &self.connections),
            ("refused", &self.refused),
            ("reset", &self.reset),
            ("idle", &self.idle),
            ("bytes_in", &self.bytes_in),
            ("bytes_out", &self.bytes_out),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)));
        let text = if as_json {
            let counters: String = all.iter().map(|(name, count)| format!("\"{name}\":{count},")).collect();
            format!("{{{counters}\"drained\":{is_drained}}}\n")
        } else {
            let drained = if is_drained { "yes" } else { "no" };
            let lines: String = all.iter().map(|(name, count)| format!("{name:<12} {count:>16}\n")).collect();
            format!("{lines}{:<12} {drained:>16}\n", "drained")
        };
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}
