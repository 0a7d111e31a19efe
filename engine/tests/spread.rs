//! How an acceptor spreads clients over workers, when one of them is blocked or full.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, OpenError, Workers,
    transport::{
        Address, ConnId, ConnectError, Connecting as _, Instant, Port, PortConfig, Provider as _,
        RejectReason, shm::Shm,
    },
};

const LIMIT: Duration = Duration::from_secs(60);

/// Echoes, and blocks its worker when it is asked to: says so, and waits until the other end is dropped.
#[derive(Debug, Default)]
struct Node {
    is_client: bool,
    answers: u32,
}

impl App for Node {
    type Command = (Sender<()>, Receiver<()>);

    fn command<P: Port>(&mut self, _: &mut Io<'_, P>, (blocks, until): Self::Command) {
        blocks.send(()).unwrap();
        let _ = until.recv();
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        if self.is_client {
            self.answers += 1;
        } else {
            io.send(conn, message.head, 0, |_| Some(0)).unwrap();
        }
    }
}

fn config(workers: usize) -> Config {
    let port = PortConfig { ring_bytes: 4 << 10, ..PortConfig::default() };
    let mut config = Config { idle: Idle::Event, port, workers, heartbeat_ms: 0, ..Config::default() };
    // Long, so that nobody gives up by itself: clients wait for a worker that is blocked.
    config.listen.handshake_timeout = LIMIT;
    config.connect.handshake_timeout = LIMIT;
    config.connect.connect_timeout = LIMIT;
    config
}

fn serve(name: &str, config: &Config) -> (Workers<Shm, Node>, Acceptor, Address) {
    let path = std::env::temp_dir().join(format!("gimmal-spread-{}-{name}", std::process::id()));
    let plan = config.clone().validate().unwrap();
    let workers = Workers::spawn(&Shm, &plan, |_| Node::default()).unwrap();
    let listener = Shm.listen(&Address::Shm { path: path.clone() }, &config.listen).unwrap();
    let acceptor = Acceptor::spawn(listener, workers.handles()).unwrap();
    (workers, acceptor, Address::Shm { path })
}

/// Blocks a worker until what this returns is dropped.
fn block(workers: &Workers<Shm, Node>, index: usize) -> Sender<()> {
    let ((blocks, is_blocked), (go, until)) = (channel(), channel());
    workers.handles()[index].submit((blocks, until)).unwrap();
    is_blocked.recv_timeout(LIMIT).unwrap();
    go
}

fn client() -> Inline<Shm, Node> {
    let node = Node { is_client: true, answers: 0 };
    Inline::new(&Shm, &config(1).validate().unwrap(), node).unwrap()
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A worker that is blocked has one new client at most, though it has the fewest.
#[test]
fn new_clients_go_past_a_worker_that_is_blocked() {
    const CLIENTS: usize = 8;
    let (workers, _acceptor, address) = serve("blocked", &config(2));
    let mut first = client();
    first.connect(&address).unwrap();
    let loads =
        || workers.handles().iter().map(|worker| worker.duty().connections_opened).collect::<Vec<_>>();
    wait("nobody has the first", || loads().iter().sum::<u64>() == 1);
    let idle = loads().iter().position(|load| *load == 0).unwrap();
    let go = block(&workers, idle);
    let mut clients: Vec<_> = (0..CLIENTS as u64)
        .map(|others| {
            let mut client = client();
            let (conn, _) = client.connect(&address).unwrap();
            client.with(|_, io| io.send(conn, Head::default(), 0, |_| Some(0)).unwrap());
            // The worker that is not blocked has taken what was handed to it before the next one comes.
            wait("more than one wait for the blocked worker", || loads().iter().sum::<u64>() > others);
            client
        })
        .collect();
    let mut answers = || {
        for client in &mut clients {
            client.turn();
        }
        clients.iter().filter(|client| client.app().answers > 0).count()
    };
    wait("more than one wait for the blocked worker", || answers() >= CLIENTS - 1);
    drop(go);
    wait("it goes on, and so does its client", || answers() == CLIENTS);
}

/// Places for handshakes hold while nobody takes those that were accepted: none of them is late by a fault of its own.
#[test]
fn a_blocked_worker_leaves_no_more_handshakes_than_there_are_places() {
    const PLACES: usize = 16;
    const CLIENTS: usize = 100;
    let config = Config { handshakes_max: PLACES, ..config(1) };
    let (workers, acceptor, address) = serve("places", &config);
    let go = block(&workers, 0);
    let port = Shm.open_port(&config.port).unwrap();
    let mut connecting: Vec<_> =
        (0..CLIENTS).map(|_| Shm.connect(&address, &port.gate(), &config.connect).unwrap()).collect();
    let mut links = Vec::new();
    // Several times as long as it takes until a handshake is late.
    let (least, started) = (Duration::from_secs(2), Instant::now());
    while started.elapsed() < least || acceptor.accepted() < PLACES as u64 {
        assert!(started.elapsed() < LIMIT, "{} accepted", acceptor.accepted());
        connecting.retain_mut(|attempt| {
            attempt.poll(Duration::ZERO).is_none_or(|link| {
                links.push(link.unwrap());
                false
            })
        });
        assert!(acceptor.accepted() <= PLACES as u64, "{} accepted", acceptor.accepted());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(go);
    wait("others get in when it goes on", || {
        connecting.retain_mut(|attempt| attempt.poll(Duration::ZERO).is_none());
        acceptor.accepted() == CLIENTS as u64
    });
    drop(links);
}

/// A client beyond what the ports hold is told so, and none is let in and dropped.
#[test]
fn a_client_beyond_what_the_ports_hold_is_refused() {
    let mut config = config(2);
    config.port.connections = 2;
    let (workers, acceptor, address) = serve("full", &config);
    let mut clients: Vec<_> = (0..4).map(|_| client()).collect();
    let conns: Vec<_> = clients.iter_mut().map(|client| client.connect(&address).unwrap().0).collect();
    let mut another = client();
    let error = another.connect(&address).unwrap_err();
    let is_overloaded = |error: &OpenError| {
        let reason = RejectReason::Overloaded;
        matches!(error, OpenError::Connect(ConnectError::Rejected { reason: why, .. }) if *why == reason)
    };
    assert!(is_overloaded(&error), "{error:?}");
    assert_eq!((acceptor.accepted(), acceptor.rejections().count()), (4, 1));
    // A place that is free again is given to the next.
    clients[0].with(|_, io| io.close(conns[0]));
    wait("a connection that ended is counted", || {
        clients[0].turn();
        workers.handles().iter().map(|worker| worker.duty().connections).sum::<usize>() == 3
    });
    wait("a place that is free stays empty", || another.connect(&address).is_ok());
}
