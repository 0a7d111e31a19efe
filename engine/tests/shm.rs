//! The engine over shared memory: real threads, real clocks, every idle strategy.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{sync::Arc, time::Duration};

use gimmal_engine::{
    Acceptor, Act, App, Config, Head, Idle, Inline, Io, Message, Pick, Plan, SendError, Workers,
    transport::{
        Address, CloseReason, ConnId, Hello, Instant, Negotiated, Port, PortConfig, Provider as _, Refusal,
        RejectReason,
        shm::Shm,
        testing::{patient_connect, patient_listen},
    },
};

/// Echoes messages; as a client it counts the echoes.
#[derive(Debug, Default)]
struct Echo {
    returned: u64,
    closed: Vec<CloseReason>,
    waiting: Vec<(ConnId, Head, Vec<u8>)>,
    is_client: bool,
}

impl App for Echo {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        if self.is_client {
            assert!(message.body.iter().all(|&byte| byte == message.head.aux.to_le_bytes()[0]));
            self.returned += 1;
            return;
        }
        let body = message.body;
        let sent = io.send(conn, message.head, body.len(), |out| {
            out[..body.len()].copy_from_slice(body);
            Some(body.len())
        });
        if sent == Err(SendError::Blocked) {
            self.waiting.push((conn, message.head, body.to_vec()));
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId) {
        for (conn, head, body) in std::mem::take(&mut self.waiting) {
            let sent = io.send(conn, head, body.len(), |out| {
                out[..body.len()].copy_from_slice(&body);
                Some(body.len())
            });
            if sent.is_err() {
                self.waiting.push((conn, head, body));
            }
        }
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        self.closed.push(reason.clone());
    }
}

fn plan(idle: Idle) -> Plan {
    let port = PortConfig { ring_bytes: 64 << 10, ..PortConfig::default() };
    Config { idle, port, connect: patient_connect(), ..Config::default() }.validate().unwrap()
}

fn serve(name: &str, plan: &Plan) -> (Workers<Shm, Echo>, Acceptor, Address) {
    let shm = Shm;
    let folder = std::env::temp_dir().join(format!("gimmal-engine-{}-{name}", std::process::id()));
    let address = Address::Shm { path: folder };
    let workers = Workers::spawn(&shm, plan, |_| Echo::default()).unwrap();
    let listener = shm.listen(&address, &patient_listen()).unwrap();
    let acceptor = Acceptor::spawn(listener, workers.handles().to_vec()).unwrap();
    (workers, acceptor, address)
}

/// The application lets in whom it wants, and the others read why, with its own bytes.
#[test]
fn the_application_refuses_with_its_own_bytes() {
    let plan = plan(Idle::Event);
    let folder = std::env::temp_dir().join(format!("gimmal-engine-{}-admit", std::process::id()));
    let address = Address::Shm { path: folder };
    let workers = Workers::spawn(&Shm, &plan, |_| Echo::default()).unwrap();
    let listener = Shm.listen(&address, &patient_listen()).unwrap();
    let mut turn = 0;
    let admit = move |hello: &Hello, peer: &str| {
        assert!(hello.ring_bytes == 64 << 10 && !peer.is_empty());
        turn += 1;
        let reason = RejectReason::Application { code: turn };
        if turn > 1 { Ok(()) } else { Err(Refusal::with_data(reason, b"come back").unwrap()) }
    };
    let acceptor =
        Acceptor::spawn_with(listener, workers.stations().to_vec(), Box::new(admit), Box::new(|_| {}))
            .unwrap();
    let mut inline = Inline::new(&Shm, &plan, Echo { is_client: true, ..Echo::default() }).unwrap();
    let error = inline.connect(&address).unwrap_err().to_string();
    assert!(error.contains("the application refused with code 1"), "{error}");
    assert_eq!((acceptor.accepted(), acceptor.rejections().count()), (0, 1));
    let (conn, _) = inline.connect(&address).unwrap();
    echo(&mut inline, conn, 10, 1, |_| 8);
    assert_eq!((acceptor.accepted(), acceptor.rejections().count()), (1, 1));
}

