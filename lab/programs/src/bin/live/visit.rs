//! Two hosts on one network, and what becomes of a connection when the network, the other host or the other process
//! goes away. The client asks the server to do the harm to its own host, so no third party is needed.

use std::{
    process::Command,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use gimmal::{Client, Cx, Fate, Instant, Server};

use crate::{
    fates::Fates,
    patience::{LEAD, Patience, ask, connect, first_number, later},
    tally::{Book, TallyClient, serve_tally},
    weather::{Sky, serve_weather},
};

/// Harm to the server's own host.
#[gimmal::service]
pub(crate) trait Harm {
    /// Takes the network away for so many milliseconds, from shortly after the answer on: the link goes down, or all
    /// that is sent is lost on the way.
    async fn cut(&self, cx: &Cx, netdev: String, ms: u64, how: Cut);
    /// When the network came back, if it did.
    async fn back(&self, cx: &Cx) -> Option<Back>;
    /// How many milliseconds this process has been listening.
    async fn since_listening(&self, cx: &Cx) -> u64;
    /// Ends the process without a goodbye, shortly after the answer.
    async fn die(&self, cx: &Cx);
    /// Switches the host off, shortly after the answer.
    async fn power_off(&self, cx: &Cx);
    /// Never answers.
    async fn hang(&self, cx: &Cx);
}

/// How a network goes away. Not by `ip link set down`: that takes the route, rxe breaks every queue pair that sends
/// without one, the CM's own among them, and then nobody connects, rdma-core's rping neither, until the device is added
/// anew.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize, gimmal::Shape,
)]
pub(crate) enum Cut {
    /// The server's cable is pulled out: no carrier, and the port is down. Needs the lab's wire.
    Wire,
    /// Both hosts' packets are lost on the way; the ports stay up and no event tells.
    Loss,
    /// The server's packets are lost on the way, the client's arrive.
    OneWay,
}

/// How a network was away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, gimmal::Shape)]
pub(crate) struct Back {
    /// How long ago it came back.
    since_ms: u64,
    /// Whether the network device had no carrier meanwhile.
    carrier_lost: bool,
}

/// What emulated hosts that share a busy machine may be late by, beyond what is wanted.
const SLACK: Duration = Duration::from_secs(3);
/// Slack for a client that reconnects, which takes several attempts.
const BACK_SLACK: Duration = Duration::from_secs(8);

#[derive(Default, Clone)]
struct Harmer(Arc<Mutex<Option<(Instant, bool)>>>);

/// When this process began to listen.
static LISTENING: OnceLock<Instant> = OnceLock::new();

fn command(program: &str, arguments: &[&str]) {
    match Command::new(program).args(arguments).status() {
        Ok(status) if status.success() => println!("{program} {}", arguments.join(" ")),
        other => println!("{program} {}: {other:?}", arguments.join(" ")),
    }
}

/// The lab pulls out the cable, or puts it back, when it reads this.
fn wire(state: &str) {
    let outcome = std::env::var("GIMMAL_LAB_WIRE").map(|path| std::fs::write(path, state));
    println!("wire {state}: {outcome:?}");
}

/// Says whether the carrier was gone meanwhile.
fn cut_for(netdev: &str, span: Duration, how: Cut) -> bool {
    match how {
        Cut::Wire => wire("down"),
        Cut::Loss | Cut::OneWay => {
            command("tc", &["qdisc", "add", "dev", netdev, "root", "netem", "loss", "100%"])
        }
    }
    std::thread::sleep(span);
    let carrier = std::fs::read_to_string(format!("/sys/class/net/{netdev}/carrier"));
    match how {
        Cut::Wire => wire("up"),
        Cut::Loss | Cut::OneWay => command("tc", &["qdisc", "del", "dev", netdev, "root"]),
    }
    carrier.is_ok_and(|carrier| carrier.trim() == "0")
}

impl Harm for Harmer {
    async fn cut(&self, _: &Cx, netdev: String, ms: u64, how: Cut) {
        let up = Arc::clone(&self.0);
        *up.lock().unwrap_or_else(PoisonError::into_inner) = None;
        later(move || {
            let carrier_lost = cut_for(&netdev, Duration::from_millis(ms), how);
            *up.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), carrier_lost));
        });
    }

    async fn back(&self, _: &Cx) -> Option<Back> {
        let (up, carrier_lost) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(Back { since_ms: u64::try_from(up.elapsed().as_millis()).ok()?, carrier_lost })
    }

    async fn since_listening(&self, _: &Cx) -> u64 {
        let span = LISTENING.get().map_or(Duration::ZERO, |since| since.elapsed());
        u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
    }

    async fn die(&self, _: &Cx) {
        later(|| std::process::exit(0));
    }

    async fn power_off(&self, _: &Cx) {
        // At once and unsynced, as a cut cable would.
        later(|| {
            let _ = std::fs::write("/proc/sys/kernel/sysrq", "1");
            let _ = std::fs::write("/proc/sysrq-trigger", "o");
        });
    }

    async fn hang(&self, _: &Cx) {
        std::future::pending::<()>().await;
    }
}

