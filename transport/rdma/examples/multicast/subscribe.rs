//! Joins a multicast group and prints the messages of `publish`, then a table of messages by sender.
//!
//! `subscribe --group 239.5.5.5 --local 10.77.1.1 [--count 100] [--timeout-ms 10000] [--quiet]`
//!
//! Ends with 0 when `count` messages came, with 1 when the time was over first.
#![expect(
    clippy::disallowed_types,
    clippy::arithmetic_side_effects,
    reason = "no span here is longer than an hour"
)]

mod args;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};

use args::{Args, Failure};
use gimmal_rdma::datagram::{Datagram, DatagramConfig, DatagramEvent, Gid, Membership, QpNumber, Received};

const USAGE: &str = "subscribe --group ADDRESS --local ADDRESS [--count N] [--timeout-ms N] [--quiet]";
const LIMIT: Duration = Duration::from_secs(5);

/// What came from one publisher.
#[derive(Default)]
struct Publisher {
    received: u64,
    next: u64,
    missing: u64,
    late: u64,
}

impl Publisher {
    fn take(&mut self, number: u64) {
        if self.received == 0 {
            self.next = number;
        }
        self.received += 1;
        if number < self.next {
            // Out of order or doubled: a datagram may be both.
            self.late += 1;
        } else {
            self.missing += number - self.next;
            self.next = number.saturating_add(1);
        }
    }
}

#[derive(Default)]
struct Table {
    publishers: BTreeMap<(Gid, QpNumber), Publisher>,
    foreign: u64,
    total: u64,
}

impl Table {
    fn take(&mut self, received: &Received<'_>, quiet: bool) {
        let source = received.source.grh().map_or(Gid([0; 16]), |grh| grh.source);
        let Some(number) = received.message.first_chunk::<8>() else {
            self.foreign += 1;
            return;
        };
        let number = u64::from_be_bytes(*number);
        self.total += 1;
        if !quiet {
            println!("{number} from {source} {} ({} bytes)", received.source.qp, received.message.len());
        }
        self.publishers.entry((source, received.source.qp)).or_default().take(number);
    }

    fn print(&self) {
        println!("{:<40} {:>10} {:>9} {:>8} {:>6}", "publisher", "queue pair", "received", "missing", "late");
        for ((gid, qp), p) in &self.publishers {
            let (gid, qp) = (gid.to_string(), qp.to_string());
            println!("{gid:<40} {qp:>10} {:>9} {:>8} {:>6}", p.received, p.missing, p.late);
        }
        println!("{} messages, {} that were not publish's", self.total, self.foreign);
    }
}

fn run() -> Result<(), Failure> {
    let args = Args::read(USAGE, &["quiet"])?;
    let (address, local): (IpAddr, IpAddr) = (args.need("group")?, args.need("local")?);
    let (count, quiet) = (args.get("count", 100_u64)?, args.flag("quiet"));
    let deadline = Instant::now() + Duration::from_millis(args.get("timeout-ms", 10_000)?);

    let mut endpoint = Datagram::bind(SocketAddr::new(local, 0), &DatagramConfig::default())?;
    let mut group = endpoint.join(address, Membership::Full, LIMIT)?;
    println!("joined {} with queue pair {}", group.peer().gid(), endpoint.info().qp);
    let mut table = Table::default();
    while table.total < count && Instant::now() < deadline {
        while endpoint.receive(|received| table.take(&received, quiet))? > 0 {}
        match endpoint.event()? {
            Some(DatagramEvent::GroupLost { status, .. }) => {
                eprintln!("the group was lost (status {status}): joining again");
                group = endpoint.join(address, Membership::Full, LIMIT)?;
            }
            Some(DatagramEvent::DeviceRemoved) => return Err("the device was removed".into()),
            Some(other) => eprintln!("{other:?}"),
            None => {}
        }
        endpoint.wait(Duration::from_millis(100))?;
    }
    endpoint.leave(group)?;
    table.print();
    endpoint.close(LIMIT);
    if table.total >= count {
        Ok(())
    } else {
        Err(format!("{} of {count} messages came", table.total).into())
    }
}

fn main() -> ExitCode {
    args::finish(run())
}