fn client(plan: &Plan, address: &Address) -> (Inline<Shm, Echo>, ConnId, Arc<Negotiated>) {
    let mut client = Inline::new(&Shm, plan, Echo { is_client: true, ..Echo::default() }).unwrap();
    let (conn, negotiated) = client.connect(address).unwrap();
    (client, conn, negotiated)
}

fn echo(client: &mut Inline<Shm, Echo>, conn: ConnId, count: u64, window: u64, bytes: impl Fn(u64) -> usize) {
    let (start, deadline) = (client.app().returned, Instant::now() + Duration::from_secs(60));
    let mut sent = 0;
    while client.app().returned < start + count {
        assert!(Instant::now() < deadline, "stuck after {} of {count}", client.app().returned - start);
        while sent < count && sent - (client.app().returned - start) < window {
            let len = bytes(sent);
            let head = Head { kind: 0, aux: sent };
            let outcome = client.with(|_, io| {
                io.send(conn, head, len, |out| {
                    out[..len].fill(sent.to_le_bytes()[0]);
                    Some(len)
                })
            });
            match outcome {
                Ok(()) => sent += 1,
                Err(SendError::Blocked) => break,
                Err(error) => panic!("{error}"),
            }
        }
        client.idle(Duration::from_millis(50));
    }
}

/// A message that is sought never reaches the application, the others all do, and the ring's bytes come back either way.
/// Sends 1,000 bytes that say which message it is.
struct Send {
    conn: ConnId,
    aux: u64,
}

impl Act<Echo> for Send {
    type Outcome = Result<(), SendError>;

    fn act<P: Port>(self, _: &mut Echo, io: &mut Io<'_, P>) -> Self::Outcome {
        io.send(self.conn, Head { kind: 0, aux: self.aux }, 1000, |out| {
            out[..1000].fill(self.aux.to_le_bytes()[0]);
            Some(1000)
        })
    }
}

/// Waits for the one with `aux`.
struct Wanted {
    conn: ConnId,
    aux: u64,
}

impl Pick<Echo> for Wanted {
    fn pick<P: Port>(
        &mut self,
        _: &mut Echo,
        _: &mut Io<'_, P>,
        conn: ConnId,
        message: &Message<'_>,
    ) -> bool {
        let is_it = conn == self.conn && message.head.aux == self.aux;
        assert!(!is_it || message.body == [self.aux.to_le_bytes()[0]; 1000]);
        is_it
    }
}

#[test]
fn a_sought_message_is_taken_and_the_others_are_handed_out() {
    for (idle, name) in [(Idle::Spin, "spin"), (Idle::default(), "adaptive"), (Idle::Event, "event")] {
        let (_workers, _acceptor, address) = serve(&format!("sought-{name}"), &plan(Idle::default()));
        let (mut client, conn, _) = client(&plan(idle), &address);
        let (mut taken, mut others) = (0, 0);
        // 3 MB through a ring of 64 KiB.
        for round in 0..1000_u64 {
            for aux in round * 3..round * 3 + 3 {
                client.with_later(Send { conn, aux }).unwrap();
            }
            // The first, the second or the third of them; those before it are handed out, those behind it later.
            let wanted = round * 3 + round % 3;
            let deadline = Instant::now() + Duration::from_secs(30);
            let before = client.app().returned;
            while !client.seek(Duration::from_millis(50), Wanted { conn, aux: wanted }) {
                // It may have come with a turn that looks at everything.
                if client.app().returned + taken > wanted {
                    break;
                }
                assert!(Instant::now() < deadline, "{name}: not there in round {round}");
            }
            taken += u64::from(client.app().returned + taken <= wanted);
            others += client.app().returned - before;
        }
        while client.app().returned + taken < 3000 {
            client.idle(Duration::from_millis(50));
        }
        assert!(taken > 500 && others > 500, "{name}: {taken} taken, {others} handed out on the way");
        assert_eq!((client.app().returned + taken, client.app().closed.len()), (3000, 0), "{name}");
    }
}

