//! Speaks the protocol of rdma-core's `mckey`: joins a group, and sends `count` messages to it or receives them.
//! Either side may be theirs.
//!
//! `mckey -m GROUP -b ADDRESS [-s] [-o] [-C count] [-S bytes]`: `-s` sends, `-o` joins to send only.
#![expect(
    clippy::disallowed_types,
    clippy::arithmetic_side_effects,
    reason = "no span here is longer than an hour"
)]

#[allow(dead_code, reason = "shared: each program uses some of it")]
mod args;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};

use args::{Args, Failure};
use gimmal_rdma::datagram::{Datagram, DatagramConfig, Membership, SendError};

const USAGE: &str = "mckey -m GROUP -b ADDRESS [-s] [-o] [-C COUNT] [-S BYTES] [-t SECONDS]";
const STEP: Duration = Duration::from_secs(5);
/// Before the first message: what a subnet manager and switches take to learn of a member.
const SETTLE: Duration = Duration::from_secs(1);

fn run() -> Result<(), Failure> {
    let args = Args::read(USAGE, &["s", "o"])?;
    let (address, local): (IpAddr, IpAddr) = (args.need("m")?, args.need("b")?);
    let (count, bytes): (u16, usize) = (args.get("C", 10)?, args.get("S", 100)?);
    let membership = if args.flag("o") { Membership::SendOnly } else { Membership::Full };
    let deadline = Instant::now() + Duration::from_secs(args.get("t", 20)?);

    let config = DatagramConfig { receives: count.max(1), sends: count.max(1), ..DatagramConfig::default() };
    let mut endpoint = Datagram::bind(SocketAddr::new(local, 0), &config)?;
    let group = endpoint.join(address, membership, STEP)?;
    println!("joined {}, key {}, own queue pair {}", group.peer().gid(), group.peer().qkey(), endpoint.qp());
    if args.flag("s") {
        std::thread::sleep(SETTLE);
        for _ in 0..count {
            let imm = Some(endpoint.qp().get());
            match endpoint.send_with(group.peer(), bytes, imm, |place| place.fill(0)) {
                Ok(()) => {}
                Err(SendError::Full) => return Err("more sends than were asked for?".into()),
                Err(error) => return Err(error.into()),
            }
        }
        if !endpoint.drain(STEP)? {
            return Err("the device did not take every message".into());
        }
    } else {
        let mut came = 0;
        while came < count {
            let mut wrong = None;
            endpoint.receive(|received| {
                came += 1;
                let to = received.source.grh().map(|grh| grh.destination);
                if received.message.len() != bytes || to.is_some_and(|to| to != group.peer().gid()) {
                    wrong = Some(format!("{} bytes, header {:?}", received.message.len(), received.source));
                }
            })?;
            if let Some(wrong) = wrong {
                return Err(wrong.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("{came} of {count} messages came").into());
            }
            if came < count {
                endpoint.wait(left)?;
            }
        }
    }
    endpoint.leave(group)?;
    println!("{}", endpoint.close(STEP));
    Ok(())
}

fn main() -> ExitCode {
    args::finish(run())
}
