//! What a client does between the messages that it seeks.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::Waker,
    time::Duration,
};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, Pick, Plan, Rest, RxBuf, SendError, Workers,
    transport::{
        Address, ConnId, Instant, Listener as _, Port, PortConfig, Provider as _, Time,
        any::Any,
        testing::{patient_connect, patient_listen},
    },
};

const LIMIT: Duration = Duration::from_secs(60);
/// Messages that the server sends, each of which takes 4 KiB of a ring of 64 KiB.
const MESSAGES: u64 = 64;
const BODY: usize = 4080;

fn plan(idle: Idle) -> Plan {
    let port = PortConfig { ring_bytes: 64 << 10, ..PortConfig::default() };
    Config { idle, port, heartbeat_ms: 0, connect: patient_connect(), ..Config::default() }
        .validate()
        .unwrap()
}

fn address(scheme: &str, name: &str) -> Address {
    let url = match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        _ => format!("{scheme}://seek-{name}-{}", std::process::id()),
    };
    url.parse().unwrap()
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Sends all it has as soon as it is asked to.
#[derive(Debug)]
struct Server {
    sent: u64,
    received: Arc<AtomicU64>,
    blocked: Arc<AtomicU64>,
}

impl Server {
    fn send_more<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        while self.sent < MESSAGES {
            match io.send(conn, Head { kind: 0, aux: self.sent }, BODY, |out| {
                out[..BODY].fill(self.sent.to_le_bytes()[0]);
                Some(BODY)
            }) {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked) => {
                    self.blocked.fetch_add(1, SeqCst);
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl App for Server {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        self.received.fetch_add(1, SeqCst);
        if message.head.kind == 1 {
            self.send_more(io, conn);
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        self.send_more(io, conn);
    }
}

/// A server on a thread of its own, and what it tells.
struct Served {
    address: Address,
    received: Arc<AtomicU64>,
    blocked: Arc<AtomicU64>,
    _acceptor: Acceptor,
    _workers: Workers<Any, Server>,
}

fn serve(scheme: &str, name: &str) -> Served {
    let (received, blocked) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let told = (Arc::clone(&received), Arc::clone(&blocked));
    let make = move |_| Server { sent: 0, received: Arc::clone(&told.0), blocked: Arc::clone(&told.1) };
    let provider = Any::new();
    let workers = Workers::spawn(&provider, &plan(Idle::Event), make).unwrap();
    let listener = provider.listen(&address(scheme, name), &patient_listen()).unwrap();
    let address = listener.address();
    let acceptor = Acceptor::spawn(listener, workers.handles()).unwrap();
    Served { address, received, blocked, _acceptor: acceptor, _workers: workers }
}

/// Counts messages and holds one of them.
#[derive(Debug)]
struct Holder {
    received: u64,
    holds: u64,
    held: Option<RxBuf>,
}

impl Holder {
    fn take<P: Port>(&mut self, io: &mut Io<'_, P>, message: &Message<'_>) {
        assert_eq!((message.head.aux, message.body.len()), (self.received, BODY));
        self.received += 1;
        if self.received == self.holds {
            self.held = Some(io.hold(message));
        }
    }
}

impl App for Holder {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId, message: Message<'_>) {
        self.take(io, &message);
    }
}

/// Takes every message.
struct Every;

impl Pick<Holder> for Every {
    fn pick<P: Port>(
        &mut self,
        app: &mut Holder,
        io: &mut Io<'_, P>,
        _: ConnId,
        message: &Message<'_>,
    ) -> bool {
        app.take(io, message);
        true
    }
}

/// The run that a message was sought in is not over when the message is held: credit for it is given when it is.
fn a_message_that_is_held_while_it_is_sought_costs_no_credit(scheme: &str) {
    for holds in 7..16 {
        let served = serve(scheme, &format!("held-{holds}"));
        let mut client =
            Inline::new(&Any::new(), &plan(Idle::Event), Holder { received: 0, holds, held: None }).unwrap();
        let (conn, _) = client.connect(&served.address).unwrap();
        client.with(|_, io| io.send(conn, Head { kind: 1, aux: 0 }, 0, |_| Some(0)).unwrap());
        wait("the ring is not full", || served.blocked.load(SeqCst) > 0);
        let seek_until = |client: &mut Inline<Any, Holder>, count| {
            let until = Instant::now() + LIMIT;
            while client.app().received < count {
                client.seek(Duration::from_millis(5), Every);
                let received = client.app().received;
                assert!(Instant::now() < until, "stuck behind message {received}, held was {holds}");
            }
        };
        seek_until(&mut client, holds);
        client.with(|_, _| ());
        seek_until(&mut client, 16);
        let held = client.app_mut().held.take().expect("it was held");
        assert_eq!(*held, [(holds - 1).to_le_bytes()[0]; BODY]);
        drop(held);
        seek_until(&mut client, MESSAGES);
    }
}

#[test]
fn a_message_that_is_held_while_it_is_sought_costs_no_credit_over_mem() {
    a_message_that_is_held_while_it_is_sought_costs_no_credit("mem");
}

#[test]
fn a_message_that_is_held_while_it_is_sought_costs_no_credit_over_tcp() {
    a_message_that_is_held_while_it_is_sought_costs_no_credit("tcp");
}

/// Sends a message from one of its ticks.
#[derive(Debug)]
struct Ticker {
    conn: Option<ConnId>,
    /// Ticks before that.
    left: Option<u32>,
}

impl App for Ticker {
    type Command = ();

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}

    fn tick<P: Port>(&mut self, io: &mut Io<'_, P>) -> Time {
        if let (Some(conn), Some(left)) = (self.conn, self.left) {
            self.left = left.checked_sub(1);
            if self.left.is_none() {
                io.send(conn, Head { kind: 0, aux: 0 }, 0, |_| Some(0)).unwrap();
            }
        }
        Time::NEVER
    }
}

/// Takes turns until one of the ticks has sent, after `left` others, and the worker sleeps.
fn send_and_sleep(client: &mut Inline<Any, Ticker>, left: u32) {
    client.app_mut().left = Some(left);
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until, "it never sleeps");
        if !matches!(client.step(LIMIT, Waker::noop(), true), Rest::Sleep(_)) {
            continue;
        }
        if client.app().left.is_none() {
            return;
        }
        client.woke();
    }
}

