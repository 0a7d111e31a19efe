//! R19: a device is removed under load. The kernel's removal must return soon, every connection must end with a typed
//! error, and when the device is back both the listener and the clients must be, in the same process.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use gimmal::{
    CallError, Channel as _, Client, Instant, Server, TransportError, UserBytes, error::CloseReason,
};

use crate::tally::{Book, TallyClient, serve_tally};

/// Which device, and how long it may take.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// An address on the device.
    #[arg(long)]
    address: String,
    /// `rxe0`.
    #[arg(long)]
    device: String,
    /// Connections under load; one more is idle.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// `rdma link delete` must return within this.
    #[arg(long, default_value_t = 5000)]
    bound_ms: u64,
}

/// One client that calls without pause.
struct Caller {
    thread: JoinHandle<anyhow::Result<Vec<CloseReason>>>,
    answered: Arc<AtomicU64>,
}

fn call_on(
    client: TallyClient<Client>,
    answered: &AtomicU64,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<CloseReason>> {
    let mut reasons: Vec<CloseReason> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match client.add(1).wait() {
            Ok(_) => {
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(CallError::Transport(TransportError::Closed { reason, .. })) => {
                if reasons.last() != Some(&reason) {
                    reasons.push(reason);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => bail!("not an end of a connection: {error:?}"),
        }
    }
    Ok(reasons)
}

pub(crate) fn rdma(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("rdma").args(arguments).output().context("running rdma")?;
    ensure!(
        output.status.success(),
        "rdma {} failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The network device under an RDMA device, as `rdma link` shows it.
pub(crate) fn netdev(device: &str) -> anyhow::Result<String> {
    let links = rdma(&["link", "show"])?;
    let line =
        links.lines().find(|line| line.contains(&format!("link {device}/"))).context("no such device")?;
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "netdev").context("it has no netdev")?;
    Ok((*words.get(at + 1).context("it has no netdev")?).to_owned())
}

pub(crate) fn wait_until(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> bool,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    while !ready() {
        ensure!(started.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(started.elapsed())
}

/// Removes and adds the device twice.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let netdev = netdev(&options.device)?;
    let kind: String = options.device.chars().filter(|letter| letter.is_alphabetic()).collect();
    let server = Server::builder().service(serve_tally(Book::default())).listen(&options.address)?;
    let url = server.address().to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let connect = || Client::builder().connect(&url).with_context(|| format!("connecting to {url}"));
    let callers = (0..options.clients)
        .map(|_| {
            let (client, answered) = (TallyClient::new(connect()?), Arc::<AtomicU64>::default());
            let (counter, stop) = (Arc::clone(&answered), Arc::clone(&stop));
            let thread = std::thread::spawn(move || call_on(client, &counter, &stop));
            Ok(Caller { thread, answered })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let idle = connect()?;
    // Registered memory that is out on loan must not hold the device.
    let loan = idle.loan(100_000)?;
    // Neither may memory of the user's, lent or kept registered for another loan.
    let owners: [Arc<[u8]>; 2] = [Arc::from([1; 50_000]), Arc::from([2; 5000])];
    let [lent, kept] = owners.each_ref().map(|owner| idle.lend(&UserBytes::new(Arc::clone(owner))));
    let lent = lent?;
    drop(kept?);
    ensure!(owners.iter().all(|owner| Arc::strong_count(owner) == 2), "lent, and nobody keeps it");

    for round in 1..=2 {
        let counts =
            || callers.iter().map(|caller| caller.answered.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = counts();
        wait_until("calls", Duration::from_secs(20), || {
            counts().iter().zip(&before).all(|(now, then)| now > then)
        })?;
        let started = Instant::now();
        rdma(&["link", "delete", &options.device])?;
        let removed = started.elapsed();
        println!("round {round}: rdma link delete {} returned after {removed:?}", options.device);
        ensure!(
            removed < Duration::from_millis(options.bound_ms),
            "the removal took {removed:?}, more than {} ms",
            options.bound_ms
        );
        rdma(&["link", "add", &options.device, "type", &kind, "netdev", &netdev])?;
        let before = counts();
        let back = wait_until("connected again", Duration::from_secs(20), || {
            counts().iter().zip(&before).all(|(now, then)| now > then)
        })?;
        println!("round {round}: every client calls again {back:?} after rdma link add");
        wait_until("the idle client is back", Duration::from_secs(20), || idle.reconnects() >= round)?;
    }
    ensure!(idle.loan(10).is_ok(), "the idle client has no connection");
    let counts = || owners.each_ref().map(Arc::strong_count);
    ensure!(counts() == [2, 1] && lent[..] == owners[0][..], "kept over a removal: {:?}", counts());
    drop((loan, lent));
    ensure!(counts() == [1, 1], "kept after its loan: {:?}", counts());
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let reasons = caller.thread.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??;
        println!("a client was told: {reasons:?}");
        ensure!(
            reasons.iter().filter(|reason| **reason == CloseReason::DeviceGone).count() >= 1,
            "no client may end otherwise than by the device's removal: {reasons:?}"
        );
    }
    drop(idle);
    ensure!(server.shutdown(Duration::from_secs(5)), "the server did not end in time");
    println!("removed twice under load, and everybody came back");
    Ok(())
}