#[test]
fn every_idle_strategy_carries_every_size() {
    for (name, idle) in
        [("spin", Idle::Spin), ("adaptive", Idle::Adaptive { spin_us: 20 }), ("event", Idle::Event)]
    {
        let plan = plan(idle);
        let (_workers, _acceptor, address) = serve(name, &plan);
        let (mut client, conn, negotiated) = client(&plan, &address);
        assert_eq!(negotiated.frame_bytes_max, 16 << 10);
        echo(&mut client, conn, 2000, 1, |_| 64);
        echo(&mut client, conn, 2000, 32, |seq| (seq * 37 % 9000) as usize);
        assert!(client.close(Duration::from_secs(30)), "{name}: the goodbye was not answered");
    }
}

/// R63 in small, R64: a long run that wraps the ring many times, at every size around a frame's limit.
#[test]
fn r64_sizes_at_the_limit() {
    let plan = plan(Idle::default());
    let (_workers, _acceptor, address) = serve("sizes", &plan);
    let (mut client, conn, _) = client(&plan, &address);
    let limit = client.with(|_, io| io.body_bytes_max(conn));
    echo(&mut client, conn, 200, 4, |seq| limit - (seq % 40) as usize);
    let refused = client.with(|_, io| io.send(conn, Head::default(), limit + 1, |_| None));
    assert_eq!(refused, Err(SendError::TooLarge { bytes: limit + 1, limit }));
}

/// An idle engine sleeps: its process uses next to no time, and wakes when something comes.
#[test]
fn an_idle_worker_sleeps_and_wakes() {
    let plan = plan(Idle::Adaptive { spin_us: 50 });
    let (workers, _acceptor, address) = serve("idle", &plan);
    let (mut client, conn, _) = client(&plan, &address);
    echo(&mut client, conn, 10, 1, |_| 8);
    let before = workers.handles()[0].duty();
    std::thread::sleep(Duration::from_millis(300));
    let after = workers.handles()[0].duty();
    assert!(after.turns - before.turns < 2000, "{} turns in 300 idle ms", after.turns - before.turns);
    echo(&mut client, conn, 10, 1, |_| 8);
}

/// What was sent before a turn has left when it returns: who sleeps is rung, though nobody turns again.
#[test]
fn one_turn_wakes_a_sleeper() {
    let (workers, _acceptor, address) = serve("one-turn", &plan(Idle::Event));
    let (mut client, conn, _) = client(&plan(Idle::Spin), &address);
    let turns = || workers.handles()[0].duty().turns;
    let mut late = 0;
    for aux in 0..20 {
        // Until it has slept for a while.
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, turns()) != before {
            std::thread::sleep(Duration::from_millis(5));
        }
        client.with_later(Send { conn, aux }).unwrap();
        client.turn();
        let sent = Instant::now();
        while turns() == before {
            assert!(sent.elapsed() < Duration::from_secs(10), "message {aux} woke nobody");
            std::thread::sleep(Duration::from_micros(100));
        }
        // It looks around by itself every 100 ms.
        late += u32::from(sent.elapsed() > Duration::from_millis(50));
        while client.app().returned <= aux {
            client.turn();
        }
    }
    assert!(late <= 10, "{late} of 20 were not rung for");
}

/// R98: the server stops; the client hears an orderly close.
#[test]
fn r98_a_stopping_server_says_goodbye() {
    let plan = plan(Idle::default());
    let (workers, acceptor, address) = serve("stop", &plan);
    let (mut client, conn, _) = client(&plan, &address);
    echo(&mut client, conn, 10, 1, |_| 8);
    drop(acceptor);
    let stopper = std::thread::spawn(move || workers.shutdown(Duration::from_secs(30)));
    let deadline = Instant::now() + Duration::from_secs(30);
    while client.app().closed.is_empty() && Instant::now() < deadline {
        client.idle(Duration::from_millis(10));
    }
    assert_eq!(client.app().closed, [CloseReason::Peer]);
    assert!(stopper.join().unwrap(), "the workers did not stop in time");
}
