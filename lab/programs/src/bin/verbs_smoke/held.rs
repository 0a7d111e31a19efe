//! What a process holds of devices, and what it hears of them, with several providers: `verbs_smoke --held HOST`.
//!
//! Adds, removes and renews devices of the machine, so it runs in the lab only.

use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gimmal_transport::{
    Address, Chain, ConnectError, ConnectOptions, Connecting, Gate, Instant, ListenOptions, Listener, Port,
    PortConfig, Provider, Receives, SharedReceives, Tag, verbs::Verbs,
};

use crate::pair::{LIMIT, Pair, stage, until};

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

    /// A pair on a device that was just added: GIDs follow addresses a moment later.
    fn pair_soon(&self, provider: &Verbs) -> Result<Pair, Failure> {
        let mut pair = Err("no pair was tried".into());
        let _ = until("the device is usable", LIMIT, || {
            pair = self.pair(provider);
            Ok(pair.is_ok())
        });
        pair
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

/// Fails when our threads use 1 % of a core or more over 2 s, after an event of the device. They may have work for a while: so the
/// quietest of several windows counts.
fn is_idle(site: &Site, what: &str) -> Result<(), Failure> {
    let Site { netdev, .. } = site;
    // The interface keeps its IPv6 addresses, which others need.
    shell(&format!(
        "ip addr add 10.99.1.1/24 dev {netdev}; echo 1 >/proc/sys/net/ipv6/conf/{netdev}/keep_addr_on_down
        ip link set {netdev} down; ip link set {netdev} up"
    ))?;
    std::thread::sleep(Duration::from_millis(200));
    let mut used = u64::MAX;
    for _ in 0..5 {
        let before = ticks();
        std::thread::sleep(Duration::from_secs(2));
        used = used.min(ticks() - before);
        if used <= 2 {
            break;
        }
    }
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
    let _ = until("the queue runs low", LIMIT, || {
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

/// The removal ends; when it does not, it ends with this process.
fn ends(what: &str, child: &mut Child) -> Result<(), Failure> {
    let start = Instant::now();
    until(what, LIMIT, || Ok(child.try_wait()?.is_some()))?;
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
    // The kernel alone takes most of a second for it where the host is busy. What we hold is held for ever.
    ends("a device that was never used", &mut delete(&other)?)?;
    shell(&format!("rdma link add {other} type {kind} netdev held0"))?;
    let _ = gimmal_rdma::device::devices()?;
    ends("a device that was listed", &mut delete(&other)?)?;
    shell(&format!("rdma link add {other} type {kind} netdev held0"))?;
    let there = Site { host: "10.98.1.1".to_owned(), device: other.clone(), netdev: "held0".to_owned() };
    drop(there.pair_soon(&provider)?);
    std::thread::sleep(Duration::from_millis(300));
    ends("a device that was used", &mut delete(&other)?)?;
    shell("ip link delete held0")?;
    drop((pair, provider));
    std::thread::sleep(Duration::from_millis(300));
    ends("everything of this process is dropped", &mut delete(device)?)?;
    shell(&format!("rdma link add {device} type {kind} netdev {netdev}"))?;
    let provider = Verbs::new();
    let mut pair = site.pair_soon(&provider)?;
    pair.echo(10, &[8], 1, 1)?;
    ends("in use, by a port that turns", &mut {
        let child = delete(device)?;
        until("the port is told", LIMIT, || {
            pair.pump();
            Ok(!pair.a.closed.is_empty() && !pair.b.closed.is_empty())
        })?;
        drop(pair);
        child
    })?;
    shell(&format!("rdma link add {device} type {kind} netdev {netdev}"))?;
    Ok(())
}

/// An ibacm that knows no name, and never answers a question for a route.
struct Resolver {
    /// It was asked for a route, and the question waits.
    is_asked: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

/// Where librdmacm looks for ibacm.
const RESOLVER: &str = "/run/ibacm.sock";
/// `status` of `acm_hdr`, and what it says of a name that is not known.
const STATUS: (usize, u8) = (2, 2);
/// A header and the address of the destination. Only a question for a route has a source beside it.
const NAME_BYTES: usize = 16 + 72;

impl Resolver {
    fn start() -> Result<Self, Failure> {
        let listener = UnixListener::bind(RESOLVER)?;
        let (is_asked, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let shown = Self { is_asked: Arc::clone(&is_asked), is_over: Arc::clone(&is_over) };
        std::thread::spawn(move || {
            let Ok((mut socket, _)) = listener.accept() else { return };
            let mut question = [0; 4096];
            while let Ok(bytes @ 1..) = socket.read(&mut question) {
                if bytes > NAME_BYTES {
                    is_asked.store(true, Ordering::Relaxed);
                    while !is_over.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    return;
                }
                question[STATUS.0] = STATUS.1;
                let _ = socket.write_all(&question[..bytes]);
            }
        });
        Ok(shown)
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = std::fs::remove_file(RESOLVER);
    }
}

/// While ibacm does not answer, the control thread serves others, and the attempt ends at its deadline.
fn waits_alone(site: &Site) -> Result<(), Failure> {
    let resolver = Resolver::start()?;
    let provider = Verbs::new();
    let port = provider.open_port(&PortConfig::default())?;
    let address: Address = format!("rdma://{}:0", site.host).parse()?;
    let listener = provider.listen(&address, &ListenOptions::default())?;
    let timeout = Duration::from_secs(10);
    let options = ConnectOptions { connect_timeout: timeout, ..ConnectOptions::default() };
    let begun = Instant::now();
    let mut attempt = provider.connect(&listener.address(), &port.gate(), &options)?;
    if site.kind() == "siw" {
        // On iWARP nobody is asked for a route, and nobody accepts.
        return match attempt.poll(LIMIT) {
            Some(Err(ConnectError::Timeout { step: "connecting", .. })) => Ok(()),
            other => Err(format!("it says {other:?}").into()),
        };
    }
    until("ibacm is asked for the route", timeout, || Ok(resolver.is_asked.load(Ordering::Relaxed)))?;
    drop(provider.listen(&address, &ListenOptions::default())?);
    println!("    another listener came and went {:?} after the connect", begun.elapsed());
    if begun.elapsed() >= timeout {
        return Err("the control thread served nobody meanwhile".into());
    }
    match attempt.poll(LIMIT) {
        Some(Err(ConnectError::Timeout { step: "resolving the route", .. })) => {}
        other => return Err(format!("it says {other:?}").into()),
    }
    println!("    the attempt ended after {:?}", begun.elapsed());
    // The kernel finds the route when ibacm is gone, for the attempt that is over and for the next one.
    drop((resolver, listener));
    site.pair(&provider)?.echo(10, &[8], 1, 1)
}

/// Runs all cases on the device that has `host`.
pub(crate) fn run(host: &str) -> Result<(), Failure> {
    type Case = (&'static str, fn(&Site) -> Result<(), Failure>);
    let cases: [Case; 4] = [
        // First: librdmacm looks for ibacm once.
        ("r123 a route that ibacm does not answer holds up its own attempt alone", waits_alone),
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
