//! Both roles on simulated worlds: many seeds, every medium, calls of every kind, random cancels and deadlines, and the
//! connection lost anywhere.
//!
//! Every call ends exactly once · none runs twice · none that is said not to have run did · every answer is its call's
//! · nothing is left: no call, handler, place or slot · the world saw no misuse of credit.

mod accesses;
mod clock;
mod drain;
mod pipe;
mod seek;
mod storm;

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::{
    Config as EngineConfig, Inline,
    transport::{
        Address, ConnectOptions, Connecting as _, Incoming as _, ListenOptions, Listener as _, Provider as _,
        Time,
    },
};
use gimmal_sim::{Fault, FaultKind, Sim, SimConfig, SimDevice, Step, each, seeds, world};

use pipe::{PIPED, raw_request};

use super::{
    Fresh, Node,
    world::{Rng, accept, address, config, node},
};
use crate::{
    Bulk, Cx, Fate, ResponseWriter, WithLoan,
    calls::{CallKey, Reply},
    codec::{Decode, Encoded, Postcard, Raw},
    error::CallError,
    metadata::Metadata,
    method::Method,
    response::{Body, Response, ResponseStatus},
    stats::{Counters, Stats},
};

#[gimmal_macros::service(crate = crate)]
trait World {
    async fn now(&self, cx: &Cx, number: u32) -> u32;
    async fn soon(&self, cx: &Cx, number: u32) -> u32;
    async fn large(&self, cx: &Cx, number: u32) -> (u32, Vec<u8>);
    async fn lend(&self, cx: &Cx, number: u32) -> WithLoan<u32>;
    async fn take(&self, cx: &Cx, number: u32, bytes: Bulk) -> u32;
    async fn huge(&self, cx: &Cx, number: u32, filler: Vec<u8>) -> (u32, Vec<u8>);
    #[raw]
    fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
}

type Gates = Arc<Mutex<Vec<(Arc<AtomicBool>, Waker)>>>;

#[derive(Clone, Default)]
struct Handlers {
    /// How often each call ran.
    journal: Arc<Mutex<HashMap<u32, u32>>>,
    /// Handlers that wait for the test.
    gates: Gates,
    /// Peers whose calls mean nothing.
    foes: Arc<Mutex<HashSet<String>>>,
}

impl Handlers {
    /// Notes that a call ran. Whether its arguments are those that the test gave.
    fn run(&self, cx: &Cx, number: u32) -> bool {
        let is_honest = !self.foes.lock().unwrap().contains(cx.peer().name);
        if is_honest {
            *self.journal.lock().unwrap().entry(number).or_default() += 1;
            if is_noted(number) {
                let mut metadata = Metadata::new();
                metadata.insert("number", number.to_le_bytes()).unwrap();
                cx.answer_metadata(metadata);
            }
        }
        is_honest
    }
}

struct Gate {
    open: Arc<AtomicBool>,
    gates: Gates,
}

impl Future for Gate {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.open.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.gates.lock().unwrap().push((Arc::clone(&self.open), context.waker().clone()));
        Poll::Pending
    }
}

fn bytes(number: u32) -> usize {
    (number as usize * 37) % 3000
}

/// Whether the answer comes with metadata.
fn is_noted(number: u32) -> bool {
    number.is_multiple_of(5)
}

/// Most are above a message, some above `message_bytes_max`.
fn huge_bytes(number: u32) -> usize {
    (number as usize * 397) % 33_000
}

impl World for Handlers {
    async fn now(&self, cx: &Cx, number: u32) -> u32 {
        self.run(cx, number);
        number
    }

    async fn soon(&self, cx: &Cx, number: u32) -> u32 {
        self.run(cx, number);
        Gate { open: Arc::default(), gates: Arc::clone(&self.gates) }.await;
        number
    }

    async fn large(&self, cx: &Cx, number: u32) -> (u32, Vec<u8>) {
        self.run(cx, number);
        (number, vec![1; bytes(number)])
    }

    async fn lend(&self, cx: &Cx, number: u32) -> WithLoan<u32> {
        self.run(cx, number);
        match cx.loan(bytes(number)) {
            Ok(loan) => WithLoan::new(number, loan),
            Err(_) => WithLoan::without(number),
        }
    }

    async fn take(&self, cx: &Cx, number: u32, lent: Bulk) -> u32 {
        assert!(!self.run(cx, number) || lent.len() == bytes(number));
        number
    }

