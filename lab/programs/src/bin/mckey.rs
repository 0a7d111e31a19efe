//! Speaks the protocol of rdma-core's `mckey`: joins a group, and sends `count` messages to it or receives them.
//! Either side may be theirs.
//!
//! `mckey -m GROUP -b ADDRESS [-s] [-o] [-C count] [-S bytes]`: `-s` sends, `-o` joins to send only.
#![expect(
    clippy::disallowed_types,
    clippy::arithmetic_side_effects,
    reason = "no span here is longer than an hour"
)]

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use clap::Parser;
use gimmal_rdma::datagram::{Datagram, DatagramConfig, Membership};

/// Speaks the protocol of rdma-core's `mckey`: joins GROUP, and sends to it or receives.
#[derive(Debug, Parser)]
#[command(about)]
struct Args {
    /// The group.
    #[arg(short = 'm')]
    group: IpAddr,
    /// Our own address.
    #[arg(short = 'b')]
    local: IpAddr,
    /// Send instead of receiving.
    #[arg(short = 's')]
    sends: bool,
    /// Join to send only.
    #[arg(short = 'o')]
    send_only: bool,
    /// Messages.
    #[arg(short = 'C', default_value_t = 10)]
    count: u16,
    /// Bytes of a message.
    #[arg(short = 'S', default_value_t = 100)]
    bytes: usize,
    /// Seconds for all of it.
    #[arg(short = 't', default_value_t = 20)]
    seconds: u64,
}

const STEP: Duration = Duration::from_secs(5);
/// Before the first message: what a subnet manager and switches take to learn of a member.
const SETTLE: Duration = Duration::from_secs(1);

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let Args { count, bytes, .. } = args;
    let membership = if args.send_only { Membership::SendOnly } else { Membership::Full };
    let deadline = Instant::now() + Duration::from_secs(args.seconds);

    let config = DatagramConfig { receives: count.max(1), sends: count.max(1), ..DatagramConfig::default() };
    let mut endpoint = Datagram::bind(SocketAddr::new(args.local, 0), &config)?;
    let group = endpoint.join(args.group, membership, STEP)?;
    println!(
        "joined {}, key {}, own queue pair {}",
        group.peer().gid(),
        group.peer().qkey(),
        endpoint.info().qp
    );
    if args.sends {
        std::thread::sleep(SETTLE);
        for _ in 0..count {
            let imm = Some(endpoint.info().qp.get());
            endpoint.send_with(group.peer(), bytes, imm, |place| place.fill(0))?;
        }
        ensure!(endpoint.drain(STEP)?, "the device did not take every message");
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
                bail!(wrong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "{came} of {count} messages came");
            if came < count {
                endpoint.wait(left)?;
            }
        }
    }
    endpoint.leave(group)?;
    println!("{}", endpoint.close(STEP));
    Ok(())
}
