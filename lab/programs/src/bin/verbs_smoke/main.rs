//! The verbs provider against a real device, both sides in this process: `verbs_smoke HOST [HOST ...]`.
//!
//! Each HOST is an address of an RDMA device of this machine. Without one it says SKIP. Ends with one line a case,
//! and a non-zero exit code when a case failed.
mod held;
mod pair;

use std::{process::Command, time::Duration};

use gimmal_transport::{
    Address, Chain, CloseReason, ConnectError, ConnectOptions, Connecting, DataPath, Gate, Incoming, Instant,
    ListenOptions, Listener, Port, PortConfig, Provider, Tag, UserBytes, verbs::Verbs,
};

type Failure = Box<dyn std::error::Error>;

use pair::{Clock, LIMIT, Pair, Side, stage, until};

/// What the kernel counts for this process's devices, without the parts that count history.
fn resources() -> String {
    match Command::new("rdma").args(["resource", "show"]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => String::new(),
    }
}

fn settled_resources(expected: &str) -> Result<(), Failure> {
    let mut now = String::new();
    let result = until("resources", LIMIT, || {
        now = resources();
        Ok(now == expected)
    });
    result.map_err(|_| format!("resources differ.\nbefore:\n{expected}\nafter:\n{now}").into())
}

/// Frames, bulk, sleeping and closing on one connection.
fn whole_life(host: &str) -> Result<(), Failure> {
    let before = resources();
    {
        let provider = Verbs::new();
        let config = PortConfig { ring_bytes: 64 << 10, ..PortConfig::default() };
        let mut pair = Pair::connect(&provider, host, &config)?;
        let negotiated = pair.a.negotiated.clone().expect("open");
        for line in negotiated.to_string().lines() {
            println!("    {line}");
        }
        let largest = negotiated.frame_bytes_max as usize - 8;
        let start = Instant::now();
        pair.echo(400, &[0, 1, 8, 9, 56, 200, 1000], 1, 1)?;
        println!("    400 echoes, window 1: {:?}", start.elapsed());
        let start = Instant::now();
        pair.echo(600, &[64, 5000, 3, largest, 129], 200, 3)?;
        println!("    600 echoes that wrap the ring, chains of 3: {:?}", start.elapsed());
        let start = Instant::now();
        pair.bulk(&[1 << 20, 0, 1, 4095, 4097, 65537, 300_001])?;
        println!("    bulk: {:?}", start.elapsed());
        pair.sleep_and_wake()?;
        let (a, b) = (pair.a.port.counters(pair.a.conn()), pair.b.port.counters(pair.b.conn()));
        println!("    a: {a:?}");
        println!("    b: {b:?}");
        match negotiated.path {
            DataPath::Ring if b.receives_with_imm == 0 => return Err("no write-with-immediate".into()),
            DataPath::SendRecv if b.receives == 0 => return Err("no receives".into()),
            _ => {}
        }
        if b.reads == 0 {
            return Err("no READs".into());
        }
        pair.close()?;
    }
    settled_resources(&before)
}

/// A peer that vanishes without closing.
fn vanish(host: &str) -> Result<(), Failure> {
    let before = resources();
    {
        let provider = Verbs::new();
        let pair = Pair::connect(&provider, host, &PortConfig::default())?;
        let Pair { clock, a, mut b } = pair;
        drop(a);
        until("the other side to notice", LIMIT, || {
            b.pump(clock.now());
            Ok(!b.closed.is_empty())
        })?;
        if !matches!(b.closed[..], [CloseReason::PeerGone { .. }]) {
            return Err(format!("it says {:?}", b.closed).into());
        }
    }
    settled_resources(&before)
}

/// Many connections of one process; siw fails near the twentieth without a large CQ.
fn many(host: &str) -> Result<(), Failure> {
    let before = resources();
    {
        let provider = Verbs::new();
        let config = PortConfig { ring_bytes: 16 << 10, arrivals: 8, ..PortConfig::default() };
        let mut pairs = Vec::new();
        for _ in 0..24 {
            pairs.push(Pair::connect(&provider, host, &config)?);
        }
        for pair in &mut pairs {
            pair.echo(4, &[100], 2, 1)?;
        }
    }
    settled_resources(&before)
}

