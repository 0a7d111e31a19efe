//! A peer that does all that is limited, as fast as it can: the server keeps within the sum of its limits, serves others
//! meanwhile, and counts each refusal by its cause.
//!
//! ```text
//!  this process: an honest client ──► the server's process ◄── the attacker's process, or one that only uses as much CPU
//! ```
//! The attack lasts `GIMMAL_LIMITS_SECONDS` (2), and on a busy machine until each refusal was seen.

use std::{
    collections::BTreeMap,
    io::Read,
    path::Path,
    process::{Child, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use super::{
    super::{
        segment::{SEALS, create_file},
        table::Stage,
    },
    kill::connect_when_there,
    *,
};
use crate::{
    AcceptError, Gate, Instant, PortError, RejectReason,
    strangers::PLACES,
    testing::process::{role, this_binary},
};

const LOAN: usize = 1 << 20;
/// What is not made for a peer: tables of the allocator, stacks, what the test itself counts with.
const OWN_BYTES: u64 = 16 << 20;

fn limited() -> PortConfig {
    PortConfig {
        loan_bytes_max: 16 << 20,
        bulk_bytes_max: 8 << 20,
        peer_ring_bytes_max: 64 << 10,
        connections: 16,
        huge_pages: false,
        ..config(16 << 10)
    }
}

/// What all the limits of [`limited`] come to.
fn limit_bytes() -> u64 {
    let config = limited();
    let connections = u64::from(config.connections);
    let rings = u64::from(config.peer_ring_bytes_max.max(config.ring_bytes) + config.ring_bytes);
    let strangers = PLACES as u64 * 4096;
    // A segment has room beside what is lent of it, and the last one is kept.
    let loans = connections * config.loan_bytes_max + (16 << 20);
    connections * rings + loans + strangers + OWN_BYTES
}

/// A slice of the scheduler's: on a shared machine any echo may be late by it.
const SLICE: Duration = Duration::from_millis(4);

/// What the words of each refusal have in them.
const CAUSES: [&str; 5] = [
    "does not speak gimmal's protocol",
    "overloaded",
    "port.peer_ring_bytes_max",
    "bytes of pool segments",
    "port.loan_bytes_max",
];
/// A busy machine takes longer than it should.
const PATIENCE: Duration = Duration::from_secs(90);

/// For how long the attacker goes on.
#[derive(Clone, Copy)]
struct Term<'a> {
    ends: Instant,
    last: Instant,
    /// The server says by this file that each refusal was seen; none is waited for without it.
    seen: Option<&'a Path>,
}

impl<'a> Term<'a> {
    fn new(seen: Option<&'a Path>) -> Self {
        let wanted = std::env::var("GIMMAL_LIMITS_SECONDS").map_or(2, |wanted| wanted.parse().unwrap());
        let ends = Instant::now() + Duration::from_secs(wanted);
        Self { ends, last: ends + PATIENCE, seen }
    }

    fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.ends && (now >= self.last || self.seen.is_none_or(Path::exists))
    }
}

/// Bytes in memory, and those of page tables.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    of("VmRSS:") + of("VmPTE:")
}

#[derive(Default)]
struct Counted(BTreeMap<String, u64>);

impl Counted {
    /// Counts one more of `what`, whose numbers do not matter.
    fn count(&mut self, what: &str) {
        let what: String = what.chars().filter(|sign| !sign.is_ascii_digit()).collect();
        *self.0.entry(what).or_default() += 1;
    }

    fn has(&self, cause: &str) -> bool {
        self.0.iter().any(|(what, count)| what.contains(cause) && *count > 0)
    }
}

