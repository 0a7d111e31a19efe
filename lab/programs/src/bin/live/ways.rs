//! `gimmal://` between two hosts: by RDMA however slow its set-up is, by TCP while this host's device is away, and by RDMA
//! again at a reconnect after it is back.

use std::{
    io,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::Args;
use gimmal::{Client, ConnectError, Instant};

use crate::{
    patience::{Patience, ask, connect},
    removal::{netdev, rdma, wait_until},
    tally::TallyClient,
    visit::HarmClient,
};

/// The client. Needs root, and a guest that nobody else uses.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The server, `gimmal://HOST:PORT`, which somebody starts again when it ends.
    #[arg(long)]
    address: String,
    /// The device that is taken away.
    #[arg(long, default_value = "rxe0")]
    device: String,
    #[command(flatten)]
    patience: Patience,
}

/// Emulated hosts on a busy machine may be late by this.
const LATE: Duration = Duration::from_secs(60);

/// What was logged.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How often the log says that a connection goes by `way`.
fn said(way: &str) -> u64 {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let (log, by) = (String::from_utf8_lossy(&log), format!(" by={way}://"));
    log.lines().filter(|line| line.contains("best way") && line.contains(&by)).map(|_| 1).sum()
}

/// By what a client goes, and why; empty while it has no connection.
fn chosen(client: &Client) -> String {
    client.negotiated().and_then(|negotiated| negotiated.chosen.clone()).unwrap_or_default()
}

/// Connects anew until it goes by RDMA: on a busy machine that may take longer than a client waits for it.
fn by_rdma(options: &Options) -> anyhow::Result<Client> {
    let started = Instant::now();
    loop {
        let client = connect(&options.address, &options.patience)?;
        let chosen = chosen(&client);
        println!("{:?}: {chosen}", started.elapsed());
        if chosen.starts_with("rdma://") {
            return Ok(client);
        }
        ensure!(started.elapsed() < LATE, "not by RDMA: {chosen}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What a client that insists on RDMA gets.
fn insist(options: &Options) -> Result<Client, ConnectError> {
    let builder = Client::builder().config(options.patience.config());
    builder.connect(format!("{}?need=rdma", options.address).as_str())
}

fn call(client: &Client) -> anyhow::Result<u32> {
    ask(|| TallyClient::new(client.clone()).process().wait())
}

/// Takes the device away and gives it back.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(|| Log).init();
    let netdev = netdev(&options.device)?;
    let kind: String = options.device.chars().filter(|letter| letter.is_alphabetic()).collect();

    let delayed = ["qdisc", "replace", "dev", &netdev, "root", "netem", "delay", "200ms"];
    ensure!(Command::new("tc").args(delayed).status()?.success(), "netem cannot be had");
    let client = by_rdma(options).context("200 ms on the way")?;
    call(&client)?;
    ensure!(Command::new("tc").args(["qdisc", "del", "dev", &netdev, "root"]).status()?.success(), "tc");

    let (told, reconnects) = (said("tcp"), client.reconnects());
    rdma(&["link", "delete", &options.device])?;
    wait_until("by TCP without the device", LATE, || chosen(&client).starts_with("tcp://"))?;
    println!("without the device: {}", chosen(&client));
    ensure!(chosen(&client).contains("rdma: "), "it does not say why not by RDMA");
    for _ in 0..100 {
        call(&client)?;
    }
    wait_until("each connection by TCP is logged once", LATE, || {
        let made = client.reconnects().saturating_sub(reconnects);
        made > 0 && said("tcp").saturating_sub(told) == made
    })?;
    let another = connect(&options.address, &options.patience)?;
    ensure!(chosen(&another).starts_with("tcp://"), "another client: {}", chosen(&another));
    drop(another);
    match insist(options) {
        Err(ConnectError::NoWay { why, .. }) if why.contains("RDMA") => println!("?need=rdma: {why}"),
        other => anyhow::bail!("?need=rdma without the device: {other:?}"),
    }

    rdma(&["link", "add", &options.device, "type", &kind, "netdev", &netdev])?;
    drop(by_rdma(options).context("the device is back")?);
    let started = Instant::now();
    for ends in 1.. {
        // Whatever becomes of the question: the process that it ends has another number than the next one.
        let before = call(&client)?;
        _ = HarmClient::new(client.clone()).die().wait();
        wait_until("the next server", LATE, || call(&client).is_ok_and(|now| now != before))?;
        println!("server {ends} ended: {}", chosen(&client));
        if chosen(&client).starts_with("rdma://") {
            break;
        }
        ensure!(started.elapsed() < LATE, "not by RDMA again: {}", chosen(&client));
    }
    let insisting = insist(options).context("?need=rdma, the device is back")?;
    call(&insisting)?;
    Ok(())
}
