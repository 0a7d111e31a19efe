//! What an edge is told, and what it counts.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::credentials::Credentials;

/// Where an edge listens, where it goes, and its limits.
#[derive(clap::Args, Debug)]
pub(crate) struct Edge {
    /// Listen here: http://address:port for HTTP/2 in clear text, or a URL of gimmal.
    #[arg(long)]
    pub(super) listen: String,
    /// Send requests here: the other kind of address.
    #[arg(long)]
    pub(super) to: String,
    #[command(flatten)]
    pub(super) credentials: Credentials,
    /// Requests at once; one more is answered with 503.
    #[arg(long, default_value_t = 1024)]
    pub(super) requests_max: usize,
    /// Connections of HTTP/2 at once; more wait to be accepted.
    #[arg(long, default_value_t = 1024)]
    pub(super) connections_max: usize,
    /// Seconds for requests in flight after SIGTERM or SIGINT.
    #[arg(long, default_value_t = 30)]
    pub(super) drain_s: u64,
}

impl Edge {
    pub(super) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }
}

/// What an edge did.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