/// A frame lies in the peer's ring at once, and a peer that sleeps has to be rung for it.
#[test]
fn a_peer_that_sleeps_is_rung_for_what_a_tick_sends() {
    let received = Arc::<AtomicU64>::default();
    let app = Server { sent: 0, received: Arc::clone(&received), blocked: Arc::default() };
    let (provider, plan) = (Any::new(), plan(Idle::Event));
    let mut server = Inline::new(&provider, &plan, app).unwrap();
    let listener = provider.listen(&address("mem", "rung"), &patient_listen()).unwrap();
    let at = listener.address();
    let _acceptor = Acceptor::spawn(listener, vec![server.handle()]).unwrap();
    let mut client = Inline::new(&Any::new(), &plan, Ticker { conn: None, left: None }).unwrap();
    let (conn, _) = client.connect(&at).unwrap();
    client.app_mut().conn = Some(conn);
    let handle = server.handle();
    wait("it is not open", || {
        server.turn();
        handle.duty().connections_opened == 1
    });
    for round in 0..12 {
        wait("the server never sleeps", || matches!(server.step(LIMIT, Waker::noop(), true), Rest::Sleep(_)));
        send_and_sleep(&mut client, round % 6);
        let alarm = server.alarm().unwrap();
        let mut fds = [rustix::event::PollFd::new(&alarm, rustix::event::PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "message {round} woke nobody");
        server.woke();
        client.woke();
        wait("the message is not there", || {
            server.turn();
            received.load(SeqCst) > u64::from(round)
        });
    }
}

/// Also from the tick that asks how long it may sleep.
fn what_a_tick_sends_leaves_before_the_worker_sleeps(scheme: &str) {
    let served = serve(scheme, "tick");
    let app = Ticker { conn: None, left: None };
    let mut client = Inline::new(&Any::new(), &plan(Idle::Event), app).unwrap();
    let (conn, _) = client.connect(&served.address).unwrap();
    client.app_mut().conn = Some(conn);
    for round in 0..12 {
        send_and_sleep(&mut client, round % 6);
        // Nobody wakes it.
        let what = format!("message {round} did not leave");
        wait(&what, || served.received.load(SeqCst) > u64::from(round));
        client.woke();
    }
}

#[test]
fn what_a_tick_sends_leaves_before_the_worker_sleeps_over_mem() {
    what_a_tick_sends_leaves_before_the_worker_sleeps("mem");
}

#[test]
fn what_a_tick_sends_leaves_before_the_worker_sleeps_over_tcp() {
    what_a_tick_sends_leaves_before_the_worker_sleeps("tcp");
}
