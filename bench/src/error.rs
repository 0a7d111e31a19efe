//! Why a measurement did not happen, and what to do about it.

use gimmal_engine::{
    ConfigError, OpenError, StartError,
    transport::{AddressError, ConnectError, ListenError},
};
use thiserror::Error;

/// What fails when standard output cannot be written.
pub(crate) const PRINTING: &str = "printing";

/// Anything that ends the program early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The command line makes no sense.
    #[error("{0}")]
    Arguments(String),
    /// The address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The provider is not in this build.
    #[error("the provider {provider} is not in this build: build with --features {provider}")]
    NotBuilt {
        /// Its name.
        provider: &'static str,
    },
    /// A core that cannot be used.
    #[error("core {core} is not available; this process may run on {allowed}: choose with --cpus")]
    Core {
        /// Which.
        core: usize,
        /// Those that are.
        allowed: String,
    },
    /// The message is above the limit of one frame.
    #[error(
        "{bytes} bytes are above the largest body of one frame, {limit}: start the server with a larger --ring"
    )]
    TooLarge {
        /// What was asked.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The client could not connect.
    #[error("no connection to the server at {address}: {why}")]
    NoServer {
        /// Where.
        address: String,
        /// Why.
        why: OpenError,
    },
    /// The server does not want the plan.
    #[error("the server refused the plan: {0}")]
    Refused(String),
    /// The engine's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The engine, otherwise.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The connection ended in the middle.
    #[error("the connection ended: {0}")]
    Closed(String),
    /// No answer.
    #[error("no answer within {seconds} s while {doing}; is the server still there?")]
    Stalled {
        /// What was going on.
        doing: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// A wrong answer: an error of gimmal.
    #[error("the echo is not what was sent: {0}")]
    Wrong(&'static str),
    /// The RPC layer.
    #[error("rpc: {0}")]
    Rpc(String),
    /// The server process of `--loopback`.
    #[error("the server process {0}")]
    Server(String),
    /// The server on another host.
    #[error("the server on {host} {why}")]
    Host {
        /// As ssh knows it.
        host: String,
        /// What happened.
        why: String,
    },
    /// A program that is compared with.
    #[error("{name} {why}")]
    Program {
        /// Its name.
        name: String,
        /// What happened, with its last words.
        why: String,
    },
    /// A record that cannot be read.
    #[error("{place}: no record of gimmal-bench: {why}")]
    Record {
        /// File and line.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// Runs that broke off, that were better in the baseline, or that do not agree.
    #[error("{number} of the runs are not as they should be:\n  {what}")]
    Suite {
        /// How many.
        number: usize,
        /// Which, a line each.
        what: String,
    },
    /// A plot.
    #[error("drawing a plot: {0}")]
    Plot(String),
    /// The kernel.
    #[error("{step}: {error}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What it said.
        error: std::io::Error,
    },
}

impl BenchError {
    /// For `map_err`: what was tried.
    pub(crate) fn system<E: Into<std::io::Error>>(step: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { step, error: error.into() }
    }

    /// Whether the reader of standard output has gone: it has seen enough.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self, Self::System { step: PRINTING, error } if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The program cannot be told of signals.
    #[must_use]
    pub fn signals(error: std::io::Error) -> Self {
        Self::System { step: "catching signals", error }
    }

    /// No answer in time.
    pub(crate) fn stalled(doing: &'static str) -> Self {
        Self::Stalled { doing, seconds: crate::clock::PATIENCE.as_secs() }
    }

    /// What the program ends with: 2 for its arguments, 69 (unavailable) for what is not there, 1 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Arguments(_)
            | Self::Record { .. }
            | Self::Address(_)
            | Self::TooLarge { .. }
            | Self::Config(_) => 2,
            Self::NotBuilt { .. }
            | Self::Core { .. }
            | Self::NoServer { .. }
            | Self::Host { .. }
            | Self::Listen(_)
            | Self::Start(_) => 69,
            _ => 1,
        }
    }
}

impl From<ConnectError> for BenchError {
    fn from(error: ConnectError) -> Self {
        Self::Open(error.into())
    }
}
