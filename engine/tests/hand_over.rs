//! Connections that go from one worker to another and back while their peers send.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, Plan, SendError, WorkerHandle, Workers,
    transport::{
        Address, Bulk, BulkError, CloseReason, ConnId, Instant, ListenOptions, Negotiated, Port, PortConfig,
        Provider as _, shm::Shm,
    },
};

/// Sends back what it gets, and knows how much that was of each connection; as a client it checks what comes.
#[derive(Debug, Default)]
struct Echo {
    served: Vec<(ConnId, u64)>,
    waiting: Vec<(ConnId, Head, Vec<u8>)>,
    returned: u64,
    is_client: bool,
    is_rooted: bool,
}

impl Echo {
    fn send<P: Port>(io: &mut Io<'_, P>, conn: ConnId, head: Head, body: &[u8]) -> Result<(), SendError> {
        io.send(conn, head, body.len(), |out| {
            out[..body.len()].copy_from_slice(body);
            Some(body.len())
        })
    }
}

impl App for Echo {
    /// How many messages a connection that comes has had.
    type Command = u64;

    fn opened<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.served.push((conn, 0));
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        let Message { head, body, .. } = message;
        if self.is_client {
            assert_eq!(head.aux, self.returned, "in order, each once");
            assert!(body.iter().all(|&byte| byte == head.aux.to_le_bytes()[0]));
            self.returned += 1;
            return;
        }
        let (_, served) = self.served.iter_mut().find(|(known, _)| *known == conn).unwrap();
        assert_eq!(head.aux, *served, "in order, each once");
        *served += 1;
        if !self.waiting.is_empty() || Self::send(io, conn, head, body).is_err() {
            self.waiting.push((conn, head, body.to_vec()));
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId) {
        for (conn, head, body) in std::mem::take(&mut self.waiting) {
            if !self.waiting.is_empty() || Self::send(io, conn, head, &body).is_err() {
                self.waiting.push((conn, head, body));
            }
        }
    }

    fn pack(&mut self, conn: ConnId) -> Option<u64> {
        if self.is_rooted || self.waiting.iter().any(|(waiting, ..)| *waiting == conn) {
            return None;
        }
        let at = self.served.iter().position(|(known, _)| *known == conn)?;
        Some(self.served.swap_remove(at).1)
    }

    fn unpack<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, packed: u64) {
        self.served.push((conn, packed));
    }

    fn pulled<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: u64, _: Result<Bulk, BulkError>) {}

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        assert!(self.is_client || *reason == CloseReason::Peer, "{conn:?}: {reason}");
    }

    fn command<P: Port>(&mut self, _: &mut Io<'_, P>, _: u64) {}
}

fn plan(workers: usize, idle: Idle) -> Plan {
    let port = PortConfig { ring_bytes: 16 << 10, ..PortConfig::default() };
    Config { workers, idle, port, ..Config::default() }.validate().unwrap()
}

fn address(name: &str) -> Address {
    Address::Shm {
        path: std::env::temp_dir().join(format!("gimmal-hand-over-{}-{name}", std::process::id())),
    }
}

type Served = (Workers<Shm, Echo>, Acceptor, Address);

fn serve(name: &str, plan: &Plan, is_rooted: bool) -> Served {
    let address = address(name);
    let workers = Workers::spawn(&Shm, plan, move |_| Echo { is_rooted, ..Echo::default() }).unwrap();
    let listener = Shm.listen(&address, &ListenOptions::default()).unwrap();
    let acceptor = Acceptor::spawn(listener, workers.handles().to_vec()).unwrap();
    (workers, acceptor, address)
}

/// A client that makes `count` echoes with a window of 32, of up to 2,000 bytes.
fn client(address: &Address) -> (Inline<Shm, Echo>, ConnId) {
    let echo = Echo { is_client: true, ..Echo::default() };
    let mut client = Inline::new(&Shm, &plan(1, Idle::default()), echo).unwrap();
    let (conn, _) = client.connect(address).unwrap();
    (client, conn)
}

