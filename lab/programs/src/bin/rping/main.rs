//! rping's client and server on the raw CM: speaks the wire protocol of rdma-core's `rping(1)`.
//!
//! ```text
//!  client                                        server
//!  SEND  key, address, length of its source ───►  READs the source
//!        ◄──────────────────────────────── SEND   go ahead
//!  SEND  key, address, length of its sink ─────►  WRITEs what it read
//!        ◄──────────────────────────────── SEND   done; and again
//! ```
//!
//! `rping -s [-a ADDRESS] [-p PORT]` and `rping -c -a ADDRESS [-p PORT] [-C COUNT] [-S SIZE] [-V] [-v]`;
//! `-q` makes the queue pair itself, `-t MS` is how long each step may take. Ends with a non-zero exit code when
//! anything was not as it should be.

mod args;
mod client;
mod server;
mod wire;

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    let args = args::Args::parse();
    if args.server { server::run(&args) } else { client::run(&args) }
}
