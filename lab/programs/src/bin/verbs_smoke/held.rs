//! What a process holds of devices, and what it hears of them, with several providers: `verbs_smoke --held HOST`.
//!
//! Adds, removes and renews devices of the machine, so it runs in the lab only.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use gimmal_transport::{
    Chain, Gate, Instant, ListenOptions, Port, PortConfig, Receives, SharedReceives, Tag, verbs::Verbs,
};

use crate::pair::{Pair, stage, until};

type Failure = Box<dyn std::error::Error>;

/// A device of this machine, and the interface below it.
struct Site {
    host: String,
    device: String,
    netdev: String,
}

fn shell(line: &str) -> Result<String, Failure> {
    let output = Command::new("sh").args(["-c", line]).output()?;
    if !output.status.success() {
        return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Site {
    fn of(host: &str) -> Result<Self, Failure> {
        let netdev = shell(&format!("ip -o addr show to {host} | awk '{{print $2; exit}}'"))?;
        let find = "s/^link \\([^/]*\\)\\/.* netdev NETDEV.*/\\1/p".replace("NETDEV", &netdev);
        let device = shell(&format!("rdma link show | sed -n '{find}'"))?;
        if device.is_empty() {
            return Err(format!("no device at {host}").into());
        }
        Ok(Self { host: host.to_owned(), device, netdev })
    }

    fn kind(&self) -> String {
        self.device.chars().filter(|letter| letter.is_alphabetic()).collect()
    }

    fn pair(&self, provider: &Verbs) -> Result<Pair, Failure> {
        let config = PortConfig { ring_bytes: 64 << 10, ..PortConfig::default() };
        Pair::connect(provider, &self.host, &config)
    }
}

/// Processor time of our control threads and of the reader of devices, in clock ticks of 10 ms.
fn ticks() -> u64 {
    let spent = |task: std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let fields = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let spent = |at: usize| fields.get(at)?.parse::<u64>().ok();
        (comm.starts_with("gimmal-control") || comm.starts_with("rdma-")).then_some(spent(11)? + spent(12)?)
    };
    std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().filter_map(spent).sum()
}

/// Fails when our threads use 1 % of a core or more over 2 s, after an event of the device.
fn is_idle(site: &Site, what: &str) -> Result<(), Failure> {
    let Site { netdev, .. } = site;
    // The interface keeps its IPv6 addresses, which others need.
    shell(&format!(
        "ip addr add 10.99.1.1/24 dev {netdev}; echo 1 >/proc/sys/net/ipv6/conf/{netdev}/keep_addr_on_down
        ip link set {netdev} down; ip link set {netdev} up"
    ))?;
    std::thread::sleep(Duration::from_millis(200));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks() - before;
    shell(&format!("ip addr del 10.99.1.1/24 dev {netdev}"))?;
    println!("    {what}: {used} of 200 ticks");
    if used > 2 { Err(format!("{what}: our threads ran {used} of 200 ticks").into()) } else { Ok(()) }
}

/// Nobody's thread spins, whichever port of the device went.
fn sleeps(site: &Site) -> Result<(), Failure> {
    let provider = Verbs::new();
    let first = site.pair(&provider)?;
    let second = site.pair(&provider)?;
    is_idle(site, "two pairs")?;
    drop(second);
    std::thread::sleep(Duration::from_millis(300));
    is_idle(site, "the later pair is gone")?;
    drop(first);
    std::thread::sleep(Duration::from_millis(300));
    is_idle(site, "no port is left")?;
    drop(provider);
    is_idle(site, "no provider is left")
}

/// Sends what the server's shared receives take, which keeps all frames; returns how often the queue ran low.
fn ran_low(site: &Site, provider: &Verbs) -> Result<u64, Failure> {
    let shared = SharedReceives {
        guaranteed: 40,
        most: 200,
        common: 64,
        common_max: 1024,
        ..SharedReceives::default()
    };
    let config = PortConfig { shared, sends: 256, ..PortConfig::default() };
    let listen = ListenOptions { receives: Receives::Shared, ..ListenOptions::default() };
    let mut pair = Pair::connect_to(provider, &site.host, &config, &listen)?;
    let (conn, peer) = (pair.a.conn(), pair.b.conn());
    let mut sent = 0;
    let mut events = 0;
    let _ = until("the queue runs low", Duration::from_secs(1), || {
        while sent + 2 < pair.b.port.credit(peer).arrivals {
            if stage(&mut pair.a.port, conn, &[1; 8], Tag(0), Chain::Begin).is_err() {
                break;
            }
            sent += 1;
        }
        pair.a.port.flush();
        pair.pump();
        events = pair.b.port.gate().shared_receives().first().map_or(0, |state| state.limit_events);
        Ok(events > 0)
    });
    Ok(events)
}

/// Each of several providers hears that its queue ran low.
fn hears(site: &Site) -> Result<(), Failure> {
    let providers = [(); 4].map(|()| Verbs::new());
    let mut heard = 0;
    for round in 0..8 {
        // Ports of the same device, and of other providers, came earlier and later.
        let _beside = providers.iter().map(|provider| site.pair(provider)).collect::<Result<Vec<_>, _>>()?;
        heard += usize::from(ran_low(site, &providers[round % providers.len()])? > 0);
    }
    println!("    {heard} of 8 limits were heard");
    if heard == 8 { Ok(()) } else { Err(format!("{heard} of 8 limits were heard").into()) }
}

/// Begins to remove a device.
fn delete(device: &str) -> Result<Child, Failure> {
    Ok(Command::new("rdma").args(["link", "delete", device]).stderr(Stdio::null()).spawn()?)
}

/// The removal ends within a second; when it does not, it ends with this process.
fn ends(what: &str, child: &mut Child) -> Result<(), Failure> {
    let start = Instant::now();
    until(what, Duration::from_secs(1), || Ok(child.try_wait()?.is_some()))?;
    println!("    {what}: {:?}", start.elapsed());
    Ok(())
}

/// A device that this process does not use can be removed, and one that it used can.
fn lets_go(site: &Site) -> Result<(), Failure> {
    let Site { device, netdev, .. } = site;
    let kind = site.kind();
    let make = format!(
        "ip link add held0 type veth peer name held1 && ip link set held0 up && ip link set held1 up && \
         ip addr add 10.98.1.1/24 dev held0 && rdma link add {kind}9 type {kind} netdev held0"
    );
    shell(&make)?;
    let other = format!("{kind}9");
    let provider = Verbs::new();
    let pair = site.pair(&provider)?;
    ends("a device that was never used", &mut delete(&other)?)?;
    shell(&format!("rdma link add {other} type {kind} netdev held0"))?;
    let _ = gimmal_rdma::device::devices()?;
    ends("a device that was listed", &mut delete(&other)?)?;
    shell(&format!("rdma link add {other} type {kind} netdev held0"))?;
    let there = Site { host: "10.98.1.1".to_owned(), device: other.clone(), netdev: "held0".to_owned() };
    drop(there.pair(&provider)?);
    std::thread::sleep(Duration::from_millis(300));
    ends("a device that was used", &mut delete(&other)?)?;
    shell("ip link delete held0")?;
    drop((pair, provider));
    std::thread::sleep(Duration::from_millis(300));
    ends("everything of this process is dropped", &mut delete(device)?)?;
    shell(&format!("rdma link add {device} type {kind} netdev {netdev}"))?;
    std::thread::sleep(Duration::from_millis(500));
    let provider = Verbs::new();
    let mut pair = site.pair(&provider)?;
    pair.echo(10, &[8], 1, 1)?;
    ends("in use, by a port that turns", &mut {
        let child = delete(device)?;
        until("the port is told", Duration::from_secs(5), || {
            pair.pump();
            Ok(!pair.a.closed.is_empty() && !pair.b.closed.is_empty())
        })?;
        drop(pair);
        child
    })?;
    shell(&format!("rdma link add {device} type {kind} netdev {netdev}"))?;
    Ok(())
}

/// Runs all cases on the device that has `host`.
pub(crate) fn run(host: &str) -> Result<(), Failure> {
    type Case = (&'static str, fn(&Site) -> Result<(), Failure>);
    let cases: [Case; 3] = [
        ("r119 every limit of a shared queue is heard, with four providers", hears),
        ("r120 no thread spins when a port is gone", sleeps),
        ("r121 a device that nobody uses can be removed", lets_go),
    ];
    let site = Site::of(host)?;
    let mut failed = 0;
    for (name, case) in cases {
        match case(&site) {
            Ok(()) => println!("ok      {name} ({host})"),
            Err(error) => {
                failed += 1;
                println!("FAILED  {name} ({host}): {error}");
            }
        }
    }
    println!("{} passed, {failed} failed, 0 skipped", cases.len() - failed);
    if failed > 0 { std::process::exit(1) } else { Ok(()) }
}