    async fn huge(&self, cx: &Cx, number: u32, filler: Vec<u8>) -> (u32, Vec<u8>) {
        let is_whole = filler.len() == huge_bytes(number) && filler.iter().all(|byte| *byte == 3);
        assert!(!self.run(cx, number) || is_whole);
        (number, vec![4; huge_bytes(number + 31)])
    }

    fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        self.run(cx, request.first_chunk().map_or(0, |number| u32::from_le_bytes(*number)));
        answer.write(request);
    }
}

/// Methods, by their places.
const HUGE: usize = 5;
const RAW: usize = 6;
/// One that the server spells differently.
const MISMATCHED: usize = 7;

struct Run {
    sim: Sim,
    rng: Rng,
    client: Inline<Sim, Node>,
    server: Inline<Sim, Node>,
    counters: [Arc<Counters>; 2],
    conn: Option<gimmal_engine::transport::ConnId>,
    handlers: Handlers,
    now: Time,
    /// Calls in flight: number, method, key.
    open: Vec<(u32, usize, CallKey)>,
    ended: HashMap<u32, Result<(), Fate>>,
    cancelled: usize,
    /// Answers that were read where they landed.
    sought: usize,
    /// Answers that a pipeline showed.
    shown: usize,
}

/// Time goes on. What is due lies there before anybody polls, and so comes by runs too.
pub(super) fn tick(sim: &Sim, now: &mut Time, ns: u64) {
    *now = Time(now.0 + ns);
    sim.advance(*now);
}

/// A turn of the client, and perhaps one of the server.
pub(super) fn turns(
    sim: &Sim,
    client: &mut Inline<Sim, Node>,
    server: &mut Inline<Sim, Node>,
    rng: &mut Rng,
    now: &mut Time,
) {
    tick(sim, now, 1000);
    client.at(*now).turn();
    if rng.below(3) > 0 {
        server.at(*now).turn();
    }
}

/// Connects the two; the client's end.
pub(super) fn connect(
    sim: &Sim,
    client: &mut Inline<Sim, Node>,
    server: &mut Inline<Sim, Node>,
    rng: &mut Rng,
    now: &mut Time,
) -> gimmal_engine::transport::ConnId {
    let mut listener = sim.listen(&address(), &ListenOptions::default()).unwrap();
    let gate = client.handle().gate().clone();
    let mut connecting = sim.connect(&address(), &gate, &ConnectOptions::default()).unwrap();
    for _ in 0..10_000 {
        turns(sim, client, server, rng, now);
        accept(&mut listener, server, *now);
        if let Some(link) = connecting.poll(Duration::ZERO) {
            client.at(*now).adopt(link.unwrap());
            break;
        }
    }
    for _ in 0..1000 {
        turns(sim, client, server, rng, now);
        if let Some((conn, _)) = client.app_mut().conns.iter_mut().next() {
            return conn;
        }
    }
    panic!("no connection");
}

impl Run {
    fn new(seed: u64, sim: SimConfig) -> Self {
        let mut run = Self::apart(seed, sim, EngineConfig::default().heartbeat_ms);
        run.connect();
        run
    }

    /// Not connected.
    fn apart(seed: u64, sim: SimConfig, heartbeat_ms: u32) -> Self {
        let sim = Sim::new(sim);
        let handlers = Handlers::default();
        let config = |serving_max| {
            let mut config = config(serving_max);
            config.engine.heartbeat_ms = heartbeat_ms;
            config
        };
        // A server that takes fewer calls than the client's window refuses some.
        let (server, served) =
            node(&sim, &config(6 + (seed % 3) as usize), vec![Arc::new(serve_world(handlers.clone()))]);
        let (client, called) = node(&sim, &config(1), Vec::new());
        Self {
            sim,
            rng: Rng(seed * 2 + 1),
            client,
            server,
            counters: [called, served],
            conn: None,
            handlers,
            now: Time(0),
            open: Vec::new(),
            ended: HashMap::new(),
            cancelled: 0,
            sought: 0,
            shown: 0,
        }
    }

    fn connect(&mut self) {
        let Self { sim, client, server, rng, now, .. } = self;
        self.conn = Some(connect(sim, client, server, rng, now));
    }

    fn turns(&mut self) {
        tick(&self.sim, &mut self.now, 1000);
        self.client_turn();
        if self.rng.below(3) > 0 {
            self.server.at(self.now).turn();
        }
    }

