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

#[allow(dead_code, reason = "shared: each program uses some of it")]
mod args;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};

use args::{Args, Failure};
use gimmal_rdma::datagram::{
    AnswerData, Datagram, DatagramConfig, DatagramEvent, Gid, LookUpData, Peer, QpNumber, SendError, Source,
};

const USAGE: &str = "udaddy [-s SERVER] [-b ADDRESS] [-c CONNECTIONS] [-C COUNT] [-S BYTES] [-t SECONDS]";
const PORT: u16 = 7174;
const STEP: Duration = Duration::from_secs(5);

struct Job {
    connections: u16,
    count: u16,
    bytes: usize,
    deadline: Instant,
}

impl Job {
    fn left(&self) -> Result<Duration, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err("the time is over".into()) } else { Ok(left.min(STEP)) }
    }

    fn config(&self) -> Result<DatagramConfig, Failure> {
        let receives = u32::from(self.connections) * u32::from(self.count);
        let receives = u16::try_from(receives.max(1))?;
        Ok(DatagramConfig { receives, sends: self.count.max(1), ..DatagramConfig::default() })
    }

    fn check(&self, endpoint: &Datagram) -> Result<(), Failure> {
        let limit = endpoint.message_bytes_max();
        if self.bytes <= limit {
            Ok(())
        } else {
            Err(format!("-S {} is above the path MTU, {limit}", self.bytes).into())
        }
    }

    fn send(&self, endpoint: &mut Datagram, to: &Peer) -> Result<(), Failure> {
        let imm = Some(endpoint.qp().get());
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
        if endpoint.drain(self.left()?)? {
            Ok(())
        } else {
            Err("the device did not take every message".into())
        }
    }
}

fn serve(local: SocketAddr, job: &Job) -> Result<(), Failure> {
    let mut endpoint = Datagram::bind(local, &job.config()?)?;
    job.check(&endpoint)?;
    let address = endpoint.listen(PORT, job.connections)?;
    println!("serving on {address} with queue pair {}", endpoint.qp());
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
            return Err(format!("a message of {bytes} bytes, wanted {}", job.bytes).into());
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

fn ask(local: Option<SocketAddr>, server: SocketAddr, job: &Job) -> Result<(), Failure> {
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
                return Err(wrong.into());
            }
            if came < job.count {
                endpoint.wait(job.left()?)?;
            }
        }
        println!("{}", endpoint.close(STEP));
    }
    Ok(())
}

fn run() -> Result<(), Failure> {
    let args = Args::read(USAGE, &[])?;
    let job = Job {
        connections: args.get("c", 1)?,
        count: args.get("C", 10)?,
        bytes: args.get("S", 100)?,
        deadline: Instant::now() + Duration::from_secs(args.get("t", 20)?),
    };
    let local = args.maybe::<IpAddr>("b")?.map(|ip| SocketAddr::new(ip, 0));
    match (args.maybe::<IpAddr>("s")?, local) {
        (Some(server), local) => ask(local, SocketAddr::new(server, PORT), &job),
        (None, Some(local)) => serve(local, &job),
        (None, None) => Err(format!("-b is missing\nusage: {USAGE}").into()),
    }
}

fn main() -> ExitCode {
    args::finish(run())
}
