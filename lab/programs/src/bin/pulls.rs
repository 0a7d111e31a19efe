//! Bulk over a network: what the granted READ depth is worth, what small messages feel of a large transfer, and whether
//! transfers are fair to each other.
//!
//! ```text
//! pulls serve  --address rdma://10.0.0.1:7900 --seconds 60
//! pulls depth  --address rdma://10.0.0.1:7900 --bytes 1000000 --piece 8192 --times 5     16 deep against 1
//! pulls beside --address rdma://10.0.0.1:7900 --bytes 67108864                           p99 of 64 B echoes, alone and beside
//!              [--short]                                   and whether echoes shorten the READs, as they must over rxe
//! pulls fair   --address rdma://10.0.0.1:7900 --bytes 4000000                            four at once, with echoes
//! ```
//! Exit code 0 when what was asked for is what was seen.

#![forbid(unsafe_code)]

use std::{error::Error, time::Duration};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, RemoteBulk, SendError,
    transport::{
        Address, Bulk, BulkError, CloseReason, ConnId, Gate as _, Instant, ListenOptions, Negotiated, Port,
        PortConfig, PortCounters, Provider as _,
        any::{Any, AnyGate},
    },
};

const ECHO: u16 = 0;
const LEND: u16 = 1;
const ECHO_BYTES: usize = 64;
/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(150);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The server echoes and lends; the client counts.
#[derive(Debug, Default)]
struct Node {
    gate: Option<AnyGate>,
    is_client: bool,
    conn: Option<ConnId>,
    echoes: u64,
    /// Offers that came, and how many are pulled at once.
    offers: Vec<RemoteBulk>,
    wanted: usize,
    /// When each pull began and ended, by its token.
    pulls: Vec<(Instant, Option<Instant>)>,
    failed: Option<String>,
}

impl Node {
    fn lend<P: Port>(&self, io: &mut Io<'_, P>, conn: ConnId, head: Head) {
        let bytes = usize::try_from(head.aux).unwrap_or(usize::MAX);
        let Some(Ok(mut loan)) = self.gate.as_ref().map(|gate| gate.allocate(conn, bytes)) else { return };
        if let Some(last) = loan.last_mut() {
            *last = 7;
        }
        if let Err(refused) = io.send_with_loan(conn, head, loan, 0, |_| Some(0)) {
            println!("not lent: {}", refused.error);
        }
    }

    fn pull_all<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        for bulk in std::mem::take(&mut self.offers) {
            self.pulls.push((Instant::now(), None));
            if let Err((error, _)) = io.pull(conn, bulk, self.pulls.len() as u64 - 1) {
                self.failed = Some(error.to_string());
            }
        }
    }
}

impl App for Node {
    type Command = ();

    fn opened<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.conn = Some(conn);
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        match (self.is_client, message.bulk) {
            (true, Some(bulk)) => {
                self.offers.push(bulk);
                if self.offers.len() == self.wanted {
                    self.pull_all(io, conn);
                }
            }
            (true, None) => self.echoes += 1,
            (false, _) if message.head.kind == LEND => self.lend(io, conn, message.head),
            // One echo at a time: there is room.
            (false, _) => drop(io.send(conn, message.head, ECHO_BYTES, |_| Some(ECHO_BYTES))),
        }
    }

    fn pulled<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, token: u64, result: Result<Bulk, BulkError>) {
        match result {
            Ok(bulk) if bulk.last() == Some(&7) => {
                if let Some(pull) = usize::try_from(token).ok().and_then(|token| self.pulls.get_mut(token)) {
                    pull.1 = Some(Instant::now());
                }
            }
            other => self.failed = Some(format!("pull: {other:?}")),
        }
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        if self.is_client {
            self.failed = Some(format!("closed: {reason}"));
        }
    }
}

fn config(depth: u8, piece: u32) -> Config {
    let port = PortConfig { initiator_depth: depth, bulk_piece_bytes: piece, ..PortConfig::default() };
    // Nobody is given up while an emulated host is busy with its transfers.
    Config { port, idle: Idle::Adaptive { spin_us: 50 }, heartbeat_ms: 0, ..Config::default() }
}