/// The server.
#[derive(Debug, Args)]
pub(crate) struct HostOptions {
    /// Where.
    #[arg(long)]
    address: String,
    /// For how long, s.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    #[command(flatten)]
    patience: Patience,
}

/// Serves.
pub(crate) fn host(options: &HostOptions) -> anyhow::Result<()> {
    let server = Server::builder()
        .config(options.patience.config())
        .service(serve_tally(Book::default()))
        .service(serve_harm(Harmer::default()))
        .service(serve_weather(Sky))
        .listen(&options.address)?;
    let _ = LISTENING.set(Instant::now());
    println!("listening on {}", server.address());
    std::thread::sleep(Duration::from_secs(options.seconds));
    ensure!(server.shutdown(Duration::from_secs(2)), "calls were still running after 2 s");
    Ok(())
}

/// What happens, and so what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Event {
    /// The network is away for longer than is borne: reported dead, connected again soon after.
    Cut,
    /// The network is away for less than is borne: the same connection, nothing lost.
    Ride,
    /// The server's process ends and is started again by somebody.
    Restart,
    /// The server's host loses power: reported within the bound.
    PowerOff,
    /// Nothing: the server answers.
    Reach,
}

/// The client.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server.
    #[arg(long)]
    address: String,
    /// What the server is asked to do.
    #[arg(long)]
    event: Event,
    /// The server's network device.
    #[arg(long, default_value = "eth0")]
    netdev: String,
    /// How the network goes away.
    #[arg(long, default_value = "loss")]
    how: Cut,
    /// How long the network is away, ms.
    #[arg(long, default_value_t = 5000)]
    away_ms: u64,
    /// Wanted: connected again this long after the network is back, or the next server listens, ms.
    #[arg(long, default_value_t = 2000)]
    back_ms: u64,
    #[command(flatten)]
    patience: Patience,
}

/// What calls without pause met.
#[derive(Debug, Default)]
struct Met {
    fates: Fates,
    /// The longest time between two answers.
    gap: Duration,
    /// The first failure: when, after the last answer.
    first_failure: Option<(Duration, String)>,
}

