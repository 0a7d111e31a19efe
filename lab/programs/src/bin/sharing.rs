//! Many connections whose receives are shared: what an idle one costs, and that a greedy one starves nobody.
//!
//! `sharing --address rdma://10.0.0.1:0 [--connections 1000] [--greedy 2000]`
//!
//! Both ends are in this process, one worker each. Exit code 0 when an idle connection took no more than the plan's
//! sum at
//! each end, every echo came back, and the device's RNR counters stood still.

#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    error::Error,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use clap::Parser;
use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, Plan, SendError, WorkerHandle,
    transport::{
        Address, CloseReason, ConnId, ConnectOptions, Gate, Instant, ListenOptions, Listener as _, Port,
        PortConfig, Provider, Receives, any::Any,
    },
};

/// Bytes of an idle connection at each end, at most.
const IDLE_BYTES_MAX: u64 = 16 << 10;
/// Connections that ask beside the greedy one.
const QUIET: usize = 50;
/// Echoes of each of them.
const QUIET_ECHOES: u64 = 20;
/// Chains that each connection tries to send to a server that does not look: what it is guaranteed.
const BURST: u64 = 2;
/// Bursts, at most, until the queue runs low: who was not told yet that a receive of its own is free again sends
/// less, and one
/// burst in ten was too small.
const BURSTS: usize = 6;
/// Echoes that the greedy one has in flight.
const WINDOW: u64 = 128;

/// Echoes, and counts the echoes on each connection.
#[derive(Debug, Default)]
struct Node {
    is_client: bool,
    returned: HashMap<ConnId, u64>,
    waiting: Vec<(ConnId, Head)>,
    closed: Vec<CloseReason>,
}

impl Node {
    fn returned(&self, conn: ConnId) -> u64 {
        self.returned.get(&conn).copied().unwrap_or(0)
    }
}

impl App for Node {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        if self.is_client {
            *self.returned.entry(conn).or_default() += 1;
        } else if io.send(conn, message.head, 64, |_| Some(64)) == Err(SendError::Blocked) {
            self.waiting.push((conn, message.head));
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, ready: ConnId) {
        self.waiting.retain(|&(conn, head)| {
            conn != ready || io.send(conn, head, 64, |_| Some(64)) == Err(SendError::Blocked)
        });
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        self.closed.push(reason.clone());
    }
}

/// The sum of the device's RNR counters; `None` where it has none.
fn rnr(device: &str) -> Option<u64> {
    let folder = format!("/sys/class/infiniband/{}/ports/1/hw_counters", device.split(' ').next()?);
    let counters = fs::read_dir(folder)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("rnr"));
    Some(counters.filter_map(|entry| fs::read_to_string(entry.path()).ok()?.trim().parse::<u64>().ok()).sum())
}