fn serve(address: &Address, time: Duration) -> Outcome {
    let provider = Any::new();
    let mut server = Inline::new(&provider, &config(16, 64 << 10).validate()?, Node::default())?;
    server.app_mut().gate = Some(server.handle().gate().clone());
    let listener = provider.listen(address, &ListenOptions::default())?;
    let _acceptor = Acceptor::spawn(listener, vec![server.handle()])?;
    let until = Instant::now() + time;
    while Instant::now() < until {
        server.idle(Duration::from_millis(20));
    }
    Ok(())
}

struct Client {
    inline: Inline<Any, Node>,
    conn: ConnId,
    granted: u64,
    until: Instant,
}

impl Client {
    fn connect(address: &Address, depth: u8, piece: u32) -> Outcome<Self> {
        let node = Node { is_client: true, ..Node::default() };
        let mut inline = Inline::new(&Any::new(), &config(depth, piece).validate()?, node)?;
        let start = Instant::now();
        // The server may still be on its way.
        let (conn, negotiated) = loop {
            match inline.connect(address) {
                Ok(connected) => break connected,
                Err(error) if start.elapsed() > Duration::from_secs(30) => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(300)),
            }
        };
        let granted = negotiated.initiator_depth.granted.into();
        Ok(Self { inline, conn, granted, until: Instant::now() + LIMIT })
    }

    fn send(&mut self, kind: u16, aux: u64, bytes: usize) -> Result<(), SendError> {
        let conn = self.conn;
        self.inline.with(|_, io| io.send(conn, Head { kind, aux }, bytes, |_| Some(bytes)))
    }

    fn wait(&mut self, done: impl Fn(&Node) -> bool) -> Outcome {
        while !done(self.inline.app()) {
            if let Some(failed) = self.inline.app_mut().failed.take() {
                return Err(failed.into());
            }
            if Instant::now() > self.until {
                return Err("not done in time".into());
            }
            self.inline.idle(Duration::from_millis(20));
        }
        Ok(())
    }

    fn counters(&mut self) -> PortCounters {
        let conn = self.conn;
        self.inline.with(|_, io| io.port_counters(conn))
    }

    /// Pulls `bytes` `count` times at once, with echoes beside it: times from the first pull's begin to each end, and
    /// the echoes' round trips. Without pulls, echoes alone.
    fn pull(
        &mut self,
        bytes: u64,
        count: usize,
        echoes_min: usize,
    ) -> Outcome<(Vec<Duration>, Vec<Duration>)> {
        self.inline.app_mut().pulls.clear();
        self.inline.app_mut().wanted = count;
        for _ in 0..count {
            self.send(LEND, bytes, 0)?;
        }
        let mut trips = Vec::new();
        let all = move |node: &Node| node.pulls.iter().filter(|(_, end)| end.is_some()).count() == count;
        if count > 0 {
            self.wait(|node| !node.pulls.is_empty())?;
        }
        while !all(self.inline.app()) || trips.len() < echoes_min {
            if echoes_min == 0 {
                self.wait(all)?;
                break;
            }
            let (start, seen) = (Instant::now(), self.inline.app().echoes);
            self.send(ECHO, 0, ECHO_BYTES)?;
            self.wait(|node| node.echoes > seen)?;
            trips.push(start.elapsed());
        }
        let pulls = &self.inline.app().pulls;
        let begin = pulls.iter().map(|(begin, _)| *begin).min();
        let ends = pulls.iter().filter_map(|(_, end)| Some((*end)? - begin?)).collect();
        Ok((ends, trips))
    }
}

/// The median time of `times` pulls, and the most READs in flight.
fn measure(address: &Address, depth: u8, piece: u32, bytes: u64, times: usize) -> Outcome<Duration> {
    let mut client = Client::connect(address, depth, piece)?;
    let mut took = Vec::new();
    for _ in 0..times {
        took.push(client.pull(bytes, 1, 0)?.0.first().copied().ok_or("no pull")?);
    }
    took.sort_unstable();
    let (median, peak) = (took[took.len() / 2], client.counters().reads_peak);
    println!(
        "depth {depth}, granted {}: at most {peak} READs in flight, {bytes} bytes in {median:.1?} ({took:.1?})",
        client.granted
    );
    if peak != client.granted {
        return Err(format!("{peak} READs in flight, {} granted", client.granted).into());
    }
    client.inline.close(Duration::from_secs(2));
    Ok(median)
}

