//! Publishes numbered messages to a multicast group; `subscribe` reads them.
//!
//! `publish --group 239.5.5.5 --local 10.77.1.1 [--count 100] [--bytes 64] [--interval-us 1000] [--send-only]`
//!
//! A message is its number in 8 bytes, big endian, and then as many bytes as asked.

mod args;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use args::{Args, Failure};
use gimmal_rdma::datagram::{Datagram, DatagramConfig, DatagramInfo, Membership, SendError};

const USAGE: &str =
    "publish --group ADDRESS --local ADDRESS [--count N] [--bytes N] [--interval-us N] [--send-only]";
const LIMIT: Duration = Duration::from_secs(5);

fn run() -> Result<(), Failure> {
    let args = Args::read(USAGE, &["send-only"])?;
    let (group, local): (IpAddr, IpAddr) = (args.need("group")?, args.need("local")?);
    let (count, bytes): (u64, usize) = (args.get("count", 100)?, args.get("bytes", 64)?);
    let interval = Duration::from_micros(args.get("interval-us", 1000)?);
    let membership = if args.flag("send-only") { Membership::SendOnly } else { Membership::Full };

    let mut endpoint = Datagram::bind(SocketAddr::new(local, 0), &DatagramConfig::default())?;
    let limit = endpoint.info().message_bytes_max;
    if !(8..=limit).contains(&bytes) {
        return Err(format!("--bytes is {bytes}, allowed are 8 to {limit} (the path MTU)").into());
    }
    let group = endpoint.join(group, membership, LIMIT)?;
    let DatagramInfo { device, port, qp, .. } = endpoint.info();
    println!("publishing to {} on {device}/{port}, queue pair {qp}", group.peer().gid());
    for number in 0..count {
        loop {
            let sent = endpoint.send_with(group.peer(), bytes, None, |place| {
                place.fill(0);
                place[..8].copy_from_slice(&number.to_be_bytes());
            });
            match sent {
                Ok(()) => break,
                Err(SendError::Full) => drop(endpoint.drain(LIMIT)?),
                Err(error) => return Err(error.into()),
            }
        }
        // Its own messages come back to a full member; only a posted receive is worth anything to others.
        while endpoint.receive(|_| {})? > 0 {}
        std::thread::sleep(interval);
    }
    if !endpoint.drain(LIMIT)? {
        return Err("the device did not take every message".into());
    }
    endpoint.leave(group)?;
    let counters = endpoint.close(LIMIT);
    println!("sent {} of {count} messages of {bytes} bytes", counters.sent);
    if counters.sent == count { Ok(()) } else { Err("not every message was sent".into()) }
}

fn main() -> ExitCode {
    args::finish(run())
}
