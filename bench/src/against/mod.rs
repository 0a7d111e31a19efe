//! What is measured beside the layer under test, in turns with it.
//!
//! ```text
//!  own code in both processes     bare ring, inline, thread exchange, TCP, unix socket, 64 B echo, block
//!  programs of others             ucx_perftest, fi_pingpong, iperf3, perftest; started, parsed, ended for every slice
//!  UCX by a program of ours       built when it is asked for: echoes with a window, which ucx_perftest has none of
//! ```
//! Whatever a program prints, a `Contender` gives round trips in nanoseconds, or a rate whose unit is in its label.

pub(crate) mod choose;
pub(crate) mod exchange;
pub mod iperf3;
pub(crate) mod libfabric;
pub(crate) mod own;
pub(crate) mod perftest;
pub(crate) mod program;
pub(crate) mod sockets;
pub(crate) mod ucx;
pub mod ucx_echo;

use clap::ValueEnum;

use crate::{error::BenchError, floors::Floors};

/// Whom to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Against {
    /// `ucx_perftest`; and for rates over shared memory echoes by UCX's active messages.
    Ucx,
    /// `fi_pingpong`.
    Libfabric,
    /// The kernel's TCP over loopback, by our own code.
    Tcp,
    /// The kernel's TCP over loopback, waited for by an epoll set.
    TcpEpoll,
    /// The kernel's TCP over loopback, waited for by a call that blocks.
    TcpBlocking,
    /// The kernel's TCP over loopback, with no more than one message for each call to the kernel.
    TcpSingle,
    /// A unix stream socket, by our own code.
    Uds,
    /// One stream of `iperf3`: bandwidth over TCP.
    Iperf3,
    /// `ib_send_lat`, `ib_write_lat`, `ib_send_bw`, `ib_read_bw`.
    Perftest,
}

/// What a number says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quantity {
    /// Median round trip, nanoseconds.
    RoundTrip,
    /// Something per second.
    PerSecond,
    /// Bytes per second.
    Bytes,
}

/// What a test compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// Round trips, one at a time.
    Latency,
    /// Calls per second.
    Rate,
    /// Bytes per second.
    Bandwidth,
}

/// What a contender is needed for besides its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Nothing.
    Row,
    /// Inline calls, without a worker thread.
    Inline,
    /// The hand-over without the calls.
    Exchange,
}

/// Someone to compare with.
pub(crate) trait Contender: std::fmt::Debug {
    /// Its name, with the operation.
    fn name(&self) -> String;

    /// What its number says, for people: "RTT p50 (twice what it prints)".
    fn label(&self) -> &'static str;

    /// What its number says, for dividing.
    fn quantity(&self) -> Quantity;

    /// What it is needed for besides its row.
    fn role(&self) -> Role {
        Role::Row
    }

    /// The commands with which a person gets the same number of `count` exchanges, when it is a program of others.
    fn commands(&self, count: u64) -> Vec<String> {
        let _ = count;
        vec![]
    }

    /// Measures one slice, `count` exchanges if it can choose. The server does what [`Contender`] needs meanwhile;
    /// `floors` says so.
    ///
    /// # Errors
    /// Why there is no number; it is then left out of the run.
    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError>;
}

/// What programs of others need to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    /// What is compared.
    pub(crate) goal: Goal,
    /// Bytes of one message.
    pub(crate) bytes: usize,
    /// Outstanding.
    pub(crate) window: usize,
    /// The client's core.
    pub(crate) client_core: usize,
    /// The server's core.
    pub(crate) server_core: usize,
    /// The device's address, when there is one.
    pub(crate) host: Option<String>,
}

/// The first number of `column` in `line`, split at white space.
fn column(line: &str, column: usize) -> Option<f64> {
    line.split_whitespace().nth(column)?.parse().ok()
}

/// Those of `line`, when all of its words are numbers and there are `count` of them at least.
fn row_of_numbers(line: &str, count: usize) -> Option<Vec<f64>> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() >= count)
}