/// Many connections of two ports, when the first completion queues of the process are gone. siw's library then finds the
/// mapping offset free that it takes for none, and makes no more queue pairs from about the twentieth on.
fn many_later(host: &str) -> Result<(), Failure> {
    const LINKS: usize = 40;
    let before = resources();
    {
        let provider = Verbs::new();
        let config = PortConfig { ring_bytes: 16 << 10, arrivals: 8, ..PortConfig::default() };
        let first = Pair::connect(&provider, host, &config)?;
        let mut pair = Pair::connect(&provider, host, &config)?;
        drop(first);
        let mut listener =
            provider.listen(&format!("rdma://{host}:0").parse()?, &ListenOptions::default())?;
        for count in 0..LINKS {
            pair.link(&provider, &mut listener).map_err(|error| format!("connection {count}: {error}"))?;
        }
        pair.echo(4, &[100], 2, 1)?;
    }
    settled_resources(&before)
}

fn nobody_listens(host: &str) -> Result<(), Failure> {
    let provider = Verbs::new();
    let port = provider.open_port(&PortConfig::default())?;
    let address: Address = format!("rdma://{host}:29").parse()?;
    let start = Instant::now();
    let mut connecting = provider.connect(&address, &port.gate(), &ConnectOptions::default())?;
    match connecting.poll(LIMIT) {
        Some(Err(ConnectError::NobodyListens { .. })) => {}
        other => return Err(format!("it says {other:?}").into()),
    }
    println!("    said after {:?}", start.elapsed());
    Ok(())
}

fn times_out(host: &str) -> Result<(), Failure> {
    let before = resources();
    {
        let provider = Verbs::new();
        let port = provider.open_port(&PortConfig::default())?;
        // Listens, and never accepts.
        let address: Address = format!("rdma://{host}:0").parse()?;
        let listener = provider.listen(&address, &ListenOptions::default())?;
        let options =
            ConnectOptions { connect_timeout: Duration::from_millis(700), ..ConnectOptions::default() };
        let start = Instant::now();
        let mut connecting = provider.connect(&listener.address(), &port.gate(), &options)?;
        match connecting.poll(LIMIT) {
            Some(Err(ConnectError::Timeout { step, .. })) => {
                println!("    while {step}, after {:?}", start.elapsed());
            }
            other => return Err(format!("it says {other:?}").into()),
        }
        if start.elapsed() > Duration::from_secs(5) {
            return Err(format!("only after {:?}", start.elapsed()).into());
        }
    }
    settled_resources(&before)
}

fn rejected_with_a_reason(host: &str) -> Result<(), Failure> {
    let provider = Verbs::new();
    let port = provider.open_port(&PortConfig::default())?;
    let mut listener = provider.listen(&format!("rdma://{host}:0").parse()?, &ListenOptions::default())?;
    let mut connecting = provider.connect(&listener.address(), &port.gate(), &ConnectOptions::default())?;
    let incoming = listener.accept(LIMIT)?.ok_or("no request")?;
    let reason = gimmal_transport::RejectReason::Application { code: 7 };
    incoming.reject(reason);
    match connecting.poll(LIMIT) {
        Some(Err(ConnectError::Rejected { reason: told, .. })) if told == reason => Ok(()),
        other => Err(format!("it says {other:?}").into()),
    }
}

fn foreign_client(host: &str) -> Result<(), Failure> {
    let provider = Verbs::new();
    let mut listener = provider.listen(&format!("rdma://{host}:0").parse()?, &ListenOptions::default())?;
    let Address::Rdma { port, .. } = listener.address() else { return Err("no port".into()) };
    let port = port.to_string();
    let bare = host.trim_matches(['[', ']']);
    let args = ["20", "rping", "-c", "-a", bare, "-p", &port, "-C", "1"];
    let status = Command::new("timeout").args(args).output()?.status;
    if listener.accept(Duration::from_millis(100))?.is_some() {
        return Err("a foreign client was handed out".into());
    }
    if listener.rejections().count() != 1 {
        return Err(format!("{} rejected, rping: {status}", listener.rejections().count()).into());
    }
    if status.success() || status.code() == Some(124) {
        return Err(format!("rping was not refused: {status}").into());
    }
    Ok(())
}

/// This program again, in a role: what it prints on its first line.
struct Child {
    process: std::process::Child,
    lines: std::io::BufReader<std::process::ChildStdout>,
}

