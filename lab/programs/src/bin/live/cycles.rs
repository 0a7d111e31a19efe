//! Connections made and ended by the thousand: what one costs beside rdma-core's `cmtime`, and that nothing is left.
//!
//! As `cmtime`: so many at once, the server is another process, the time of all from the first call to the last
//! destruction, for each connection. Ours also exchanges hellos and grants, says goodbye, waits for the answer, and
//! registers two rings.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::Args;
use gimmal::Instant;
use gimmal_engine::{
    Acceptor, App, Config, Idle, Inline, Io, Message, Plan, Workers,
    transport::{Address, CloseReason, ConnId, Connecting as _, Negotiated, Port, Provider as _, any::Any},
};
use gimmal_rdma::verbs::registrations;

/// How many.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the server listens.
    #[arg(long)]
    address: String,
    /// Connections at once.
    #[arg(long, default_value_t = 10)]
    in_flight: usize,
    /// Measured rounds of so many; the median is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Instead of measuring: make and end so many in all, and look for what is left.
    #[arg(long)]
    total: Option<usize>,
    /// Be the server.
    #[arg(long, hide = true)]
    serve: bool,
}

/// Rounds before those that are measured.
const WARM_UPS: usize = 10;
const LIMIT: Duration = Duration::from_secs(20);

/// Counts.
#[derive(Debug, Default)]
struct Counter {
    conns: Vec<ConnId>,
    closed: usize,
    failed: Vec<CloseReason>,
}

impl App for Counter {
    type Command = ();

    fn opened<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.conns.push(conn);
    }
    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        self.conns.retain(|open| *open != conn);
        self.closed += 1;
        if !matches!(reason, CloseReason::Local | CloseReason::Peer) {
            self.failed.push(reason.clone());
        }
    }
}

/// Queues as small as they may be; `cmtime` has one entry.
fn plan() -> anyhow::Result<Plan> {
    let mut config = Config { idle: Idle::Event, ..Config::default() };
    config.port.ring_bytes = 4 << 10;
    config.port.slot_bytes = 256;
    config.port.arrivals = 4;
    config.port.sends = 4;
    config.port.signal_interval = 1;
    config.port.inline_bytes = 64;
    config.port.initiator_depth = 1;
    config.port.responder_resources = 1;
    config.connect.connect_timeout = LIMIT;
    config.connect.handshake_timeout = LIMIT;
    config.listen.handshake_timeout = LIMIT;
    config.listen.backlog = 1024;
    Ok(config.validate()?)
}

fn serve(options: &Options) -> anyhow::Result<()> {
    let (provider, plan) = (Any::new(), plan()?);
    let workers = Workers::spawn(&provider, &plan, |_| Counter::default())?;
    let listener = provider.listen(&options.address.parse::<Address>()?, &plan.config().listen)?;
    let acceptor = Acceptor::spawn(listener, workers.handles().to_vec())?;
    println!("{}", acceptor.address());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    drop(acceptor);
    ensure!(workers.shutdown(Duration::from_secs(5)), "the server's worker did not end");
    Ok(())
}

/// The server's process; killed on every way out.
struct Server(Child);

impl Server {
    fn start(options: &Options) -> anyhow::Result<(Self, Address)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["cycles", "--serve", "--address", &options.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("its output")?;
        let server = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse().with_context(|| format!("the server said {line:?}"))?;
        Ok((server, address))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where the time of a round went.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// Without what registering took.
    connect: Duration,
    registering: Duration,
    open: Duration,
    close: Duration,
}

impl Times {
    fn sum(&self) -> Duration {
        [self.connect, self.registering, self.open, self.close].into_iter().sum()
    }
}

fn turn_until(
    inline: &mut Inline<Any, Counter>,
    what: &str,
    done: impl Fn(&Counter) -> bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while !done(inline.app()) {
        inline.idle(Duration::from_millis(1));
        ensure!(started.elapsed() < LIMIT, "{what}: {:?}", inline.app());
    }
    Ok(())
}

/// Makes and ends `count` connections, all at once.
fn round(
    inline: &mut Inline<Any, Counter>,
    provider: &Any,
    address: &Address,
    count: usize,
) -> anyhow::Result<Times> {
    let handle = inline.handle();
    let before = registrations().1;
    let mut times = Times::default();
    inline.app_mut().closed = 0;
    let started = Instant::now();
    let attempts: Vec<_> = (0..count)
        .map(|_| provider.connect(address, handle.gate(), handle.connect_options()))
        .collect::<Result<_, _>>()?;
    for mut attempt in attempts {
        let link = attempt.poll(LIMIT).context("no outcome in time")??;
        inline.adopt(link);
    }
    times.registering = registrations().1.saturating_sub(before);
    times.connect = started.elapsed().saturating_sub(times.registering);
    let started = Instant::now();
    turn_until(inline, "not all opened", |app| app.conns.len() == count)?;
    times.open = started.elapsed();
    let started = Instant::now();
    let conns = inline.app().conns.clone();
    inline.with(|_, io| conns.iter().for_each(|conn| io.close(*conn)));
    turn_until(inline, "not all closed", |app| app.closed == count)?;
    times.close = started.elapsed();
    ensure!(inline.app().failed.is_empty(), "connections failed: {:?}", inline.app().failed);
    Ok(times)
}

/// The command of either side.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.serve {
        return serve(options);
    }
    let (server, address) = Server::start(options)?;
    let provider = Any::new();
    let mut inline = Inline::new(&provider, &plan()?, Counter::default())?;
    for _ in 0..WARM_UPS {
        round(&mut inline, &provider, &address, options.in_flight)?;
    }
    match options.total {
        None => measure(options, &mut inline, &provider, &address)?,
        Some(total) => leaves_nothing(options, &server, &mut inline, &provider, &address, total)?,
    }
    drop(inline);
    drop(server);
    Ok(())
}