/// Accepts until it is told to stop.
fn accept(
    mut listener: ShmListener,
    gate: &ShmGate,
    links: &Sender<ShmLink>,
    counted: &Mutex<Counted>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let incoming = listener.accept(Duration::from_millis(20)).unwrap();
        let mut counted = counted.lock().unwrap();
        for reason in [RejectReason::Overloaded, RejectReason::NotOurs] {
            counted.0.insert(format!("by the listener: {reason}"), listener.rejections().count_of(reason));
        }
        match incoming.map(|incoming| incoming.accept(gate)) {
            None => {}
            Some(Ok(link)) => links.send(link).unwrap(),
            Some(Err(AcceptError::Rejected(reason))) => counted.count(&reason.to_string()),
            Some(Err(AcceptError::Gone { .. })) => counted.count("gone"),
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

struct Server<'a> {
    port: ShmPort,
    links: Receiver<ShmLink>,
    loans: BTreeMap<ConnId, Vec<crate::Loan>>,
    counted: &'a Mutex<Counted>,
}

impl Server<'_> {
    fn count(&self, what: &str) {
        self.counted.lock().unwrap().count(what);
    }

    fn turn(&mut self, now: Time, batch: &mut Batch) {
        for link in self.links.try_iter() {
            if let Err(PortError::Limit { field, .. }) = self.port.adopt(link, now) {
                self.count(field);
            }
        }
        for event in testing::poll(&mut self.port, now, batch) {
            match event {
                Came::Frame { conn, frame, .. } => {
                    if frame.starts_with(b"lend") {
                        self.lend(conn);
                    } else if stage(&mut self.port, conn, &frame, 7).is_err() {
                        self.count("answer without room");
                    }
                    let credit = Credit { bytes: frame.end(), arrivals: 0 };
                    self.port.release(conn, frame);
                    self.port.return_credit(conn, credit);
                }
                Came::Closed { conn, reason } => {
                    self.loans.remove(&conn);
                    self.count(&reason.to_string());
                }
                _ => {}
            }
        }
        self.port.flush();
    }

    /// As a handler that answers with bulk, which the peer does not read.
    fn lend(&mut self, conn: ConnId) {
        match self.port.gate().allocate(conn, LOAN) {
            Ok(loan) => {
                let _ = self.port.offer(conn, &loan);
                self.loans.entry(conn).or_default().push(loan);
            }
            Err(error) => self.count(&error.to_string()),
        }
    }
}

#[test]
#[ignore = "the other process of another test"]
fn child_limited_server() {
    let Some(path) = role() else { return };
    let (stop_at, seen_at) = (format!("{path}.stop"), format!("{path}.seen"));
    let options =
        ListenOptions { handshake_timeout: SECOND, backlog: 4 * PLACES as u16, ..ListenOptions::default() };
    let listener = Shm.listen(&Address::Shm { path: path.into() }, &options).unwrap();
    let port = Shm.open_port(&limited()).unwrap();
    let (gate, stop, counted) = (port.gate(), AtomicBool::new(false), Mutex::new(Counted::default()));
    let (send, links) = channel();
    let (before, started) = (resident(), Instant::now());
    let most = std::thread::scope(|scope| {
        scope.spawn(|| accept(listener, &gate, &send, &counted, &stop));
        let mut server = Server { port, links, loans: BTreeMap::new(), counted: &counted };
        let (mut batch, mut most, mut measured) = (Batch::new(64), before, started);
        while !Path::new(&stop_at).exists() && started.elapsed() < PATIENCE.saturating_mul(2) {
            for _ in 0..200 {
                server.turn(Time::default().plus(started.elapsed()), &mut batch);
            }
            if measured.elapsed() >= Duration::from_millis(5) {
                (most, measured) = (most.max(resident()), Instant::now());
                let counted = counted.lock().unwrap();
                if CAUSES.iter().all(|cause| counted.has(cause)) {
                    std::fs::write(&seen_at, "").unwrap();
                }
            }
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        most
    });
    println!();
    println!("grown {}", most - before);
    counted.lock().unwrap().0.iter().for_each(|(what, count)| println!("counted {count} {what}"));
}

/// A client that may be refused.
fn try_connect(address: &Address, ring_bytes: u32) -> Option<Side> {
    let port = Shm.open_port(&config(ring_bytes)).unwrap();
    let link = connect(address, &port.gate()).ok()?.poll(SECOND)?.ok()?;
    Some(Side::adopt(port, link))
}

fn socket_of(side: &Side) -> Option<BorrowedFd<'_>> {
    match &side.port.table.slots[side.conn.index() as usize].stage {
        Stage::Live(live) => Some(live.end.socket.as_fd()),
        _ => None,
    }
}

/// Sockets without a hello, as many as there are places and more.
fn is_silent(address: &Address, term: Term<'_>) {
    while !term.is_over() {
        let sockets: Vec<_> = (0..PLACES).filter_map(|_| super::super::dial(address).ok()).collect();
        std::thread::sleep(Duration::from_millis(150));
        drop(sockets);
    }
}

/// Foreign words, and a hello that asks for a large ring.
fn says_nonsense(address: &Address, term: Term<'_>) {
    while !term.is_over() {
        if let Ok(socket) = super::super::dial(address) {
            let _ = socket::send(&socket, b"GET / HTTP/1.1");
        }
        let _ = try_connect(address, 1 << 20);
    }
}