impl Child {
    fn start(before: &str, role: &str, host: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let script = format!("{before} {} --{role} {host}", program.display());
        let mut process =
            Command::new("sh").args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn()?;
        let lines = std::io::BufReader::new(process.stdout.take().ok_or("no pipe")?);
        Ok(Self { process, lines })
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.lines, &mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Role: accepts one connection, echoes until it is killed.
fn serve(host: &str) -> Result<(), Failure> {
    let clock = Clock(Instant::now());
    let provider = Verbs::new();
    let mut side = Side::new(&provider, &PortConfig::default())?;
    let mut listener = provider.listen(&format!("rdma://{host}:0").parse()?, &ListenOptions::default())?;
    println!("{}", listener.address());
    let incoming = listener.accept(LIMIT)?.ok_or("no request")?;
    let link = incoming.accept(&side.port.gate())?;
    side.conn = Some(side.port.adopt(link, clock.now())?);
    loop {
        side.pump(clock.now());
        while let Some(frame) = side.frames.pop_front() {
            let (conn, tag) = (side.conn(), frame.tag());
            stage(&mut side.port, conn, &frame, tag, Chain::Begin)?;
            side.release(frame);
        }
        side.port.flush();
        std::thread::yield_now();
    }
}

/// The server's process is killed between two echoes.
fn killed(host: &str) -> Result<(), Failure> {
    let before = resources();
    {
        let mut child = Child::start("exec", "serve", host)?;
        let address: Address = child.line()?.parse()?;
        let clock = Clock(Instant::now());
        let provider = Verbs::new();
        let mut side = Side::new(&provider, &PortConfig::default())?;
        let mut connecting = provider.connect(&address, &side.port.gate(), &ConnectOptions::default())?;
        let link = connecting.poll(LIMIT).ok_or("no outcome")??;
        side.conn = Some(side.port.adopt(link, clock.now())?);
        until("the grant", LIMIT, || {
            side.pump(clock.now());
            Ok(side.negotiated.is_some())
        })?;
        for _ in 0..5 {
            let conn = side.conn();
            stage(&mut side.port, conn, b"hello", Tag(1), Chain::Begin)?;
            side.port.flush();
            until("an echo", LIMIT, || {
                side.pump(clock.now());
                Ok(!side.frames.is_empty())
            })?;
            while let Some(frame) = side.frames.pop_front() {
                side.release(frame);
            }
        }
        child.process.kill()?;
        let start = Instant::now();
        until("its end to be noticed", LIMIT, || {
            side.pump(clock.now());
            Ok(!side.closed.is_empty())
        })?;
        println!("    {} after {:?}", side.closed[0], start.elapsed());
        if !matches!(side.closed[..], [CloseReason::PeerGone { .. }]) {
            return Err(format!("it says {:?}", side.closed).into());
        }
    }
    settled_resources(&before)
}

/// Role: opens a connection to itself under a low limit of locked memory.
fn starve(host: &str) -> Result<(), Failure> {
    let text = match Pair::connect(&Verbs::new(), host, &PortConfig::default()) {
        Ok(_) => "it connected".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("{text}");
    Ok(())
}

fn memlock(host: &str) -> Result<(), Failure> {
    let before = "ulimit -l 512; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
    let told = Child::start(before, "starve", host)?.line()?;
    println!("    {told}");
    if told.contains("limit of locked memory is 524288 bytes") && told.contains("ulimit -l") {
        Ok(())
    } else {
        Err(format!("it says: {told}").into())
    }
}

/// Role: lends more user memory, piece by piece, than may be locked, or than is kept.
fn squeeze(host: &str) -> Result<(), Failure> {
    let pair = Pair::connect(&Verbs::new(), host, &PortConfig::default())?;
    let gate = pair.a.port.gate();
    for _ in 0..32 {
        drop(gate.lend(pair.a.conn(), &UserBytes::new(vec![1; 1 << 20]))?);
    }
    println!("{:?}", gate.user_memory());
    Ok(())
}

/// What is kept registered of user memory makes room for what is to be, and goes with its port and its last loan.
fn user_memory(host: &str) -> Result<(), Failure> {
    let before = resources();
    let pair = Pair::connect(&Verbs::new(), host, &PortConfig::default())?;
    let (gate, conn) = (pair.a.port.gate(), pair.a.conn());
    let lent = [1, 2, 3].map(|byte| gate.lend(conn, &UserBytes::new(vec![byte; 5000])));
    let [first, second, _] = lent.map(|loan| loan.map_err(|error| error.to_string()));
    drop(first?);
    drop((pair, gate));
    drop(second?);
    settled_resources(&before)?;
    let low = "ulimit -l 16384; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
    for (limit, squeezed) in [(low, true), ("ulimit -l unlimited; exec", false)] {
        let told = Child::start(limit, "squeeze", host)?.line()?;
        println!("    {told}");
        if !told.contains("misses: 32,") || told.contains("evictions: 0,") == squeezed {
            return Err(format!("it says: {told}").into());
        }
    }
    Ok(())
}

/// Without credit the device's RNR counter moves; with it, it stands still.
fn rnr(host: &str) -> Result<(), Failure> {
    let provider = Verbs::new();
    let config = PortConfig { arrivals: 8, ..PortConfig::default() };
    let mut pair = Pair::connect(&provider, host, &config)?;
    let device = pair.a.negotiated.as_ref().map(|terms| terms.device.clone()).unwrap_or_default();
    let device = device.split(' ').next().unwrap_or_default().to_owned();
    let Ok(before) = gimmal_rdma::device::rnr_counters(&device) else {
        return Err(format!("SKIP: {device} counts no RNR").into());
    };
    pair.echo(200, &[64], 32, 1)?;
    let honest = gimmal_rdma::device::rnr_counters(&device)?;
    if honest != before {
        return Err(format!("an honest run moved {before:?} to {honest:?}").into());
    }
    let conn = pair.a.conn();
    for _ in 0..40 {
        stage(&mut pair.a.port, conn, &[1; 8], Tag(0), Chain::Begin)?;
        pair.a.port.flush();
    }
    let mut after = honest;
    let moved = until("40 frames into 8 receives to move a counter", LIMIT, || {
        after = gimmal_rdma::device::rnr_counters(&device)?;
        Ok(after != honest)
    });
    println!("    {before:?} with credit, {after:?} without");
    moved
}

fn wildcard(host: &str) -> Result<(), Failure> {
    let provider = Verbs::new();
    let port = provider.open_port(&PortConfig::default())?;
    let accepting = provider.open_port(&PortConfig::default())?;
    let mut listener = provider.listen(&"rdma://*:0".parse()?, &ListenOptions::default())?;
    let Address::Rdma { port: number, .. } = listener.address() else { return Err("no port".into()) };
    let address: Address = format!("rdma://{host}:{number}").parse()?;
    let mut connecting = provider.connect(&address, &port.gate(), &ConnectOptions::default())?;
    let incoming = listener.accept(LIMIT)?.ok_or("no request")?;
    let _link = incoming.accept(&accepting.gate())?;
    match connecting.poll(LIMIT) {
        Some(Ok(_)) => Ok(()),
        other => Err(format!("it says {other:?}").into()),
    }
}

fn main() {
    let hosts: Vec<String> = std::env::args().skip(1).collect();
    if let [role, host] = &hosts[..]
        && let Some(role) = role.strip_prefix("--")
    {
        let result = match role {
            "serve" => serve(host),
            "starve" => starve(host),
            "squeeze" => squeeze(host),
            "held" => held::run(host),
            other => Err(format!("no role {other}").into()),
        };
        if let Err(error) = result {
            println!("{error}");
        }
        return;
    }
    if hosts.is_empty() {
        println!("SKIP: give the address of an RDMA device");
        return;
    }
    type Case = (&'static str, fn(&str) -> Result<(), Failure>);
    let cases: [Case; 13] = [
        ("whole life", whole_life),
        ("vanish", vanish),
        ("killed", killed),
        ("memlock", memlock),
        ("user memory", user_memory),
        ("rnr", rnr),
        ("many", many),
        ("many later", many_later),
        ("nobody listens", nobody_listens),
        ("times out", times_out),
        ("rejected with a reason", rejected_with_a_reason),
        ("foreign client", foreign_client),
        ("wildcard", wildcard),
    ];
    let only = std::env::var("CASE").ok();
    let (mut failed, mut skipped) = (0, 0);
    for host in &hosts {
        // librdmacm opens every device once in a process and keeps a protection domain for it: not ours to count.
        if let Err(error) = Pair::connect(&Verbs::new(), host, &PortConfig::default()) {
            println!("FAIL  {host} first connection: {error}");
            failed += 1;
        }
        for (name, case) in cases.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| *name == only))
        {
            let start = Instant::now();
            match case(host) {
                Ok(()) => println!("ok    {host} {name} ({:?})", start.elapsed()),
                Err(error) if error.to_string().starts_with("SKIP") => {
                    skipped += 1;
                    println!("skip  {host} {name}: {error}");
                }
                Err(error) => {
                    failed += 1;
                    println!("FAIL  {host} {name}: {error}");
                }
            }
        }
    }
    println!("{failed} failed, {skipped} skipped");
    std::process::exit(i32::from(failed > 0));
}
