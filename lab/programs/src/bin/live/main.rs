//! Connections in a world where devices, links and hosts come and go: the lab's programs, each a short check.
//!
//! ```text
//!  live removal --address rdma://HOST:7800 --device rxe0     a device is removed under load, and added again
//!  live cycles  --address rdma://HOST:7820 --total 1000      connections made and ended, nothing left
//!  live storm   --address shm://storm --clients 1000         many clients at once
//!  live host    --address rdma://HOST:7801                   the server of two guests
//!  live visit   --address rdma://PEER:7801 --expect same     its client, while something happens between them
//!  live weather --address tcp://PEER:7804 --netem "loss 1%"  its client, while the network is bad
//!  live ways    --address gimmal://PEER:7806             its client, while an RDMA device goes and comes back
//! ```

#![forbid(unsafe_code)]

mod cycles;
mod fates;
mod patience;
mod removal;
mod storm;
mod tally;
mod visit;
mod ways;
mod weather;

use clap::{Parser, Subcommand};

/// Checks what happens to connections when something goes away.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Removes a device under load and adds it again. Needs root, and a guest that nobody else uses.
    Removal(removal::Options),
    /// Makes and ends connections: what one costs, and that nothing is left.
    Cycles(cycles::Options),
    /// Connects many clients at once; each must end connected, refused with a reason, or at its deadline.
    Storm(storm::Options),
    /// Serves until its standard input ends, or for some time.
    Host(visit::HostOptions),
    /// Calls without pause while the link, the host or the server goes away, and says what became of it.
    Visit(visit::Options),
    /// Calls while the network loses, delays or reorders packets, and compares fates with the server's book. Needs root.
    Weather(weather::Options),
    /// Goes by the best way there is while the host's RDMA device is taken away and given back. Needs root.
    Ways(ways::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Removal(options) => removal::run(&options),
        What::Cycles(options) => cycles::run(&options),
        What::Storm(options) => storm::run(&options),
        What::Host(options) => visit::host(&options),
        What::Visit(options) => visit::run(&options),
        What::Weather(options) => weather::run(&options),
        What::Ways(options) => ways::run(&options),
    }
}
