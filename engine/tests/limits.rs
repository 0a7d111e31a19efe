//! Receivers that are slow, rings that are full both ways, frames that are held: the same cases on every provider, in
//! real time and with threads.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    cell::Cell,
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, RxBuf, SendError, Workers,
    transport::{
        Address, CloseReason, ConnId, Instant, Listener as _, Negotiated, Port, PortConfig, Provider as _,
        any::Any,
        testing::{patient_connect, patient_listen},
    },
};

const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Counts {
    received: AtomicU64,
    blocked: AtomicU64,
    closed: AtomicU64,
}

/// Sends `to_send` messages as fast as it may, and checks those that come.
#[derive(Debug)]
struct Node {
    to_send: u64,
    bytes_max: usize,
    /// Time that each message takes, us.
    slow_us: Arc<AtomicU64>,
    /// Whom held messages go to.
    holders: Vec<mpsc::Sender<(u64, RxBuf)>>,
    conn: Option<ConnId>,
    sent: u64,
    counts: Arc<Counts>,
}

fn size(seq: u64, max: usize) -> usize {
    (seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % (max + 1)
}

fn byte(seq: u64, at: usize) -> u8 {
    (seq.wrapping_mul(31).wrapping_add(at as u64 * 7)).to_le_bytes()[0]
}

fn check(seq: u64, body: &[u8]) {
    let wrong = body.iter().enumerate().find(|&(at, &value)| value != byte(seq, at));
    assert!(wrong.is_none(), "message {seq}, byte {}", wrong.unwrap().0);
}

impl Node {
    fn new(to_send: u64, bytes_max: usize) -> Self {
        Self {
            to_send,
            bytes_max,
            slow_us: Arc::default(),
            holders: Vec::new(),
            conn: None,
            sent: 0,
            counts: Arc::default(),
        }
    }

    fn send_more<P: Port>(&mut self, io: &mut Io<'_, P>) {
        let Some(conn) = self.conn else { return };
        while self.sent < self.to_send {
            let (seq, bytes) = (self.sent, size(self.sent, self.bytes_max));
            let sent = io.send(conn, Head { kind: 0, aux: seq }, bytes, |out| {
                out[..bytes].iter_mut().enumerate().for_each(|(at, out)| *out = byte(seq, at));
                Some(bytes)
            });
            match sent {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked) => {
                    self.counts.blocked.fetch_add(1, Relaxed);
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl App for Node {
    type Command = ();

    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.conn = Some(conn);
        self.send_more(io);
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId, message: Message<'_>) {
        let seq = message.head.aux;
        assert_eq!(seq, self.counts.received.load(Relaxed), "lost, doubled or out of order");
        assert_eq!(message.body.len(), size(seq, self.bytes_max));
        check(seq, message.body);
        if let Some(last) = self.holders.len().checked_sub(1) {
            let holder = &self.holders[size(seq.rotate_left(32), last)];
            let _ = holder.send((seq, io.hold(&message)));
        }
        if self.slow_us.load(Relaxed) > 0 {
            thread::sleep(Duration::from_micros(self.slow_us.load(Relaxed)));
        }
        self.counts.received.fetch_add(1, Relaxed);
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId) {
        self.send_more(io);
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        println!("closed: {reason}");
        self.conn = None;
        self.counts.closed.fetch_add(1, Relaxed);
    }
}

fn is_device(scheme: &str) -> bool {
    matches!(scheme, "rxe" | "siw")
}

fn address(scheme: &str, name: &str) -> Address {
    let name = format!("limits-{name}-{}", std::process::id());
    let url = match scheme {
        "shm" => format!("shm://{}/{name}", std::env::temp_dir().display()),
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "rxe" | "siw" => {
            let variable = format!("GIMMAL_{}_ADDR", scheme.to_uppercase());
            format!("rdma://{}:0", std::env::var(variable).expect("the lab names the device's address"))
        }
        _ => format!("{scheme}://{name}"),
    };
    url.parse().unwrap()
}

/// A server on a worker of its own, a client on this thread.
struct Pair {
    client: Inline<Any, Node>,
    server: Workers<Any, Node>,
    _acceptor: Acceptor,
    device: String,
    counts: [Arc<Counts>; 2],
}

impl Pair {
    fn new(scheme: &str, name: &str, client: Node, server: Node) -> Self {
        let port =
            PortConfig { ring_bytes: 16 << 10, slot_bytes: 4096, arrivals: 16, ..PortConfig::default() };
        let idle = Idle::Adaptive { spin_us: 20 };
        // What is in flight can take a slow server longer than the bound.
        let heartbeat_ms = if server.slow_us.load(Relaxed) == 0 { 5000 } else { 0 };
        let plan = Config { port, idle, heartbeat_ms, connect: patient_connect(), ..Config::default() }
            .validate()
            .unwrap();
        let provider = Any::new();
        let counts = [Arc::clone(&client.counts), Arc::clone(&server.counts)];
        let server = std::sync::Mutex::new(Some(server));
        let make = move |_| server.lock().unwrap().take().expect("one worker");
        let server = Workers::spawn(&provider, &plan, make).unwrap();
        let listener = provider.listen(&address(scheme, name), &patient_listen()).unwrap();
        let at = listener.address();
        let acceptor = Acceptor::spawn(listener, server.handles().to_vec()).unwrap();
        let mut client = Inline::new(&provider, &plan, client).unwrap();
        let (_, negotiated) = client.connect(&at).unwrap();
        Self { client, server, _acceptor: acceptor, device: negotiated.device.clone(), counts }
    }

    fn received(&self) -> [u64; 2] {
        self.counts.each_ref().map(|counts| counts.received.load(Relaxed))
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < until, "stuck at {:?} of {:?}", self.received(), self.counts);
            let closed = self.counts.each_ref().map(|counts| counts.closed.load(Relaxed));
            assert_eq!(closed, [0, 0], "closed at {:?}", self.received());
            self.client.idle(Duration::from_millis(5));
        }
    }

    /// The sum of the device's RNR counters; 0 where it has none.
    fn rnr(&self) -> u64 {
        let device = self.device.split(' ').next().unwrap_or_default();
        let Ok(folder) = fs::read_dir(format!("/sys/class/infiniband/{device}/ports/1/hw_counters")) else {
            return 0;
        };
        folder
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().contains("rnr"))
            .filter_map(|entry| fs::read_to_string(entry.path()).ok()?.trim().parse::<u64>().ok())
            .sum()
    }
}

/// R44, R57: back-pressure; memory stays flat, no RNR, nothing is lost.
fn a_receiver_100_times_slower(scheme: &str) {
    // A device that is emulated takes its time to send.
    let messages = if is_device(scheme) { 200 } else { 1000 };
    let server = Node::new(0, 2000);
    let slow_us = Arc::clone(&server.slow_us);
    slow_us.store(1000, Relaxed);
    let mut pair = Pair::new(scheme, "slow", Node::new(0, 2000), server);
    let rnr = pair.rnr();
    let mut times = Vec::new();
    pair.client.with(|node, io| {
        while node.sent == node.to_send {
            node.to_send += 1;
            let start = Instant::now();
            node.send_more(io);
            times.push(start.elapsed());
        }
        node.to_send = messages;
    });
    // The median: one may have met whatever else the host does.
    times.sort_unstable();
    let fast = times[times.len() / 2];
    slow_us.store(u64::try_from(fast.as_micros()).unwrap() * 110 + 200, Relaxed);
    let (start, left) = (Instant::now(), pair.received()[1]);
    // Nothing waits anywhere but in the ring, or in the slots, of the receiver: memory is flat.
    let most = Cell::new(0);
    pair.run_until(|pair| {
        most.set(most.get().max(pair.client.app().sent - pair.received()[1]));
        pair.received()[1] == messages
    });
    let (most, slow) = (most.get(), start.elapsed().div_f64((messages - left) as f64));
    println!("{scheme}: {fast:?} to send one, {slow:?} to receive one, at most {most} under way");
    assert!(slow > fast.saturating_mul(100), "{fast:?} and {slow:?}: not injected");
    assert!(most < messages / 2, "{most} under way");
    assert_eq!(pair.rnr(), rnr);
}

/// R58: neither side reads before its own ring is full; credit comes back without any.
fn both_directions_full_at_once(scheme: &str) {
    let messages = if is_device(scheme) { 2000 } else { 10_000 };
    let mut pair = Pair::new(scheme, "both", Node::new(messages, 3000), Node::new(messages, 3000));
    let rnr = pair.rnr();
    pair.run_until(|pair| pair.received() == [messages; 2]);
    let blocked = pair.counts.each_ref().map(|counts| counts.blocked.load(Relaxed));
    assert!(blocked.iter().all(|&times| times > 10), "{blocked:?}: not injected");
    assert_eq!(pair.rnr(), rnr);
}

/// R47: threads keep what they get for a while, look at it again, and drop it in any order; one keeps the first for
/// ever. Nothing is written over, nobody waits for them, and what is left outlives the connection and its worker.
fn held_frames_come_back_in_any_order(scheme: &str) {
    let messages = if is_device(scheme) { 3000 } else { 20_000 };
    let mut server = Node::new(0, 1500);
    let threads: Vec<_> = (0..3usize)
        .map(|number| {
            let (sender, receiver) = mpsc::channel();
            server.holders.push(sender);
            thread::spawn(move || {
                let (mut pile, mut first) = (Vec::new(), None);
                for (seq, buf) in receiver {
                    check(seq, &buf);
                    if first.is_none() {
                        first = Some((seq, buf));
                        continue;
                    }
                    pile.push((seq, buf));
                    if pile.len() > 2 + 3 * number {
                        let (seq, buf) = pile.swap_remove(size(seq, pile.len() - 1));
                        check(seq, &buf);
                    }
                    // Now and then it is busy with something else, or has nothing more to do.
                    match seq % 1024 {
                        0..3 => thread::sleep(Duration::from_millis(2)),
                        512..515 => pile.clear(),
                        _ => {}
                    }
                }
                (pile, first)
            })
        })
        .collect();
    let mut pair = Pair::new(scheme, "held", Node::new(0, 1500), server);
    let rnr = pair.rnr();
    pair.client.with(|node, io| {
        node.to_send = messages;
        node.send_more(io);
    });
    pair.run_until(|pair| pair.received()[1] == messages);
    let duty = pair.server.handles()[0].duty();
    println!("{scheme}: {} held in place, {} copied", duty.held, duty.held_copied);
    assert!(duty.held > messages / 100, "{} of {messages} were held in place", duty.held);
    assert!(duty.held_copied > 0, "never beyond the budget: not injected");
    assert_eq!(pair.rnr(), rnr);
    let Pair { client, server, .. } = pair;
    assert!(client.close(Duration::from_secs(30)), "the goodbye was not answered");
    assert!(server.shutdown(Duration::from_secs(30)), "the worker did not stop");
    for thread in threads {
        let (pile, first) = thread.join().unwrap();
        assert!(first.is_some());
        for (seq, buf) in pile.into_iter().chain(first) {
            check(seq, &buf);
        }
    }
}

macro_rules! for_each_scheme {
    ($($case:ident)*) => {
        mod mem { $(#[test] fn $case() { super::$case("mem"); })* }
        mod shm { $(#[test] fn $case() { super::$case("shm"); })* }
        mod tcp { $(#[test] fn $case() { super::$case("tcp"); })* }
        #[cfg(feature = "verbs")]
        mod rxe { $(#[test] #[ignore = "needs the lab"] fn $case() { super::$case("rxe"); })* }
        #[cfg(feature = "verbs")]
        mod siw { $(#[test] #[ignore = "needs the lab"] fn $case() { super::$case("siw"); })* }
    };
}

for_each_scheme! {
    a_receiver_100_times_slower
    both_directions_full_at_once
    held_frames_come_back_in_any_order
}