    fn call(&mut self, number: u32) {
        let Some(conn) = self.conn else { return };
        let at = self.rng.index(8);
        if at == MISMATCHED {
            return self.pipe(conn, number);
        }
        let method: &'static Method = &__world_methods()[at];
        let timeout = match self.rng.below(4) {
            0 => Some(Duration::from_micros(1 + self.rng.below(200))),
            1 => None,
            _ => Some(Duration::from_secs(1)),
        };
        let loan = (at == 4).then(|| {
            let handle = self.client.handle();
            handle.allocate(conn, bytes(number).max(1)).ok().map(|loan| loan.truncate(bytes(number)))
        });
        let loan = loan.flatten();
        if at == 4 && loan.is_none() {
            return;
        }
        let arguments = (number,);
        let started = self.client.with(|node, io| {
            if at == RAW {
                let request = raw_request(number);
                let source = Fresh::new(&request[..]);
                node.start(io, conn, method, timeout, source, (None, None), Reply::Local)
            } else if at == HUGE {
                let arguments = (number, vec![3u8; huge_bytes(number)]);
                let value = &Encoded::<Postcard, _>::new(&arguments);
                node.start(io, conn, method, timeout, Fresh::new(value), (None, None), Reply::Local)
            } else {
                let value = &Encoded::<Postcard, _>::new(&arguments);
                node.start(io, conn, method, timeout, Fresh::new(value), (loan, None), Reply::Local)
            }
        });
        match started {
            Ok(key) => self.open.push((number, at, key)),
            Err(error) => {
                assert_eq!(error.fate(), Fate::NotRun, "{error}");
                self.ended.insert(number, Err(Fate::NotRun));
            }
        }
    }

    fn take_responses(&mut self) {
        let Some(conn) = self.conn else { return };
        let node = self.client.app_mut();
        let ended = &mut self.ended;
        self.open.retain(|(number, at, key)| {
            if *at == PIPED {
                return true;
            }
            let Some(response) = node.take(conn, *key, &Cell::default()) else { return true };
            let result = judge(*number, *at, response);
            assert!(ended.insert(*number, result).is_none(), "call {number} ended twice");
            false
        });
        self.take_piped(conn);
    }

    fn step(&mut self) {
        self.turns();
        self.act();
    }

    /// What the two sides' users do between turns.
    fn act(&mut self) {
        self.take_responses();
        if self.rng.below(4) == 0 {
            let mut gates = self.handlers.gates.lock().unwrap();
            if !gates.is_empty() {
                let at = self.rng.index(gates.len());
                let (open, waker) = gates.swap_remove(at);
                drop(gates);
                open.store(true, Ordering::Relaxed);
                waker.wake();
            }
        }
        if self.rng.below(12) == 0 && !self.open.is_empty() {
            let at = self.rng.index(self.open.len());
            let (_, _, key) = self.open.swap_remove(at);
            let conn = self.conn.unwrap();
            self.client.with(|node, io| node.cancel(io, conn, key));
            self.cancelled += 1;
        }
    }

    /// Makes `calls` calls and waits for the end of all.
    fn run(&mut self, calls: u32) {
        let mut next = 0;
        for _ in 0..40_000 {
            self.step();
            if next < calls && self.rng.below(2) == 0 {
                let together = if self.rng.below(6) == 0 { 1 + self.rng.below(11) } else { 1 };
                let last = calls.min(next + u32::try_from(together).unwrap());
                if last - next > 1 {
                    self.pipe_all(next..last)
                } else {
                    self.call(next)
                }
                next = last;
            }
            if next == calls && self.open.is_empty() {
                break;
            }
        }
        // What was cancelled last is on its way still.
        for _ in 0..3000 {
            self.step();
        }
    }

    fn check(&self, what: &str, calls: u32) {
        assert!(self.open.is_empty(), "{what}: {} calls never ended", self.open.len());
        let journal = self.handlers.journal.lock().unwrap();
        for (number, times) in journal.iter() {
            assert_eq!(*times, 1, "{what}: call {number} ran {times} times");
        }
        for (number, result) in &self.ended {
            let ran = journal.contains_key(number);
            match result {
                Ok(()) | Err(Fate::Ran) => assert!(ran, "{what}: call {number} was answered and never ran"),
                Err(Fate::NotRun) => assert!(!ran, "{what}: call {number} ran, and was said not to"),
                Err(_) => {}
            }
        }
        assert!(self.ended.len() + self.cancelled <= calls as usize, "{what}");
        let stats = |counters: &Counters| {
            let mut stats = Stats::default();
            counters.add_to(&mut stats);
            stats
        };
        let (called, served) = (stats(&self.counters[0]), stats(&self.counters[1]));
        assert_eq!(called.calls, called.answered + called.failed + called.cancelled, "{what}: {called:?}");
        assert_eq!((served.serving, served.panics), (0, 0), "{what}: {served:?}");
        let (client, server) = (self.client.app(), self.server.app());
        assert_eq!((client.calls_live, server.tasks.len(), client.closed.len()), (0, 0, 0), "{what}");
        assert_eq!(self.sim.rnr_count(), 0, "{what}: RNR");
        assert_eq!(self.sim.findings().misuses, [], "{what}");
    }
}