fn depth(address: &Address, bytes: u64, piece: u32, times: usize) -> Outcome {
    // A busy host slows down the fast one most.
    for _ in 0..3 {
        let one = measure(address, 1, piece, bytes, times)?;
        let sixteen = measure(address, 16, piece, bytes, times)?;
        let ratio = one.as_secs_f64() / sixteen.as_secs_f64();
        println!("16 deep is {ratio:.1} x as fast as 1 deep, wanted 5 x");
        if ratio >= 5.0 {
            return Ok(());
        }
    }
    Err("less than 5 x, three times".into())
}

fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn print(what: &str, mut trips: Vec<Duration>) {
    trips.sort_unstable();
    let (p50, p99, count) = (quantile(&trips, 50), quantile(&trips, 99), trips.len());
    println!("64 B echo {what}: p50 {p50:.1?}, p99 {p99:.1?} of {count}");
}

/// With `is_short`, fails unless echoes shorten the READs: where a post moves the bytes itself.
fn beside(address: &Address, bytes: u64, is_short: bool) -> Outcome {
    let mut client = Client::connect(address, 16, PortConfig::default().bulk_piece_bytes)?;
    print("alone", client.pull(0, 0, 500)?.1);
    let (ends, _) = client.pull(bytes, 1, 0)?;
    let alone = client.counters().reads;
    println!("{bytes} bytes pulled alone in {:.1?}, {alone} READs", ends.first().ok_or("no pull")?);
    let (ends, trips) = client.pull(bytes, 1, 1)?;
    let beside = client.counters().reads - alone;
    println!("{bytes} bytes pulled beside echoes in {:.1?}, {beside} READs", ends.first().ok_or("no pull")?);
    print("beside it", trips);
    client.inline.close(Duration::from_secs(2));
    if is_short && beside < 3 * alone {
        return Err("echoes did not shorten the READs beside them".into());
    }
    Ok(())
}

fn fair(address: &Address, bytes: u64) -> Outcome {
    // Held up in the middle of a turn, one looks as if it was served before the others.
    for _ in 0..3 {
        if is_fair(address, bytes)? {
            return Ok(());
        }
    }
    Err("one was served before the others, three times".into())
}

/// Whether four pulls at once end at nearly the same time.
fn is_fair(address: &Address, bytes: u64) -> Outcome<bool> {
    let mut client = Client::connect(address, 16, PortConfig::default().bulk_piece_bytes)?;
    let (mut ends, trips) = client.pull(bytes, 4, 1)?;
    ends.sort_unstable();
    println!("four times {bytes} bytes at once ended after {ends:.1?}");
    print("beside them", trips);
    let reads = client.counters().reads;
    client.inline.close(Duration::from_secs(2));
    if reads == 0 {
        println!("read in place: nothing to share");
        return Ok(true);
    }
    // In turn, piece by piece: the first to end has all the others nearly done.
    let (first, last) = ends.first().zip(ends.last()).ok_or("no pull")?;
    Ok(first.as_nanos() * 4 >= last.as_nanos() * 3)
}

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let number = |name: &str, default: u64| value(name).map_or(Ok(default), |text| text.parse());
    let address: Address = value("--address").ok_or("--address is missing")?.parse()?;
    match args.first().map(String::as_str) {
        Some("serve") => serve(&address, Duration::from_secs(number("--seconds", 60)?)),
        Some("depth") => {
            let piece = u32::try_from(number("--piece", 8192)?)?;
            depth(&address, number("--bytes", 1_000_000)?, piece, usize::try_from(number("--times", 5)?)?)
        }
        Some("beside") => {
            beside(&address, number("--bytes", 64 << 20)?, args.iter().any(|arg| arg == "--short"))
        }
        Some("fair") => fair(&address, number("--bytes", 4_000_000)?),
        _ => Err("serve, depth, beside or fair?".into()),
    }
}
