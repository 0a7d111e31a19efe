//! What an edge is told, and what it counts.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gimmal_transport::Tls;

use crate::{counters, credentials::Credentials};

/// Calls that a connection of gimmal has in flight at most.
pub(super) const REQUESTS_MAX: usize = 16_384;

/// Where an edge listens, where it goes, and its limits.
#[derive(clap::Args, Debug)]
pub(crate) struct Edge {
    /// Listen here: http://address:port for HTTP/2 in clear text, https://address:port for HTTP/2 under TLS, or a gimmal URL.
    #[arg(long, value_name = "URL")]
    pub(super) listen: String,
    /// Send requests to this address, which is of the other kind. Certificates are for both sides, where both have TLS.
    #[arg(long, value_name = "URL")]
    pub(super) to: String,
    #[command(flatten)]
    pub(super) credentials: Credentials,
    /// Requests in flight at most, 1 to 16384; a stream is one until it ends. One more is answered with status 503.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=REQUESTS_MAX as u64))]
    pub(super) requests_max: usize,
    /// HTTP/2 connections at most. More wait to be accepted.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) connections_max: usize,
    /// Seconds that requests in flight may take after SIGTERM or SIGINT.
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(super) drain_s: u64,
    /// Print the counters at the end as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// The side of HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Http<'a> {
    /// Its address and port.
    pub(super) at: &'a str,
    pub(super) is_secure: bool,
}

impl<'a> Http<'a> {
    /// `None`: the URL is one of gimmal.
    pub(super) fn of(url: &'a str) -> Option<Self> {
        let secure = url.strip_prefix("https://").map(|at| Self { at, is_secure: true });
        secure.or_else(|| url.strip_prefix("http://").map(|at| Self { at, is_secure: false }))
    }

    pub(super) const fn scheme(self) -> &'static str {
        if self.is_secure { "https" } else { "http" }
    }
}

impl Edge {
    /// What the side of HTTP/2 shows and believes; `None` in clear text.
    ///
    /// # Errors
    /// A list of identities that would be one for both sides.
    pub(super) fn tls(&self, http: Http<'_>, native: &str) -> Result<Option<Tls>, String> {
        let is_native_too = native.starts_with("tcp+tls://") || native.starts_with("gimmal://");
        if http.is_secure && is_native_too && self.credentials.allows_some() {
            return Err(
                "--allow would be for both sides of this edge; leave it out, or use two edges".to_owned()
            );
        }
        Ok(http.is_secure.then(|| self.credentials.tls()))
    }

    pub(super) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }
}

/// What an edge did.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicU64,
    /// Connections whose TLS failed.
    pub(super) untrusted: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Prints all of them.
    pub(super) fn print(&self, is_drained: bool, as_json: bool) {
        let all = [
            ("connections", &self.connections),
            ("untrusted", &self.untrusted),
            ("requests", &self.requests),
            ("failed", &self.failed),
            ("refused", &self.refused),
        ];
        counters::print(&all, is_drained, as_json);
    }
}