/// Checks that the response is the call's; returns how it ended.
fn judge(number: u32, at: usize, response: Response) -> Result<(), Fate> {
    let is_large = matches!(response.body, Body::Bulk(_));
    if let Some(noted) = response.metadata.as_ref().and_then(|metadata| metadata.get("number")) {
        assert_eq!(noted, number.to_le_bytes(), "another call's metadata");
    } else if response.failure().is_none() {
        assert!(!is_noted(number), "an answer without its metadata");
    }
    match response.status {
        ResponseStatus::Ok => {
            let body = response.body.bytes();
            assert!(at < MISMATCHED && (!is_large || body.len() > 3000));
            assert_eq!(read(number, at, body), number, "another call's answer");
            assert_eq!(!is_large && at == 3 && bytes(number) > 0, response.lent.is_some());
            assert!(response.lent.is_none_or(|bulk| bulk.len() == bytes(number)));
            Ok(())
        }
        ResponseStatus::Error | ResponseStatus::Begun(_) => panic!("an error, of a method that has none"),
        ResponseStatus::Failed(failure) => {
            if let CallError::Mismatch(it) = &*failure {
                let theirs = &it.theirs;
                assert_eq!((at, &theirs[..]), (MISMATCHED, "now(u32) -> u32 [postcard]"));
            }
            Err(failure.fate())
        }
    }
}

/// Whose answer it is.
fn read(number: u32, at: usize, body: &[u8]) -> u32 {
    match at {
        2 => {
            let (answer, filler): (u32, Vec<u8>) = Postcard::decode(body).unwrap();
            assert_eq!(filler.len(), bytes(number));
            answer
        }
        HUGE => {
            let (answer, filler): (u32, Vec<u8>) = Postcard::decode(body).unwrap();
            assert!(filler.len() == huge_bytes(number + 31) && filler.iter().all(|byte| *byte == 4));
            answer
        }
        RAW => {
            let body = <Raw as Decode<'_, Vec<u8>>>::decode(body).unwrap();
            assert!(body.len() == 4 + huge_bytes(number) && body[4..].iter().all(|byte| *byte == 5));
            u32::from_le_bytes(*body.first_chunk().unwrap())
        }
        _ => Postcard::decode(body).unwrap(),
    }
}

impl Run {
    /// Answered, said not to have run, unsure.
    fn sums(&self) -> [usize; 3] {
        let count = |wanted| self.ended.values().filter(|ended| **ended == wanted).count();
        [count(Ok(())), count(Err(Fate::NotRun)), count(Err(Fate::MaybeRan))]
    }
}

fn add(sums: &mut [usize; 3], run: &Run) {
    sums.iter_mut().zip(run.sums()).for_each(|(sum, of)| *sum += of);
}

/// [`seeds`], but never so few that a test does not meet all that it says it met.
fn all_met() -> u64 {
    seeds().max(16)
}

#[test]
fn every_call_ends_once_on_every_medium() {
    let (mut sums, mut sought, mut shown) = ([0; 3], 0, 0);
    let all = each("every_call_ends_once_on_every_medium", seeds(), |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        run.run(150);
        run.check(what, 150);
        add(&mut sums, &run);
        (sought, shown) = (sought + run.sought, shown + run.shown);
    });
    let in_place = [sought, shown];
    assert!(!all || !(sums.contains(&0) || in_place.contains(&0)), "{sums:?}, in place {in_place:?}");
}

#[test]
fn r25_a_connection_lost_anywhere_ends_every_call_once() {
    let mut sums = [0; 3];
    let all = each("r25_a_connection_lost_anywhere_ends_every_call_once", seeds(), |what, seed, device| {
        let mut config = world(seed, device);
        config.faults = vec![Fault::at(Step::Frame(5 + seed % 50 * 3), FaultKind::Lost)];
        let mut run = Run::new(seed, config);
        run.run(200);
        assert_eq!(run.sim.findings().injected.len(), 1, "{what}: not injected");
        run.check(what, 200);
        add(&mut sums, &run);
    });
    assert!(!all || sums[2] > 0);
}