/// Calls without pause until `stop`.
fn call_on(client: &TallyClient<Client>, stop: &AtomicBool) -> Met {
    let mut met = Met::default();
    let mut last = Instant::now();
    for number in first_number().. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match client.add(number).wait() {
            Ok(_) => {
                met.fates.answered.insert(number);
                met.gap = met.gap.max(last.elapsed());
                last = Instant::now();
            }
            Err(error) => {
                met.first_failure.get_or_insert_with(|| (last.elapsed(), error.to_string()));
                met.fates.failed(number, &error);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    met
}

/// Calls through an event and checks what became of each.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let client = connect(&options.address, &options.patience)?;
    println!(
        "connected to {} on {}",
        options.address,
        client.negotiated().context("it is connected")?.device
    );
    if options.event == Event::PowerOff {
        return power_off(options, &client);
    }
    let (tally, harm) = (TallyClient::new(client.clone()), HarmClient::new(client.clone()));
    let before = ask(|| tally.process().wait())?;
    if options.event == Event::Reach {
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let caller = {
        let (tally, stop) = (TallyClient::new(client.clone()), Arc::clone(&stop));
        std::thread::spawn(move || call_on(&tally, &stop))
    };
    std::thread::sleep(Duration::from_millis(300));
    harm_it(options, &harm)?;
    let harmed = Instant::now();
    let back = if options.event == Event::Restart {
        wait_for_restart(&tally, &harm, before, harmed)?
    } else {
        wait_for_network(options, &harm, harmed)?
    };
    // Traffic after it, too.
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    let met = caller.join().map_err(|_| anyhow::anyhow!("the caller panicked"))?;
    check(options, &client, &tally, &met, back)
}

/// Asks for the harm; a call that did not run is made again, and once one that a stall took the answer of.
fn harm_it(options: &Options, harm: &HarmClient<Client>) -> anyhow::Result<()> {
    let asked = Instant::now();
    let mut stalled = false;
    loop {
        let outcome = match options.event {
            Event::Restart => harm.die().wait(),
            Event::PowerOff => harm.power_off().wait(),
            Event::Cut | Event::Ride | Event::Reach => {
                harm.cut(options.netdev.clone(), options.away_ms, options.how).wait()
            }
        };
        match outcome {
            Ok(()) => break,
            Err(error) if error.fate() == Fate::NotRun && asked.elapsed() < Duration::from_secs(20) => {
                println!("asking again: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(error) if error.fate() == Fate::MaybeRan && !stalled => {
                println!("no answer: {error}");
                if options.event == Event::PowerOff {
                    break;
                }
                stalled = true;
            }
            Err(error) => anyhow::bail!("asking for harm: {error}"),
        }
    }
    if matches!(options.event, Event::Cut | Event::Ride) && options.how == Cut::Loss {
        // What we send is lost, too.
        let (netdev, span) = (options.netdev.clone(), Duration::from_millis(options.away_ms));
        later(move || _ = cut_for(&netdev, span, Cut::Loss));
    }
    Ok(())
}

/// How long after the next process began to listen we could ask it.
fn wait_for_restart(
    tally: &TallyClient<Client>,
    harm: &HarmClient<Client>,
    before: u32,
    harmed: Instant,
) -> anyhow::Result<Duration> {
    loop {
        match tally.process().wait() {
            Ok(now) if now != before => {
                println!(
                    "the next process answers {:?} after the end",
                    harmed.elapsed().saturating_sub(LEAD)
                );
                return Ok(Duration::from_millis(ask(|| harm.since_listening().wait())?));
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        ensure!(harmed.elapsed() < Duration::from_secs(30), "the restarted server was not reached");
    }
}

/// How long after the network was back we could ask for it.
fn wait_for_network(
    options: &Options,
    harm: &HarmClient<Client>,
    harmed: Instant,
) -> anyhow::Result<Duration> {
    loop {
        match harm.back().wait() {
            Ok(Some(back)) => {
                ensure!(back.carrier_lost == (options.how == Cut::Wire), "not injected as {:?}", options.how);
                return Ok(Duration::from_millis(back.since_ms));
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        ensure!(harmed.elapsed() < Duration::from_secs(60), "the server was not reached again");
    }
}

fn check(
    options: &Options,
    client: &Client,
    tally: &TallyClient<Client>,
    Met { fates, gap, first_failure }: &Met,
    back: Duration,
) -> anyhow::Result<()> {
    let reconnects = client.reconnects();
    println!(
        "{:?}: {fates}; {reconnects} reconnects, back after {back:?}; longest gap {gap:?}",
        options.event
    );
    if let Some((after, error)) = first_failure {
        println!("first failure {after:?} after the last answer: {error}");
    }
    if options.event == Event::Ride {
        ensure!(reconnects == 0, "it is not the same connection");
        ensure!(fates.not_run.is_empty() && fates.maybe_ran.is_empty(), "calls were lost");
        ensure!(*gap >= Duration::from_millis(options.away_ms * 9 / 10), "the network was never away");
        return Ok(());
    }
    ensure!(reconnects >= 1, "never reconnected: not injected");
    let wanted = Duration::from_millis(options.back_ms);
    println!("back after {back:?}, wanted {wanted:?}");
    ensure!(back <= wanted.saturating_add(BACK_SLACK), "reconnected only after {back:?}");
    if options.event == Event::Restart {
        // It remembers no calls.
        return Ok(());
    }
    let end =
        fates.answered.iter().chain(&fates.not_run).chain(&fates.maybe_ran).max().copied().unwrap_or(0) + 1;
    fates.agree(tally, first_number()..end)?;
    let Some((after, _)) = first_failure else { anyhow::bail!("no call failed: not injected") };
    let wanted = options.patience.wanted();
    println!("reported dead after {after:?}, wanted {wanted:?}");
    ensure!(*after <= wanted.saturating_add(SLACK), "reported dead only after {after:?}");
    Ok(())
}

fn power_off(options: &Options, client: &Client) -> anyhow::Result<()> {
    let harm = HarmClient::new(client.clone());
    harm_it(options, &harm)?;
    let asked = Instant::now();
    let Err(error) = harm.hang().wait() else { anyhow::bail!("an answer from a host without power") };
    let took = asked.elapsed();
    let wanted = options.patience.wanted();
    println!("PowerOff: {took:?} after it was asked for, wanted {wanted:?}: {error}");
    ensure!(took <= wanted.saturating_add(SLACK), "reported only after {took:?}");
    if error.fate() != Fate::MaybeRan {
        // A stall had ended the connection before: then nobody may come back.
        std::thread::sleep(Duration::from_secs(3));
        ensure!(error.fate() == Fate::NotRun && harm.back().wait().is_err(), "{error}");
    }
    Ok(())
}
