//! R11: many clients at once. Each must end connected, refused with a reason, or at its own deadline.

use std::{collections::BTreeMap, sync::Barrier, time::Duration};

use anyhow::ensure;
use clap::Args;
use gimmal::Instant;
use gimmal_engine::{
    Acceptor, App, Config, Idle, Io, Message, OpenError, Workers,
    transport::{Address, ConnId, ConnectError, Port, Provider as _, any::Any},
};

/// How many, and how long each may take.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where.
    #[arg(long)]
    address: String,
    /// Clients at once.
    #[arg(long, default_value_t = 200)]
    clients: usize,
    /// Each client's own deadline, s.
    #[arg(long, default_value_t = 60)]
    deadline_s: u64,
    /// At least so many percent must be connected.
    #[arg(long, default_value_t = 99)]
    connected_percent: usize,
}

/// Has nothing to say.
#[derive(Debug)]
struct Mute;

impl App for Mute {
    type Command = ();

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
}

/// Small rings: a thousand of them, twice, in one process.
fn config(options: &Options) -> Config {
    let mut config = Config { idle: Idle::Event, heartbeat_ms: 60_000, ..Config::default() };
    config.port.ring_bytes = 4 << 10;
    config.port.slot_bytes = 256;
    config.port.arrivals = 4;
    config.port.sends = 8;
    config.port.signal_interval = 2;
    config.port.initiator_depth = 1;
    config.port.responder_resources = 1;
    config.port.connections = 4096;
    config.inbox = 4096;
    config.connect.connect_timeout = Duration::from_secs(options.deadline_s);
    config.connect.handshake_timeout = Duration::from_secs(options.deadline_s);
    config.listen.handshake_timeout = Duration::from_secs(options.deadline_s);
    config.listen.backlog = 1024;
    config
}

/// Both ends of a connection are in this process.
fn raise_limits() -> anyhow::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted)?;
    Ok(())
}

/// Connects them all.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    raise_limits()?;
    let provider = Any::new();
    let plan = config(options).validate()?;
    let address: Address = options.address.parse()?;
    let servers = Workers::spawn(&provider, &plan, |_| Mute)?;
    let listener = provider.listen(&address, &plan.config().listen)?;
    let acceptor = Acceptor::spawn(listener, servers.handles().to_vec())?;
    let clients = Workers::spawn(&provider, &plan, |_| Mute)?;
    let (target, handle) = (acceptor.address().clone(), clients.handles()[0].clone());
    let start = Barrier::new(options.clients);
    let started = Instant::now();
    let outcomes: Vec<(Duration, Result<(), OpenError>)> = std::thread::scope(|scope| {
        let attempts: Vec<_> = (0..options.clients)
            .filter_map(|_| {
                let (start, handle, target) = (&start, handle.clone(), &target);
                let attempt = move || {
                    start.wait();
                    let began = Instant::now();
                    let outcome = handle.connect(target).map(|_| ());
                    (began.elapsed(), outcome)
                };
                std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, attempt).ok()
            })
            .collect();
        attempts.into_iter().filter_map(|attempt| attempt.join().ok()).collect()
    });
    report(options, &outcomes, started.elapsed())?;
    println!("accepted {}, refused {}", acceptor.accepted(), acceptor.rejections().count());
    drop(acceptor);
    clients.shutdown(Duration::from_secs(10));
    servers.shutdown(Duration::from_secs(10));
    Ok(())
}

fn report(
    options: &Options,
    outcomes: &[(Duration, Result<(), OpenError>)],
    took: Duration,
) -> anyhow::Result<()> {
    ensure!(
        outcomes.len() == options.clients,
        "only {} of {} clients ended",
        outcomes.len(),
        options.clients
    );
    let deadline = Duration::from_secs(options.deadline_s);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for (elapsed, outcome) in outcomes {
        // Whatever came of it came by the deadlines of its two steps.
        ensure!(
            *elapsed <= deadline.saturating_mul(2).saturating_add(Duration::from_secs(1)),
            "a client ended only after {elapsed:?}"
        );
        let kind = match outcome {
            Ok(()) => "connected".to_owned(),
            Err(OpenError::Connect(ConnectError::Timeout { .. })) => "at its deadline".to_owned(),
            Err(error) => format!("refused: {error}"),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    for (kind, count) in &kinds {
        println!("{count:5} {kind}");
    }
    let longest = outcomes.iter().map(|(elapsed, _)| *elapsed).max().unwrap_or_default();
    println!("{} clients in {took:?}, the slowest in {longest:?}", options.clients);
    let connected = kinds.get("connected").copied().unwrap_or(0);
    ensure!(
        connected * 100 >= options.clients * options.connected_percent,
        "only {connected} of {} are connected",
        options.clients
    );
    Ok(())
}
