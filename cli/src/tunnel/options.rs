//! What a tunnel is told, and what it counts.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gimmal::config::Idle;

use crate::{counters, credentials::Credentials};

/// What gimmal's worker does with nothing to do. A worker that spins takes the core from the thread that it waits for: on two cores
/// with both programs a question and its answer took ten times as long.
pub(super) const IDLE: Idle = Idle::Event;

/// Where a tunnel listens, where it goes, and its limits.
#[derive(clap::Args, Debug)]
pub(crate) struct Tunnel {
    /// Listen here; may be given several times.
    ///
    /// The end at the programs: tcp:address:port, unix:path, or systemd for the sockets that it hands over. The end at their
    /// servers: a gimmal URL.
    #[arg(long, required = true, value_name = "WHERE")]
    pub(super) listen: Vec<String>,
    /// Carry connections to this URL of the other end, whose last part is a name of its --map.
    #[arg(long, value_name = "URL")]
    pub(super) to: Option<String>,
    /// Give a name to a server: name=tcp:host:port or name=unix:path; may be given several times.
    #[arg(long, value_name = "NAME=WHERE")]
    pub(super) map: Vec<String>,
    /// File of such lines, read again at SIGHUP. It overrides --map.
    #[arg(long, value_name = "FILE")]
    pub(super) map_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) credentials: Credentials,
    /// Tell each server the address of the program, by PROXY protocol version 2.
    #[arg(long)]
    pub(super) proxy_protocol: bool,
    /// Connections at most. One more waits to be accepted, or is refused at the other end.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) connections_max: usize,
    /// Seconds without a byte after which a connection is ended [default: no limit].
    #[arg(long, value_name = "S")]
    pub(super) idle_s: Option<u64>,
    /// Seconds that open connections may take after SIGTERM or SIGINT.
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(super) drain_s: u64,
    /// Print the counters at the end as one JSON object.
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

    /// Prints all of them.
    pub(super) fn print(&self, is_drained: bool, as_json: bool) {
        let all = [
            ("connections", &self.connections),
            ("refused", &self.refused),
            ("reset", &self.reset),
            ("idle", &self.idle),
            ("bytes_in", &self.bytes_in),
            ("bytes_out", &self.bytes_out),
        ];
        counters::print(&all, is_drained, as_json);
    }
}