/// Memory that comes and goes, and at last more than may be passed.
fn passes(address: &Address, term: Term<'_>) {
    let bytes = 64 << 20;
    let file = create_file("passed", bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    while !term.is_over() {
        let Some(mut side) = try_connect(address, 16 << 10) else { continue };
        for name in 0..64 {
            let Some(socket) = socket_of(&side) else { break };
            let _ = send_pool(socket, name, bytes as u64, file.as_fd());
            let _ = socket::send_gone(socket, name);
        }
        let ends = Instant::now() + Duration::from_millis(500);
        while let Some(socket) = socket_of(&side)
            && Instant::now() < ends
        {
            let _ = send_pool(socket, 1 << 20, 1 << 43, file.as_fd());
            side.poll();
        }
    }
}

/// Loans that are never read, and doorbells beside them.
fn reads_nothing(address: &Address, term: Term<'_>) {
    while !term.is_over() {
        let mut sides: Vec<_> = (0..4).filter_map(|_| try_connect(address, 16 << 10)).collect();
        let ends = Instant::now() + SECOND;
        while Instant::now() < ends && !sides.is_empty() {
            sides.retain_mut(|side| {
                let _ = stage(&mut side.port, side.conn, b"lend", 1);
                side.port.flush();
                side.poll();
                let Some(socket) = socket_of(side) else { return false };
                (0..8).for_each(|_| _ = socket::send_doorbell(socket));
                true
            });
        }
    }
}

#[test]
#[ignore = "the other process of another test"]
fn child_limits_attacker() {
    let Some(role) = role() else { return };
    let (deed, path) = role.split_once(' ').unwrap();
    let (address, seen) = (Address::Shm { path: path.into() }, format!("{path}.seen"));
    let spins = |_: &Address, term: Term<'_>| while !term.is_over() {};
    let attack = deed == "attack";
    let term = Term::new(attack.then(|| Path::new(&seen)));
    let deeds: [fn(&Address, Term<'_>); 4] = match attack {
        true => [is_silent, says_nonsense, passes, reads_nothing],
        false => [|_, _| {}, spins, spins, spins],
    };
    std::thread::scope(|scope| {
        for deed in deeds {
            let address = &address;
            scope.spawn(move || deed(address, term));
        }
    });
}

/// The 99th percentile of an echo while `child` runs, and how many there were.
fn echo_beside(child: &mut Child, side: &mut Side) -> (Duration, usize) {
    let mut times = Vec::new();
    while child.try_wait().unwrap().is_none() {
        let began = Instant::now();
        side.send(b"ping", 3);
        let answer = side.frame();
        assert_eq!(&*answer, b"ping");
        side.give_back(answer);
        times.push(began.elapsed());
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(child.wait().unwrap().success());
    times.sort_unstable();
    (times[times.len() * 99 / 100], times.len())
}

#[test]
fn a_peer_that_does_all_at_once_is_held_to_the_sum_of_the_limits() {
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let path = path.to_str().unwrap();
    let child = |test: &str, role: &str| {
        this_binary(test, role).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
    };
    let mut server = child("shm::tests::limits::child_limited_server", path);
    let mut side = connect_when_there(&address, 16 << 10);
    let attacker = |deed: &str| child("shm::tests::limits::child_limits_attacker", &format!("{deed} {path}"));
    let (quiet, quiet_echoes) = echo_beside(&mut attacker("spin"), &mut side);
    let (attacked, echoes) = echo_beside(&mut attacker("attack"), &mut side);
    std::fs::write(format!("{path}.stop"), "").unwrap();
    let mut said = String::new();
    server.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(server.wait().unwrap().success(), "{said}");
    let grown: u64 = said.lines().find_map(|line| line.strip_prefix("grown ")).unwrap().parse().unwrap();
    let limit = limit_bytes();
    println!("{said}");
    println!("{grown} bytes more, the limits come to {limit}");
    println!("p99 {quiet:?} of {quiet_echoes} beside a load, {attacked:?} of {echoes} beside an attack");
    assert!(grown <= limit, "{grown} bytes more than before, and the limits come to {limit}");
    for cause in CAUSES {
        let counted = said.lines().filter_map(|line| line.strip_prefix("counted ")?.split_once(' '));
        let is_seen = counted.into_iter().any(|(count, what)| what.contains(cause) && count != "0");
        assert!(is_seen, "nobody was refused for {cause}: {said}");
    }
    // Threads of three processes share the processors, so a few echoes say nothing. A debug build shows its own slowness.
    let is_judged = !cfg!(debug_assertions) && echoes.min(quiet_echoes) >= 200;
    assert!(!is_judged || attacked <= quiet.saturating_mul(3).max(SLICE), "others wait {attacked:?}");
}
