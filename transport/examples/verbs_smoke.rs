//! The verbs provider against a real device, both sides in this process: `verbs_smoke HOST [HOST ...]`.
//!
//! Each HOST is an address of an RDMA device of this machine. Without one it says SKIP. Ends with one line a case,
//! and a non-zero exit code when a case failed.

use std::{
    collections::VecDeque,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use gimmal_transport::{
    Address, Batch, Chain, CloseReason, ConnId, ConnectError, ConnectOptions, Connecting, DataPath, Event,
    Gate, Incoming, ListenOptions, Listener, Negotiated, Port, PortConfig, Position, Provider, Refused,
    RxFrame, Tag, Time,
    frame::span,
    mem::Bulk,
    verbs::{Verbs, VerbsPort},
};

type Failure = Box<dyn std::error::Error>;

struct Clock(Instant);

impl Clock {
    fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// One end, with the credit kept by hand.
struct Side {
    port: VerbsPort,
    conn: Option<ConnId>,
    negotiated: Option<Arc<Negotiated>>,
    frames: VecDeque<RxFrame>,
    pulled: Vec<(u64, Result<Bulk, gimmal_transport::BulkError>)>,
    closed: Vec<CloseReason>,
    /// Up to where we released, in order.
    released: Position,
    head: Position,
    chains: u64,
    batch: Batch,
}

impl Side {
    fn new(provider: &Verbs, config: &PortConfig) -> Result<Self, Failure> {
        Ok(Self {
            port: provider.open_port(config)?,
            conn: None,
            negotiated: None,
            frames: VecDeque::new(),
            pulled: Vec::new(),
            closed: Vec::new(),
            released: Position(0),
            head: Position(0),
            chains: 0,
            batch: Batch::new(16),
        })
    }

    fn conn(&self) -> ConnId {
        self.conn.expect("adopted before it is used")
    }

    fn pump(&mut self, now: Time) {
        self.port.poll(now, &mut self.batch);
        for event in self.batch.drain() {
            match event {
                Event::Opened { negotiated, .. } => self.negotiated = Some(negotiated),
                Event::Frame { frame, .. } => self.frames.push_back(frame),
                Event::Pulled { token, result, .. } => self.pulled.push((token, result)),
                Event::Closed { reason, .. } => self.closed.push(reason),
            }
        }
    }

    /// Commits a frame if the peer's credit allows it.
    fn send(&mut self, peer: &Self, payload: &[u8], tag: u32, chain: Chain) -> Result<bool, Failure> {
        let conn = self.conn();
        let negotiated = self.negotiated.clone().expect("open");
        let bytes = span(payload.len()) as u64;
        let ring = u64::from(negotiated.tx_ring_bytes);
        let fits = match negotiated.path {
            DataPath::Ring => self.head.since(peer.released) + bytes <= ring,
            DataPath::SendRecv => true,
        };
        let local = self.head.since(self.port.completed(conn)) + bytes <= ring;
        let starts = chain == Chain::Begin;
        if !fits || !local || (starts && self.chains >= peer.port.arrivals(peer.conn())) {
            return Ok(false);
        }
        match self.port.reserve(conn, payload.len()) {
            Ok(place) => place.copy_from_slice(payload),
            Err(Refused::Full) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.head = self.port.commit(conn, payload.len(), Tag(tag), chain);
        self.chains += u64::from(starts);
        Ok(true)
    }

    fn release(&mut self, frame: RxFrame) {
        let end = frame.end();
        let conn = self.conn();
        self.port.release(conn, frame);
        if end > self.released {
            self.released = end;
        }
    }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seed.wrapping_mul(31).wrapping_add(at) % 251) as u8).collect()
}

fn until(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > limit {
            return Err(format!("{what}: not within {limit:?}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

struct Pair {
    clock: Clock,
    a: Side,
    b: Side,
}

const LIMIT: Duration = Duration::from_secs(20);

impl Pair {
    fn connect(provider: &Verbs, host: &str, config: &PortConfig) -> Result<Self, Failure> {
        let clock = Clock(Instant::now());
        let mut a = Side::new(provider, config)?;
        let mut b = Side::new(provider, config)?;
        let address: Address = format!("rdma://{host}:0").parse()?;
        let mut listener = provider.listen(&address, &ListenOptions::default())?;
        let mut connecting =
            provider.connect(&listener.address(), &a.port.gate(), &ConnectOptions::default())?;
        let mut accepted = None;
        let mut linked = None;
        until("connect", LIMIT, || {
            if let Some(incoming) = listener.accept(Duration::ZERO)? {
                accepted = Some(incoming.accept(&b.port.gate())?);
            }
            if let Some(outcome) = connecting.poll(Duration::from_millis(1)) {
                linked = Some(outcome?);
            }
            Ok(linked.is_some() && accepted.is_some())
        })?;
        a.conn = linked.map(|link| a.port.adopt(link, clock.now())).transpose()?;
        b.conn = accepted.map(|link| b.port.adopt(link, clock.now())).transpose()?;
        let mut pair = Self { clock, a, b };
        until("both grants", LIMIT, || {
            pair.pump();
            if let Some(reason) = pair.a.closed.first().or_else(|| pair.b.closed.first()) {
                return Err(format!("closed while opening: {reason}").into());
            }
            Ok(pair.a.negotiated.is_some() && pair.b.negotiated.is_some())
        })?;
        Ok(pair)
    }

    fn pump(&mut self) {
        let now = self.clock.now();
        self.a.pump(now);
        self.b.pump(now);
    }

    fn alive(&self) -> Result<(), Failure> {
        match self.a.closed.first().or_else(|| self.b.closed.first()) {
            None => Ok(()),
            Some(reason) => Err(format!("closed: {reason}").into()),
        }
    }

    /// `count` frames there and back, several in a chain, with at most `window` on the way.
    fn echo(&mut self, count: u32, sizes: &[usize], window: u32, chain_frames: u32) -> Result<(), Failure> {
        let (mut sent, mut got) = (0, 0);
        let mut echo: VecDeque<RxFrame> = VecDeque::new();
        until("echo", Duration::from_secs(120), || {
            let now = self.clock.now();
            self.alive()?;
            while sent < count && sent - got < window {
                let payload = pattern(sent.into(), sizes[sent as usize % sizes.len()]);
                let negotiated = self.a.negotiated.clone().expect("open");
                let small = span(payload.len()) * chain_frames as usize;
                let extend = sent % chain_frames != 0 && small <= negotiated.chain_bytes_max as usize;
                let chain = if extend { Chain::Extend } else { Chain::Begin };
                if !self.a.send(&self.b, &payload, sent, chain)? {
                    break;
                }
                sent += 1;
                if sent % chain_frames == 0 {
                    self.a.port.flush();
                }
            }
            self.a.port.flush();
            self.b.pump(now);
            echo.append(&mut self.b.frames);
            while let Some(frame) = echo.pop_front() {
                if self.b.send(&self.a, &frame, frame.tag().0, Chain::Begin)? {
                    self.b.release(frame);
                } else {
                    echo.push_front(frame);
                    break;
                }
            }
            self.b.port.flush();
            self.a.pump(self.clock.now());
            while let Some(frame) = self.a.frames.pop_front() {
                let expected = pattern(got.into(), sizes[got as usize % sizes.len()]);
                if frame.tag() != Tag(got) || *frame != expected[..] {
                    return Err(format!("frame {got} came back changed (tag {:?})", frame.tag()).into());
                }
                self.a.release(frame);
                got += 1;
            }
            Ok(got == count)
        })
    }

    fn bulk(&mut self, sizes: &[usize]) -> Result<(), Failure> {
        let mut loans = Vec::new();
        for (token, &bytes) in sizes.iter().enumerate() {
            let mut loan = self.a.port.gate().allocate(self.a.conn(), bytes)?;
            loan.copy_from_slice(&pattern(token as u64, bytes));
            let offer = self.a.port.offer(self.a.conn(), &loan)?;
            self.b.port.pull(self.b.conn(), offer, token as u64)?;
            loans.push(loan);
        }
        until("bulk", Duration::from_secs(60), || {
            self.pump();
            self.alive()?;
            Ok(self.b.pulled.len() == sizes.len())
        })?;
        for (token, result) in self.b.pulled.drain(..) {
            let index = usize::try_from(token)?;
            if *result? != pattern(token, sizes[index])[..] {
                return Err(format!("bulk {index} of {} bytes came changed", sizes[index]).into());
            }
        }
        Ok(())
    }

    /// Sleeping: nothing is there, then the fd becomes readable by a frame.
    fn sleep_and_wake(&mut self) -> Result<(), Failure> {
        let readable = |port: &VerbsPort, wait_ms: i64| {
            let mut fds =
                [rustix::event::PollFd::from_borrowed_fd(port.wait_fd(), rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
            rustix::event::poll(&mut fds, Some(&wait)).map(|count| count > 0)
        };
        until("an armed port", LIMIT, || {
            let armed = self.b.port.arm();
            if !armed {
                self.pump();
            }
            Ok(armed)
        })?;
        if readable(&self.b.port, 20)? {
            return Err("an armed port woke for nothing".into());
        }
        if !self.a.send(&self.b, b"wake", 77, Chain::Begin)? {
            return Err("no credit for the waking frame".into());
        }
        self.a.port.flush();
        if !readable(&self.b.port, 900)? {
            return Err("a frame did not wake the armed port".into());
        }
        self.b.port.disarm();
        until("the waking frame", LIMIT, || {
            self.pump();
            Ok(!self.b.frames.is_empty())
        })?;
        while let Some(frame) = self.b.frames.pop_front() {
            self.b.release(frame);
        }
        // From another thread.
        until("an armed port", LIMIT, || {
            let armed = self.b.port.arm();
            if !armed {
                self.pump();
            }
            Ok(armed)
        })?;
        let waker = self.b.port.waker();
        std::thread::spawn(move || waker.ring());
        if !readable(&self.b.port, 900)? {
            return Err("the waker did not wake the armed port".into());
        }
        self.b.port.disarm();
        Ok(())
    }

    /// What was flushed before an orderly close arrives; then both sides say why, once.
    fn close(&mut self) -> Result<(), Failure> {
        let last = self.a.send(&self.b, b"last words", 99, Chain::Begin)?;
        self.a.port.flush();
        let (conn, now) = (self.a.conn(), self.clock.now());
        self.a.port.close(conn, CloseReason::Local, now);
        let start = Instant::now();
        until("both closed", LIMIT, || {
            self.pump();
            Ok(!self.a.closed.is_empty() && !self.b.closed.is_empty())
        })?;
        for _ in 0..20 {
            self.pump();
        }
        let words: Vec<u32> = self.b.frames.drain(..).map(|frame| frame.tag().0).collect();
        if last && words != [99] {
            return Err(format!("the last words were lost: {words:?}").into());
        }
        if self.a.closed != [CloseReason::Local] {
            return Err(format!("our side says {:?}", self.a.closed).into());
        }
        if !matches!(self.b.closed[..], [CloseReason::Peer]) {
            return Err(format!("the peer says {:?}", self.b.closed).into());
        }
        println!("    closed on both sides after {:?}", start.elapsed());
        Ok(())
    }
}

/// What the kernel counts for this process's devices, without the parts that count history.
fn resources() -> String {
    match Command::new("rdma").args(["resource", "show"]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => String::new(),
    }
}

fn settled_resources(expected: &str) -> Result<(), Failure> {
    let mut now = String::new();
    let result = until("resources", Duration::from_secs(5), || {
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
        if start.elapsed() > Duration::from_secs(2) {
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
    if listener.rejected() != 1 {
        return Err(format!("{} rejected, rping: {status}", listener.rejected()).into());
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
            side.port.reserve(conn, frame.len())?.copy_from_slice(&frame);
            side.port.commit(conn, frame.len(), tag, Chain::Begin);
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
            side.port.reserve(conn, 5)?.copy_from_slice(b"hello");
            side.port.commit(conn, 5, Tag(1), Chain::Begin);
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
        until("its end to be noticed", Duration::from_secs(5), || {
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

/// Without credit the device's RNR counter moves; with it, it stands still.
fn rnr(host: &str) -> Result<(), Failure> {
    let provider = Verbs::new();
    let config = PortConfig { arrivals: 8, ..PortConfig::default() };
    let mut pair = Pair::connect(&provider, host, &config)?;
    let device = pair.a.negotiated.as_ref().map(|terms| terms.device.clone()).unwrap_or_default();
    let device = device.split(' ').next().unwrap_or_default().to_owned();
    let Ok(before) = gimmal_transport::verbs::rnr_counters(&device) else {
        return Err(format!("SKIP: {device} counts no RNR").into());
    };
    pair.echo(200, &[64], 32, 1)?;
    let honest = gimmal_transport::verbs::rnr_counters(&device)?;
    if honest != before {
        return Err(format!("an honest run moved {before:?} to {honest:?}").into());
    }
    let conn = pair.a.conn();
    for _ in 0..40 {
        pair.a.port.reserve(conn, 8)?.fill(1);
        pair.a.port.commit(conn, 8, Tag(0), Chain::Begin);
        pair.a.port.flush();
    }
    std::thread::sleep(Duration::from_millis(100));
    let after = gimmal_transport::verbs::rnr_counters(&device)?;
    println!("    {before:?} with credit, {after:?} without");
    if after == honest {
        return Err("40 frames into 8 receives moved no counter".into());
    }
    Ok(())
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
    let cases: [Case; 11] = [
        ("whole life", whole_life),
        ("vanish", vanish),
        ("killed", killed),
        ("memlock", memlock),
        ("rnr", rnr),
        ("many", many),
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
