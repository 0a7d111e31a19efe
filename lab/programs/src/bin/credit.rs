//! What credit is for: a window far above the posted receives, a receiver that sleeps, and the device's RNR counters.
//!
//! With credit they stay where they were; with `--no-credit` they move (or the connection breaks, where there is no
//! RNR), which shows that the first result means something. Exit code 0 when what was asked for is what was seen.
//!
//! `credit --address rdma://10.0.0.1:7500 [--no-credit] [--shared] [--count 20000]`; `--shared`: with shared receives, of which
//! the connection must have given up all but its guarantee a second later

#![forbid(unsafe_code)]

use std::{
    error::Error,
    fs,
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use clap::Parser;
use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, Plan, SendError, WorkerHandle,
    transport::{
        Address, CloseReason, ConnId, ConnectOptions, Gate as _, Instant, ListenOptions, Listener as _, Port,
        PortConfig, Provider, Receives, any::Any,
    },
};

const ARRIVALS: u16 = 16;
const WINDOW: u64 = 4 * ARRIVALS as u64;
/// An idle connection gives up what is not guaranteed within a quarter of it.
const HEARTBEAT_MS: u32 = 4000;

/// As long as that quarter.
const IDLE: Duration = Duration::from_secs(1);
/// A guest may be held up so long meanwhile.
const HELD_UP: Duration = Duration::from_secs(10);

/// Echoes; what does not fit waits in a bounded list.
#[derive(Debug, Default)]
struct Echo {
    returned: u64,
    closed: Option<CloseReason>,
    waiting: Vec<(ConnId, Head)>,
    is_client: bool,
}

impl App for Echo {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        if self.is_client {
            self.returned += 1;
        } else if io.send(conn, message.head, 64, |out| out.get_mut(..64).map(|_| 64))
            == Err(SendError::Blocked)
        {
            self.waiting.push((conn, message.head));
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId) {
        self.waiting.retain(|&(conn, head)| io.send(conn, head, 64, |_| Some(64)) == Err(SendError::Blocked));
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        self.closed = Some(reason.clone());
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

/// What is asked of it.
#[derive(Debug, Parser)]
#[command(about)]
struct Args {
    /// Where the server listens.
    #[arg(long)]
    address: Address,
    /// Echoes.
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// Send without credit.
    #[arg(long)]
    no_credit: bool,
    /// With shared receives.
    #[arg(long)]
    shared: bool,
}

impl Args {
    fn receives(&self) -> Receives {
        if self.shared { Receives::Shared } else { Receives::default() }
    }

    fn plan(&self) -> Result<Plan, Box<dyn Error>> {
        let port = PortConfig { arrivals: ARRIVALS, ..PortConfig::default() };
        let connect = ConnectOptions { receives: self.receives(), ..ConnectOptions::default() };
        let config =
            Config { port, connect, idle: Idle::Event, heartbeat_ms: HEARTBEAT_MS, ..Config::default() };
        Ok(Config { enforce_credit: !self.no_credit, ..config }.validate()?)
    }
}

/// The slow receiver: it looks once a millisecond, until `stopped` has a word.
fn serve(provider: &Any, plan: &Plan, ready: &Sender<WorkerHandle<Any, Echo>>, stopped: &Receiver<()>) {
    let Ok(mut server) = Inline::new(provider, plan, Echo::default()) else { return };
    let _ = ready.send(server.handle());
    while stopped.try_recv().is_err() {
        while server.turn() > 0 {}
        std::thread::sleep(Duration::from_millis(1));
    }
    server.close(Duration::from_secs(1));
}

/// Receives of the server's that are nobody's guarantee, and those of them that are promised to nobody.
fn common(handle: &WorkerHandle<Any, Echo>) -> (u32, u32) {
    handle.gate().shared_receives().first().map_or((0, 0), |state| (state.common, state.common_free))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let (count, credit, receives) = (args.count, !args.no_credit, args.receives());
    let plan = args.plan()?;
    let provider = Any::new();
    let listener = provider.listen(&args.address, &ListenOptions { receives, ..ListenOptions::default() })?;
    let at = listener.address();
    let (sender, receiver) = channel();
    let (stop, stopped) = channel::<()>();
    let (theirs, server_plan) = (provider.clone(), plan.clone());
    let server = std::thread::spawn(move || serve(&theirs, &server_plan, &sender, &stopped));
    let handle = receiver.recv()?;
    let _acceptor = Acceptor::spawn(listener, vec![handle.clone()])?;

    let mut client = Inline::new(&provider, &plan, Echo { is_client: true, ..Echo::default() })?;
    let (conn, negotiated) = client.connect(&at)?;
    let before = rnr(&negotiated.device);
    let started = Instant::now();
    let (mut sent, mut least) = (0, u32::MAX);
    while client.app().returned < count && client.app().closed.is_none() {
        while sent < count && sent - client.app().returned < WINDOW {
            let head = Head { kind: 0, aux: sent };
            // One turn for each, so that each is a chain of its own and uses up a receive.
            if client.with(|_, io| io.send(conn, head, 64, |_| Some(64))).is_err() {
                break;
            }
            sent += 1;
        }
        client.idle(Duration::from_millis(5));
        least = least.min(common(&handle).1);
        let moved = rnr(&negotiated.device) > before;
        if started.elapsed() > Duration::from_secs(240) || (!credit && moved) {
            break;
        }
    }
    let (after, took) = (rnr(&negotiated.device), started.elapsed());
    let Echo { returned, closed, .. } = client.app();
    println!(
        "{}: credit {}, {returned} echoes of {count} in {:.1} s, window {WINDOW}, receives {}, RNR {before:?} -> {after:?}, closed: {closed:?}",
        negotiated.device,
        if credit { "on" } else { "OFF" },
        took.as_secs_f64(),
        negotiated.rx_arrivals,
    );
    let fine = if credit {
        *returned == count && before == after
    } else {
        after > before || (after.is_none() && closed.is_some())
    };
    let kept = args.shared && keeps_much(&mut client, &handle, least);
    let _ = stop.send(());
    drop(client);
    let _ = server.join();
    if kept {
        return Err("an idle connection keeps what others could use".into());
    }
    if fine { Ok(()) } else { Err("that is not what credit promises".into()) }
}

/// Whether the connection has more than its guarantee after [`IDLE`] without messages, or never had it.
fn keeps_much(client: &mut Inline<Any, Echo>, handle: &WorkerHandle<Any, Echo>, least: u32) -> bool {
    let idle = Instant::now();
    let has_much = || {
        let (all, free) = common(handle);
        free + 2 < all
    };
    while idle.elapsed() < IDLE || (has_much() && idle.elapsed() < IDLE.saturating_add(HELD_UP)) {
        client.idle(Duration::from_millis(5));
    }
    let (all, free) = common(handle);
    println!(
        "shared receives: {all} in common, {least} left at the least, {free} after {:.1?} without messages",
        idle.elapsed()
    );
    least >= all || has_much()
}