fn measure(
    options: &Options,
    inline: &mut Inline<Any, Counter>,
    provider: &Any,
    address: &Address,
) -> anyhow::Result<()> {
    let each = |time: Duration| time.as_secs_f64() * 1e6 / options.in_flight as f64;
    let before = registrations().0;
    let mut rounds = (0..options.rounds)
        .map(|_| round(inline, provider, address, options.in_flight))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let registered = (registrations().0 - before) as f64 / (options.rounds * options.in_flight) as f64;
    rounds.sort_by_key(Times::sum);
    let median = rounds[rounds.len() / 2];
    println!(
        "{} in flight, {WARM_UPS} warm-ups, median of {} rounds, us for each connection",
        options.in_flight, options.rounds
    );
    println!("  connect (address, route, queue pair, both hellos)  {:10.0}", each(median.connect));
    println!(
        "  registering memory at this end, {registered:.0} times            {:10.0}",
        each(median.registering)
    );
    println!("  open (both grants)                                 {:10.0}", each(median.open));
    println!("  close (goodbye, its answer, disconnect, destroy)   {:10.0}", each(median.close));
    println!("  sum                                                {:10.0}", each(median.sum()));
    Ok(())
}

/// What a process and the devices hold.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    ours: usize,
    servers: usize,
    resources: String,
}

fn held(server: u32) -> anyhow::Result<Held> {
    let count = |process: &str| Ok::<_, anyhow::Error>(fs::read_dir(format!("/proc/{process}/fd"))?.count());
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let resources =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    Ok(Held { ours: count("self")?, servers: count(&server.to_string())?, resources })
}

/// What is held once it is what is `wanted`, or what was held a moment before; or, when that never comes, at last.
fn settled(inline: &mut Inline<Any, Counter>, server: u32, wanted: Option<&Held>) -> anyhow::Result<Held> {
    let until = Instant::now() + LIMIT;
    let mut last = held(server)?;
    loop {
        let look = Instant::now() + Duration::from_millis(700);
        while Instant::now() < look {
            inline.idle(Duration::from_millis(10));
        }
        let now = held(server)?;
        if now == *wanted.unwrap_or(&last) || Instant::now() > until {
            return Ok(now);
        }
        last = now;
    }
}

fn leaves_nothing(
    options: &Options,
    server: &Server,
    inline: &mut Inline<Any, Counter>,
    provider: &Any,
    address: &Address,
    total: usize,
) -> anyhow::Result<()> {
    // What a round left may not have come back to the pool of rings when the next one takes from it: the pool holds
    // twice as many from here on, and what is counted need not grow.
    round(inline, provider, address, 2 * options.in_flight)?;
    let before = settled(inline, server.0.id(), None)?;
    let started = Instant::now();
    let mut made = 0;
    while made < total {
        let count = options.in_flight.min(total - made);
        round(inline, provider, address, count)?;
        made += count;
    }
    let took = started.elapsed();
    let after = settled(inline, server.0.id(), Some(&before))?;
    println!("{total} connections, {} at once, in {took:?}", options.in_flight);
    println!("before: {before:?}");
    println!("after:  {after:?}");
    ensure!(before == after, "something was left");
    Ok(())
}