fn echo(client: &mut Inline<Shm, Echo>, conn: ConnId, count: u64) {
    let (mut sent, until) = (client.app().returned, Instant::now() + Duration::from_secs(60));
    let wanted = sent + count;
    while client.app().returned < wanted {
        assert!(Instant::now() < until, "stuck after {} of {wanted}", client.app().returned);
        while sent < wanted && sent - client.app().returned < 32 {
            let body = [sent.to_le_bytes()[0]; 2000];
            let len = usize::try_from(sent * 7 % 2000).unwrap();
            let head = Head { kind: 0, aux: sent };
            match client.with(|_, io| Echo::send(io, conn, head, &body[..len])) {
                Ok(()) => sent += 1,
                Err(SendError::Blocked) => break,
                Err(error) => panic!("{error}"),
            }
        }
        client.idle(Duration::from_millis(50));
    }
}

fn loads(handles: &[WorkerHandle<Shm, Echo>]) -> Vec<u64> {
    handles.iter().map(WorkerHandle::load).collect()
}

/// Four clients send all the time while their connections go back and forth between two workers.
fn nothing_is_lost_or_doubled(name: &str, idle: Idle) {
    let (workers, acceptor, address) = serve(name, &plan(2, idle), false);
    let handles = workers.handles();
    let done = AtomicBool::new(false);
    let went = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (address, done) = (&address, &done);
                scope.spawn(move || {
                    let (mut client, conn) = client(address);
                    while !done.load(Ordering::Relaxed) {
                        echo(&mut client, conn, 100);
                    }
                    client.app().returned
                })
            })
            .collect();
        let (mut went, until) = (0, Instant::now() + Duration::from_secs(60));
        while went < 400 {
            assert!(Instant::now() < until, "only {went} went");
            for (from, to) in [(0, 1), (1, 0)] {
                went += handles[from].hand_over(4, &handles[to]);
            }
        }
        done.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        went
    });
    assert!(went >= 400);
    assert_eq!(acceptor.accepted(), 4);
    let until = Instant::now() + Duration::from_secs(10);
    while loads(&handles) != [0, 0] {
        assert!(Instant::now() < until, "{:?} are left", loads(&handles));
        std::thread::yield_now();
    }
    drop(acceptor);
    assert!(workers.shutdown(Duration::from_secs(5)), "a worker panicked");
}

#[test]
fn nothing_is_lost_or_doubled_while_workers_sleep() {
    nothing_is_lost_or_doubled("sleep", Idle::Event);
}

#[test]
fn nothing_is_lost_or_doubled_while_workers_yield() {
    nothing_is_lost_or_doubled("yield", Idle::default());
}

/// Whoever cannot go stays, and goes on: since its application says so, or since nobody takes it.
#[test]
fn who_cannot_go_stays() {
    let (workers, _acceptor, address) = serve("rooted", &plan(2, Idle::Event), true);
    let (mut rooted, conn) = client(&address);
    let [first, second] = &workers.handles()[..] else { panic!("two workers") };
    assert_eq!(first.hand_over(9, second) + second.hand_over(9, first), 0);
    echo(&mut rooted, conn, 100);

    let (workers, _acceptor, address) = serve("full", &plan(1, Idle::Event), false);
    let (mut sender, conn) = client(&address);
    let [handle] = &workers.handles()[..] else { panic!("one worker") };
    assert_eq!(handle.hand_over(9, handle), 0, "to itself");
    // An inline worker whose thread does something else: its inbox fills up.
    let mut other = Inline::new(&Shm, &plan(1, Idle::Event), Echo::default()).unwrap();
    let there = other.handle();
    while there.submit(0).is_ok() {}
    assert_eq!(handle.hand_over(9, &there), 0);
    echo(&mut sender, conn, 100);
    other.turn();
    assert_eq!((handle.hand_over(9, &there), handle.load()), (1, 0));
    // It waits there until somebody turns.
    sender.with(|_, io| Echo::send(io, conn, Head { kind: 0, aux: 100 }, &[100; 8])).unwrap();
    assert_eq!(sender.idle(Duration::from_millis(20)), 0);
    while sender.app().returned < 101 {
        other.turn();
        sender.turn();
    }
    assert_eq!(other.app().served[0].1, 101);
}
