//! rping's options.

use std::time::Duration;

use clap::{Parser, value_parser};
use gimmal_rdma::cm::QpMaker;

/// Speaks the protocol of rdma-core's `rping(1)`, as client or as server.
#[derive(Debug, Parser)]
#[command(about)]
pub(crate) struct Args {
    /// Be the server.
    #[arg(short = 's', required_unless_present = "client", conflicts_with = "client")]
    pub(crate) server: bool,
    /// Be the client.
    #[arg(short = 'c')]
    client: bool,
    /// Where the server is, or which of its addresses listens.
    #[arg(short = 'a', required_if_eq("client", "true"))]
    pub(crate) address: Option<String>,
    /// Connect from there.
    #[arg(short = 'I')]
    pub(crate) source: Option<std::net::IpAddr>,
    /// The server's port.
    #[arg(short = 'p', default_value_t = 7174)]
    pub(crate) port: u16,
    /// Pings; without it until the other side ends.
    #[arg(short = 'C')]
    pub(crate) count: Option<u64>,
    /// Bytes of a ping.
    #[arg(short = 'S', default_value_t = 64, value_parser = size)]
    pub(crate) size: usize,
    /// The client compares the echoes.
    #[arg(short = 'V')]
    pub(crate) validate: bool,
    /// Print each ping.
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// Make the queue pair here, instead of by the CM.
    #[arg(short = 'q')]
    own: bool,
    /// Milliseconds for each step.
    #[arg(short = 't', default_value_t = 10_000, value_parser = value_parser!(u64).range(1..))]
    step_ms: u64,
}

/// Largest ping, as in rping.
pub(crate) const SIZE_MAX: usize = 64 << 10;
/// "rdma-ping-2147483647: " and its end, as in rping.
const SIZE_MIN: usize = 24;

fn size(text: &str) -> Result<usize, String> {
    let size = text.parse().map_err(|error| format!("{error}"))?;
    let within = (SIZE_MIN..=SIZE_MAX).contains(&size);
    within.then_some(size).ok_or_else(|| format!("it must be {SIZE_MIN} to {SIZE_MAX}"))
}

impl Args {
    /// The maker of the queue pair.
    pub(crate) fn maker(&self) -> QpMaker {
        if self.own { QpMaker::Us } else { QpMaker::Cm }
    }

    /// The limit of each step.
    pub(crate) fn step(&self) -> Duration {
        Duration::from_millis(self.step_ms)
    }
}
