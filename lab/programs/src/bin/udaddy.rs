//! Speaks the protocol of rdma-core's `udaddy`: a server on port 7174 answers look-ups, each client sends `count`
//! messages and gets as many back. Either side may be theirs.
//!
//! `udaddy -b ADDRESS [-c connections] [-C count] [-S bytes]` serves, with `-s ADDRESS` it asks.
//!
//! Every message carries its sender's queue pair number as immediate data, and the answer goes there.
#![expect(
    clippy::disallowed_types,
    clippy::arithmetic_side_effects,
    reason = "no span here is longer than an hour"
)]

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use clap::Parser;
use gimmal_rdma::datagram::{
    AnswerData, Datagram, DatagramConfig, DatagramEvent, Gid, LookUpData, Peer, QpNumber, SendError, Source,
};

/// Speaks the protocol of rdma-core's `udaddy`: serves, or asks SERVER.
#[derive(Debug, Parser)]
#[command(about)]
struct Args {
    /// Ask it.
    #[arg(short = 's', required_unless_present = "local")]
    server: Option<IpAddr>,
    /// Our own address.
    #[arg(short = 'b')]
    local: Option<IpAddr>,
    /// Connections.
    #[arg(short = 'c', default_value_t = 1)]
    connections: u16,
    /// Messages each way on each connection.
    #[arg(short = 'C', default_value_t = 10)]
    count: u16,
    /// Bytes of a message.
    #[arg(short = 'S', default_value_t = 100)]
    bytes: usize,
    /// Seconds for all of it.
    #[arg(short = 't', default_value_t = 20)]
    seconds: u64,
}

const PORT: u16 = 7174;
const STEP: Duration = Duration::from_secs(5);

struct Job {
    connections: u16,
    count: u16,
    bytes: usize,
    deadline: Instant,
}

impl Job {
    fn left(&self) -> anyhow::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the time is over");
        Ok(left.min(STEP))
    }

    fn config(&self) -> anyhow::Result<DatagramConfig> {
        let receives = u32::from(self.connections) * u32::from(self.count);
        let receives = u16::try_from(receives.max(1))?;
        Ok(DatagramConfig { receives, sends: self.count.max(1), ..DatagramConfig::default() })
    }

    fn check(&self, endpoint: &Datagram) -> anyhow::Result<()> {
        let limit = endpoint.info().message_bytes_max;
        ensure!(self.bytes <= limit, "-S {} is above the path MTU, {limit}", self.bytes);
        Ok(())
    }

    fn send(&self, endpoint: &mut Datagram, to: &Peer) -> anyhow::Result<()> {
        let imm = Some(endpoint.info().qp.get());
        for number in 0..self.count {
            let [_, low] = number.to_be_bytes();
            loop {
                match endpoint.send_with(to, self.bytes, imm, |place| place.fill(low)) {
                    Ok(()) => break,
                    Err(SendError::Full) => drop(endpoint.drain(self.left()?)?),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        ensure!(endpoint.drain(self.left()?)?, "the device did not take every message");
        Ok(())
    }
}

fn serve(local: SocketAddr, job: &Job) -> anyhow::Result<()> {
    let mut endpoint = Datagram::bind(local, &job.config()?)?;
    job.check(&endpoint)?;
    let address = endpoint.listen(PORT, job.connections)?;
    println!("serving on {address} with queue pair {}", endpoint.info().qp);
    let mut answered = 0;
    // Two hosts can have the same queue pair number.
    let mut clients: HashMap<(Option<Gid>, QpNumber), (Source, u16)> = HashMap::new();
    let want = u32::from(job.connections) * u32::from(job.count);
    let mut came = 0;
    while answered < job.connections || came < want {
        match endpoint.event()? {
            Some(DatagramEvent::Request(request)) if answered < job.connections => {
                endpoint.accept(request, &AnswerData::EMPTY)?;
                answered += 1;
            }
            Some(DatagramEvent::Request(request)) => endpoint.reject(request, &AnswerData::EMPTY)?,
            Some(other) => eprintln!("{other:?}"),
            None => {}
        }
        let mut wrong = None;
        while endpoint.receive(|received| {
            let qp = received.imm.map_or(received.source.qp, QpNumber::new);
            let host = received.source.grh().map(|grh| grh.source);
            clients.entry((host, qp)).or_insert((received.source, 0)).1 += 1;
            came += 1;
            if received.message.len() != job.bytes {
                wrong = Some(received.message.len());
            }
        })? > 0
        {}
        if let Some(bytes) = wrong {
            bail!("a message of {bytes} bytes, wanted {}", job.bytes);
        }
        if answered < job.connections || came < want {
            endpoint.wait(job.left()?)?;
        }
    }
    for ((host, qp), (source, received)) in &clients {
        let host = host.map_or_else(|| "this subnet".to_owned(), |host| host.to_string());
        println!("{received} messages from {qp} at {host}");
        let peer = endpoint.reply_to(source)?.with_qp(*qp);
        job.send(&mut endpoint, &peer)?;
    }
    println!("{}", endpoint.close(STEP));
    Ok(())
}

fn ask(local: Option<SocketAddr>, server: SocketAddr, job: &Job) -> anyhow::Result<()> {
    let mut pairs = Vec::new();
    for _ in 0..job.connections {
        let config = DatagramConfig { receives: job.count.max(1), ..job.config()? };
        let mut endpoint = match local {
            Some(local) => Datagram::bind(local, &config)?,
            None => Datagram::toward(server, &config, STEP)?,
        };
        job.check(&endpoint)?;
        let peer = endpoint.look_up(server, &LookUpData::EMPTY, job.left()?)?;
        println!("{server} answers with queue pair {}, key {}", peer.qp(), peer.qkey());
        pairs.push((endpoint, peer));
    }
    for (endpoint, peer) in &mut pairs {
        job.send(endpoint, peer)?;
    }
    for (mut endpoint, peer) in pairs {
        let mut came = 0;
        while came < job.count {
            let mut wrong = None;
            endpoint.receive(|received| {
                came += 1;
                if received.message.len() != job.bytes || received.source.qp != peer.qp() {
                    wrong = Some(format!("{} bytes from {:?}", received.message.len(), received.source));
                }
            })?;
            if let Some(wrong) = wrong {
                bail!(wrong);
            }
            if came < job.count {
                endpoint.wait(job.left()?)?;
            }
        }
        println!("{}", endpoint.close(STEP));
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let job = Job {
        connections: args.connections,
        count: args.count,
        bytes: args.bytes,
        deadline: Instant::now() + Duration::from_secs(args.seconds),
    };
    let local = args.local.map(|ip| SocketAddr::new(ip, 0));
    match (args.server, local) {
        (Some(server), local) => ask(local, SocketAddr::new(server, PORT), &job),
        (None, Some(local)) => serve(local, &job),
        (None, None) => bail!("-s or -b is missing"),
    }
}
