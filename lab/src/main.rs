//! Real kernel RDMA without RDMA hardware: boots a guest with SoftRoCE and Soft-iWARP in a few seconds and runs a
//! command of the host in it.
//!
//! ```text
//! main ─► run, pair, selftest ─► guest ─► qemu, script, follow      one guest's life
//!             │                    ├────► verdict                   what it came to
//!             │                    └────► wire                      its network cable, in a pair
//!             └─► cache ─► kernel, siw, bzimage, initrd ─► cpio, tool   what it boots from
//! ```
//!
//! - Nothing the guest does reaches the host, except files in the folder given with `--out`.
//! - Every wait has a limit; whatever is started is ended by its process id.
//! - Exit codes are those of the command, or 69 (missing programs), 70 (the guest's kernel complained), 71 (the guest
//!   did not come up), 124 (time limit), 128 + signal.

#![forbid(unsafe_code)]

mod bzimage;
mod cache;
mod cli;
mod cpio;
mod fabric;
mod follow;
mod guest;
mod initrd;
mod kernel;
mod packages;
mod pair;
mod progress;
mod qemu;
mod run;
mod script;
mod selftest;
mod signals;
mod siw;
mod spec;
mod tool;
mod verdict;
mod wire;

use std::process::ExitCode;

use clap::Parser;

use crate::{packages::Missing, signals::Signal};

fn main() -> ExitCode {
    match signals::catch().map_err(Into::into).and_then(|()| cli::Cli::parse().run()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("gimmal-lab: {error:#}");
            ExitCode::from(code_of(&error))
        }
    }
}

fn code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Signal>() {
        Some(signal) => signal.exit_code(),
        None if error.is::<Missing>() => verdict::UNAVAILABLE,
        None => verdict::LAB,
    }
}