/// A line of a file of `/proc` that counts KiB.
fn kib(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// What this process holds, and what the kernel does besides, KiB. The queues of software devices are the kernel's
/// memory,
/// mapped here, so they are in both; what is left over of the kernel's is an estimate.
fn memory() -> (u64, u64) {
    let kernel = ["Slab:", "VmallocUsed:", "KernelStack:", "PageTables:"];
    let ours = kib("/proc/self/smaps_rollup", "Anonymous:") + kib("/proc/self/status", "RssShmem:");
    (ours, kernel.iter().map(|name| kib("/proc/meminfo", name)).sum())
}

type Client = Inline<Any, Node>;

/// One echo on each of `conns`, all at once.
fn echo_all(client: &mut Client, conns: &[ConnId]) -> Result<(), Box<dyn Error>> {
    let before: Vec<u64> = conns.iter().map(|&conn| client.app().returned(conn)).collect();
    for &conn in conns {
        while client.with(|_, io| io.send(conn, Head { kind: 0, aux: 0 }, 64, |_| Some(64)))
            == Err(SendError::Blocked)
        {
            client.turn();
        }
    }
    let until = Instant::now() + Duration::from_secs(60);
    while conns.iter().zip(&before).any(|(&conn, &before)| client.app().returned(conn) <= before) {
        client.idle(Duration::from_millis(5));
        if Instant::now() > until || !client.app().closed.is_empty() {
            return Err(format!("echoes are missing; closed: {:?}", client.app().closed).into());
        }
    }
    Ok(())
}

/// Every connection uses up what it may while the server sleeps: the device says that its queue runs low. How many
/// chains
/// there were, and how often it did.
fn burst<G: Gate>(
    client: &mut Client,
    conns: &[ConnId],
    gate: &G,
    asleep: &AtomicBool,
) -> Result<(u64, u64), Box<dyn Error>> {
    asleep.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    let returned = |client: &Client| client.app().returned.values().sum::<u64>();
    let before = returned(client);
    let mut wanted = 0;
    for _ in 0..BURST {
        for &conn in conns {
            match client.with(|_, io| io.send(conn, Head { kind: 0, aux: 0 }, 64, |_| Some(64))) {
                Ok(()) => wanted += 1,
                Err(SendError::Blocked) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    let events = gate.shared_receives().first().map_or(0, |state| state.limit_events);
    asleep.store(false, Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(60);
    while returned(client) - before < wanted {
        client.idle(Duration::from_millis(5));
        if Instant::now() > until || !client.app().closed.is_empty() {
            return Err(format!("echoes of the burst are missing; closed: {:?}", client.app().closed).into());
        }
    }
    Ok((wanted, events))
}

/// One connection asks for as much as it can while others ask for little: how long each took.
fn greedy_and_quiet(
    client: &mut Client,
    conns: &[ConnId],
    greedy_count: u64,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let (greedy, quiet) = (conns[0], &conns[1..=QUIET.min(conns.len() - 1)]);
    let greedy_before = client.app().returned(greedy);
    let before: Vec<u64> = quiet.iter().map(|&conn| client.app().returned(conn)).collect();
    let (mut sent, mut asked) = (0, vec![0_u64; quiet.len()]);
    let (started, mut quiet_took) = (Instant::now(), None);
    loop {
        let returned = client.app().returned(greedy) - greedy_before;
        while sent < greedy_count && sent - returned < WINDOW {
            // A turn for each, so that each is a chain and uses up a receive.
            if client.with(|_, io| io.send(greedy, Head { kind: 0, aux: sent }, 64, |_| Some(64))).is_err() {
                break;
            }
            sent += 1;
        }
        for (at, &conn) in quiet.iter().enumerate() {
            let back = client.app().returned(conn) - before[at];
            if asked[at] == back && back < QUIET_ECHOES {
                let sent = client.with(|_, io| io.send(conn, Head { kind: 0, aux: 0 }, 64, |_| Some(64)));
                asked[at] += u64::from(sent.is_ok());
            }
        }
        let done = (0..quiet.len()).all(|at| client.app().returned(quiet[at]) - before[at] >= QUIET_ECHOES);
        if done && quiet_took.is_none() {
            quiet_took = Some(started.elapsed());
        }
        if let Some(quiet_took) = quiet_took.filter(|_| returned >= greedy_count) {
            return Ok((started.elapsed(), quiet_took));
        }
        if started.elapsed() > Duration::from_secs(100) || !client.app().closed.is_empty() {
            return Err(format!("{returned} of {greedy_count}; closed: {:?}", client.app().closed).into());
        }
        client.idle(Duration::from_millis(2));
    }
}

/// What is asked of it.
#[derive(Debug, Parser)]
#[command(about)]
struct Args {
    /// Where the server listens.
    #[arg(long)]
    address: Address,
    /// Connections in all.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Echoes of the greedy one.
    #[arg(long, default_value_t = 2000)]
    greedy: u64,
}

/// The other end, on a thread of its own.
struct Server {
    handle: WorkerHandle<Any, Node>,
    asleep: Arc<AtomicBool>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(provider: Any, plan: Plan) -> Result<Self, Box<dyn Error>> {
        let (sender, receiver) = channel();
        let (stop, stopped) = channel::<()>();
        let asleep = Arc::new(AtomicBool::new(false));
        let sleeps = Arc::clone(&asleep);
        let thread = std::thread::spawn(move || {
            let Ok(mut server) = Inline::new(&provider, &plan, Node::default()) else { return };
            let _ = sender.send(server.handle());
            while stopped.try_recv().is_err() {
                if sleeps.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                while server.turn() > 0 {}
                server.idle(Duration::from_millis(1));
            }
            server.close(Duration::from_secs(1));
        });
        Ok(Self { handle: receiver.recv()?, asleep, stop, thread })
    }

    fn end(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// Connects until there are `count`; what an idle one costs, bytes of this process at each end.
fn connect_all(
    client: &mut Client,
    conns: &mut Vec<ConnId>,
    count: usize,
    at: &Address,
) -> Result<u64, Box<dyn Error>> {
    echo_all(client, conns)?;
    let before = memory();
    let started = Instant::now();
    while conns.len() < count {
        conns.push(client.connect(at)?.0);
    }
    let connected = started.elapsed();
    let idle = memory();
    echo_all(client, conns)?;
    let made = u64::try_from(count - 1)?.max(1);
    let (ours, kernel) =
        ((idle.0 - before.0) * 1024 / made / 2, (idle.1.saturating_sub(before.1)) * 1024 / made / 2);
    println!(
        "{count} connections in {:.1} s; idle, each end: {ours} bytes of ours, wanted at most {IDLE_BYTES_MAX}; about {kernel} of the kernel's, its devices' queues among them",
        connected.as_secs_f64()
    );
    Ok(ours)
}

/// Bursts until the server's queue ran low; how often it did.
fn run_low(client: &mut Client, conns: &[ConnId], server: &Server) -> Result<u64, Box<dyn Error>> {
    let mut events = 0;
    for _ in 0..BURSTS {
        let chains;
        (chains, events) = burst(client, conns, server.handle.gate(), &server.asleep)?;
        println!("a burst of {chains} chains, the queue ran low {events} times");
        if events > 0 {
            break;
        }
    }
    for state in server.handle.gate().shared_receives() {
        println!("the server's {state:?}");
    }
    Ok(events)
}

fn main() -> Result<(), Box<dyn Error>> {
    let Args { address, connections: count, greedy } = Args::parse();
    let port = PortConfig { connections: u32::try_from(count)? + 8, ..PortConfig::default() };
    let connect = ConnectOptions { receives: Receives::Shared, ..ConnectOptions::default() };
    // A heartbeat within the measurement would be no rest: the pages that its frames touch come to some 600 bytes a connection.
    let plan =
        Config { port, connect, idle: Idle::Event, heartbeat_ms: 0, ..Config::default() }.validate()?;
    let provider = Any::new();
    let options = ListenOptions { receives: Receives::Shared, ..ListenOptions::default() };
    let listener = provider.listen(&address, &options)?;
    let at = listener.address();
    let server = Server::start(provider.clone(), plan.clone())?;
    let _acceptor = Acceptor::spawn(listener, vec![server.handle.clone()])?;

    let mut client = Inline::new(&provider, &plan, Node { is_client: true, ..Node::default() })?;
    let (first, negotiated) = client.connect(&at)?;
    if !(negotiated.rx_shared && negotiated.tx_shared) {
        return Err(format!("the receives are not shared:\n{negotiated}").into());
    }
    println!("{}", negotiated.device);
    let rnr_before = rnr(&negotiated.device);
    let mut conns = vec![first];
    let ours = connect_all(&mut client, &mut conns, count, &at)?;
    let (greedy_took, quiet_took) = greedy_and_quiet(&mut client, &conns, greedy)?;
    println!(
        "{greedy} echoes of a greedy connection in {:.2} s, {QUIET_ECHOES} of each of {QUIET} quiet ones beside it in {:.2} s",
        greedy_took.as_secs_f64(),
        quiet_took.as_secs_f64()
    );
    let events = run_low(&mut client, &conns, &server)?;
    let rnr_after = rnr(&negotiated.device);
    println!("RNR {rnr_before:?} -> {rnr_after:?}");
    client.close(Duration::from_secs(5));
    server.end();
    if rnr_before != rnr_after {
        return Err("a receive was missing".into());
    }
    if count >= 200 && events == 0 {
        return Err("the device never said that its queue ran low".into());
    }
    if count >= 100 && ours > IDLE_BYTES_MAX {
        return Err("an idle connection costs more than it should".into());
    }
    Ok(())
}
