//! What goes wrong while connecting, on simulated media: lost and doubled messages of the CM, both sides at once, those
//! that come back while their old connection still stands, those that go before they are accepted.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::time::Duration;

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, Workers,
    error::OpenError,
    transport::{
        AcceptError, Address, CloseReason, ConnId, ConnectError, ConnectOptions, Connecting as _,
        Incoming as _, ListenOptions, Listener as _, Negotiated, Port, Provider as _, Time,
    },
};
use gimmal_sim::{Fault, FaultKind, Sim, SimConfig, SimConnecting, SimDevice, SimListener, Step};

/// A medium.
type Device = fn() -> SimDevice;

const DEVICES: [(&str, Device); 3] =
    [("roce", SimDevice::roce), ("iwarp", SimDevice::iwarp), ("shm", SimDevice::shared_memory)];
const MESSAGES: u64 = 20;
const HEARTBEAT_MS: u32 = 10;
const MS: u64 = 1_000_000;

/// The connecting side sends this many messages; the accepting side echoes them.
#[derive(Debug, Default)]
struct Party {
    to_dial: usize,
    dialled: Vec<ConnId>,
    opened: Vec<ConnId>,
    received: Vec<(ConnId, u64)>,
    echoes: Vec<(ConnId, Head)>,
    closed: Vec<(ConnId, CloseReason)>,
}

impl Party {
    fn send<P: Port>(io: &mut Io<'_, P>, conn: ConnId, head: Head) -> bool {
        io.send(conn, head, 8, |out| {
            out[..8].copy_from_slice(&head.aux.to_le_bytes());
            Some(8)
        })
        .is_ok()
    }

    /// The numbers that came on `conn`.
    fn numbers(&self, conn: ConnId) -> Vec<u64> {
        self.received.iter().filter(|(from, _)| *from == conn).map(|(_, number)| *number).collect()
    }
}

impl App for Party {
    type Command = ();

    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.opened.push(conn);
        if self.to_dial > self.dialled.len() {
            self.dialled.push(conn);
            (0..MESSAGES).for_each(|aux| self.echoes.push((conn, Head { kind: 1, aux })));
        }
        self.writable(io, conn);
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        assert_eq!(message.body, message.head.aux.to_le_bytes());
        self.received.push((conn, message.head.aux));
        if message.head.kind == 1 {
            self.echoes.push((conn, Head { kind: 2, aux: message.head.aux }));
            self.writable(io, conn);
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        self.echoes.retain(|(to, head)| *to != conn || !Self::send(io, *to, *head));
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        self.closed.push((conn, reason.clone()));
    }
}

/// One process.
struct Host {
    inline: Inline<Sim, Party>,
    listener: Option<SimListener>,
    connecting: Option<SimConnecting>,
    refused: Option<ConnectError>,
    accepted: usize,
}

impl Host {
    fn new(sim: &Sim, listens: Option<&str>) -> Self {
        let config = Config { heartbeat_ms: HEARTBEAT_MS, ..Config::default() };
        let inline = Inline::new(sim, &config.validate().unwrap(), Party::default()).unwrap();
        let options =
            ListenOptions { handshake_timeout: Duration::from_millis(20), ..ListenOptions::default() };
        let listener = listens.map(|name| sim.listen(&address(name), &options).unwrap());
        Self { inline, listener, connecting: None, refused: None, accepted: 0 }
    }

    fn dial(&mut self, sim: &Sim, name: &str) {
        let options = ConnectOptions {
            connect_timeout: Duration::from_millis(50),
            handshake_timeout: Duration::from_millis(20),
            ..ConnectOptions::default()
        };
        self.inline.app_mut().to_dial += 1;
        self.connecting = Some(sim.connect(&address(name), self.inline.handle().gate(), &options).unwrap());
    }

    fn step(&mut self, now: Time) {
        self.inline.at(now).turn();
        if let Some(incoming) =
            self.listener.as_mut().and_then(|listener| listener.accept(Duration::ZERO).unwrap())
        {
            self.accepted += 1;
            if let Ok(link) = incoming.accept(self.inline.handle().gate()) {
                self.inline.at(now).adopt(link);
            }
        }
        match self.connecting.as_mut().and_then(|connecting| connecting.poll(Duration::ZERO)) {
            Some(Ok(link)) => self.inline.at(now).adopt(link),
            Some(Err(error)) => self.refused = Some(error),
            None => {}
        }
    }

    fn app(&self) -> &Party {
        self.inline.app()
    }
}

fn address(name: &str) -> Address {
    format!("mem://{name}").parse().unwrap()
}

fn config(seed: u64, device: SimDevice, faults: Vec<Fault>) -> SimConfig {
    let (delay_min, delay_max) = (Duration::from_nanos(200), Duration::from_micros(20));
    SimConfig { seed, device, delay_min, delay_max, shuffle: true, faults, ..SimConfig::default() }
}

/// Takes turns for `span` from now on, or until `done`.
fn run(sim: &Sim, hosts: &mut [&mut Host], span: u64, done: impl Fn(&[&mut Host]) -> bool) {
    let end = sim.now().0 + span;
    while sim.now().0 < end && !done(hosts) {
        let now = Time(sim.now().0 + 5000);
        hosts.iter_mut().for_each(|host| host.step(now));
    }
}

fn echoed(host: &Host, conn: ConnId) -> bool {
    host.app().numbers(conn) == (0..MESSAGES).collect::<Vec<_>>()
}

/// R12: a request or its answer is lost and sent again, or comes twice: one connection, and all its messages.
#[test]
fn r12_lost_and_doubled_cm_messages_make_one_connection() {
    let late = FaultKind::Late(Duration::from_millis(3));
    for (name, device) in DEVICES {
        for (step, kind) in [(Step::Request, late), (Step::Reply, late), (Step::Request, FaultKind::Doubled)]
        {
            for seed in 0..10 {
                let what = format!("{name}, seed {seed}, {kind:?} at {step:?}");
                let sim = Sim::new(config(seed, device(), vec![Fault::at(step, kind)]));
                let (mut client, mut server) = (Host::new(&sim, None), Host::new(&sim, Some("one")));
                client.dial(&sim, "one");
                run(&sim, &mut [&mut client, &mut server], 100 * MS, |hosts| {
                    hosts[0].app().received.len() as u64 >= MESSAGES
                });
                assert_eq!(sim.findings().injected, [kind], "{what}: not injected");
                run(&sim, &mut [&mut client, &mut server], 10 * MS, |_| false);
                assert_eq!((client.app().opened.len(), server.app().opened.len()), (1, 1), "{what}");
                assert!(echoed(&client, client.app().opened[0]), "{what}: {:?}", client.app());
                assert_eq!((server.accepted, sim.connections()), (1, 1), "{what}");
                assert_eq!(
                    (&client.app().closed[..], &server.app().closed[..]),
                    (&[][..], &[][..]),
                    "{what}"
                );
                assert_eq!(sim.findings().misuses, [], "{what}");
            }
        }
    }
}

/// R12, R37: it stays lost: the client gives up at its deadline, and the server keeps nothing.
#[test]
fn r12_an_answer_that_comes_too_late_leaves_nothing() {
    for (name, device) in DEVICES {
        for step in [Step::Request, Step::Reply] {
            let late = FaultKind::Late(Duration::from_millis(200));
            let sim = Sim::new(config(1, device(), vec![Fault::at(step, late)]));
            let (mut client, mut server) = (Host::new(&sim, None), Host::new(&sim, Some("late")));
            client.dial(&sim, "late");
            run(&sim, &mut [&mut client, &mut server], 60 * MS, |hosts| hosts[0].refused.is_some());
            // The server's own bound is shorter: it may have hung up before.
            let disconnected = "RDMA_CM_EVENT_DISCONNECTED";
            match client.refused {
                Some(ConnectError::Timeout { .. }) => {}
                Some(ConnectError::Event { event, .. }) if event == disconnected => {}
                ref other => panic!("{name}, {step:?}: {other:?}"),
            }
            run(&sim, &mut [&mut client, &mut server], 300 * MS, |_| false);
            assert_eq!(sim.connections(), 0, "{name}, {step:?}");
            assert_eq!(server.app().opened.len(), 0, "{name}, {step:?}");
        }
    }
}

/// R12: frames that arrive before the passive side adopted the connection are kept.
#[test]
fn r12_a_grant_before_the_passive_side_is_ready_is_kept() {
    for (name, device) in DEVICES {
        let sim = Sim::new(config(2, device(), Vec::new()));
        let (mut client, mut server) = (Host::new(&sim, None), Host::new(&sim, Some("early")));
        let mut listener = server.listener.take().unwrap();
        client.dial(&sim, "early");
        let mut link = None;
        while link.is_none() {
            run(&sim, &mut [&mut client, &mut server], 1000, |_| false);
            let incoming = listener.accept(Duration::ZERO).unwrap();
            link = incoming.map(|incoming| incoming.accept(server.inline.handle().gate()).unwrap());
        }
        // The client's grant is here long before the server looks.
        run(&sim, &mut [&mut client, &mut server], 5 * MS, |_| false);
        assert_eq!(client.app().opened.len(), 0, "{name}: opened without the server's grant");
        server.inline.at(sim.now()).adopt(link.unwrap());
        run(&sim, &mut [&mut client, &mut server], 20 * MS, |_| false);
        assert!(echoed(&client, client.app().opened[0]), "{name}: {:?}", client.app());
    }
}

/// R14: both sides connect to each other at once: two connections that know nothing of each other.
#[test]
fn r14_both_sides_connect_at_once() {
    for (name, device) in DEVICES {
        for seed in 0..20 {
            let sim = Sim::new(config(seed, device(), Vec::new()));
            let mut left = Host::new(&sim, Some("left"));
            let mut right = Host::new(&sim, Some("right"));
            left.dial(&sim, "right");
            right.dial(&sim, "left");
            // Which connection a side dialled: it may open the other one first.
            left.inline.app_mut().to_dial = 0;
            right.inline.app_mut().to_dial = 0;
            run(&sim, &mut [&mut left, &mut right], 50 * MS, |hosts| {
                hosts.iter().all(|host| host.app().opened.len() == 2)
            });
            for host in [&mut left, &mut right] {
                assert_eq!(host.app().opened.len(), 2, "{name}, seed {seed}");
                host.inline.with(|app, io| {
                    for conn in app.opened.clone() {
                        (0..MESSAGES).for_each(|aux| app.echoes.push((conn, Head { kind: 2, aux })));
                        app.writable(io, conn);
                    }
                });
            }
            run(&sim, &mut [&mut left, &mut right], 50 * MS, |hosts| {
                hosts.iter().all(|host| host.app().received.len() as u64 == 2 * MESSAGES)
            });
            for host in [&left, &right] {
                for conn in &host.app().opened {
                    assert!(echoed(host, *conn), "{name}, seed {seed}: {:?}", host.app());
                }
                assert_eq!(host.app().closed, [], "{name}, seed {seed}");
            }
            assert_eq!(sim.findings().misuses, [], "{name}, seed {seed}");
        }
    }
}

/// R15: a client dies without a word, and comes back while the server still holds its old connection: the new one works
/// at once, the old one ends within its bound, its id is refused, and nothing of it comes any more.
#[test]
fn r15_a_client_that_comes_back_meets_no_trace_of_itself() {
    for (name, device) in DEVICES {
        for seed in 0..10 {
            let what = format!("{name}, seed {seed}");
            let silent = Fault::at(Step::Frame(5 + seed), FaultKind::Silent).of(0);
            let sim = Sim::new(config(seed, device(), vec![silent]));
            let (mut client, mut server) = (Host::new(&sim, None), Host::new(&sim, Some("again")));
            client.dial(&sim, "again");
            run(&sim, &mut [&mut client, &mut server], 50 * MS, |_| !sim.findings().injected.is_empty());
            let old = server.app().opened[0];
            drop(client);
            // What it had sent before it died is not late.
            run(&sim, &mut [&mut server], MS, |_| false);
            let before = server.app().numbers(old).len();
            assert_eq!(server.app().closed, [], "{what}: told of the death, which is another case");
            let mut client = Host::new(&sim, None);
            client.dial(&sim, "again");
            run(&sim, &mut [&mut client, &mut server], 5 * MS, |hosts| {
                hosts[0].app().received.len() as u64 == MESSAGES
            });
            let new = *server.app().opened.last().unwrap();
            assert_ne!(new, old, "{what}");
            assert!(echoed(&client, client.app().opened[0]), "{what}: {:?}", client.app());
            run(&sim, &mut [&mut client, &mut server], 3 * u64::from(HEARTBEAT_MS) * MS, |_| false);
            let silent = CloseReason::PeerSilent { bound_ms: HEARTBEAT_MS };
            assert_eq!(server.app().closed, [(old, silent)], "{what}");
            assert!(server.app().numbers(old).len() <= before, "{what}: late data of the old one");
            let sent = server.inline.with(|_, io| Party::send(io, old, Head { kind: 2, aux: 0 }));
            assert!(!sent, "{what}: the old id still sends");
            assert_eq!(sim.findings().misuses, [], "{what}");
        }
    }
}

/// R16: the client goes between its request and the accept: what the accept says, or the handshake's bound, ends it, and
/// the next client is served.
#[test]
fn r16_a_client_that_goes_before_the_accept_leaves_nothing() {
    for (name, device) in DEVICES {
        for way in ["dropped", "lost", "silent"] {
            let what = format!("{name}, {way}");
            let faults = match way {
                "lost" => vec![Fault::at(Step::Accept, FaultKind::Lost)],
                "silent" => vec![Fault::at(Step::Accept, FaultKind::Silent)],
                _ => Vec::new(),
            };
            let sim = Sim::new(config(3, device(), faults));
            let (mut client, mut server) = (Host::new(&sim, None), Host::new(&sim, Some("gone")));
            let mut listener = server.listener.take().unwrap();
            client.dial(&sim, "gone");
            let mut incoming = None;
            while incoming.is_none() {
                run(&sim, &mut [&mut client, &mut server], 1000, |_| false);
                incoming = listener.accept(Duration::ZERO).unwrap();
            }
            if way == "dropped" {
                client.connecting = None;
                run(&sim, &mut [&mut client, &mut server], MS, |_| false);
            }
            match (way, incoming.unwrap().accept(server.inline.handle().gate())) {
                ("silent", Ok(link)) => server.inline.at(sim.now()).adopt(link),
                ("dropped" | "lost", Err(AcceptError::Gone { .. })) => {}
                (_, other) => panic!("{what}: {other:?}"),
            }
            run(&sim, &mut [&mut client, &mut server], 100 * MS, |_| false);
            assert_eq!(sim.connections(), 0, "{what}");
            assert_eq!(server.app().opened, [], "{what}");
            server.listener = Some(listener);
            let mut next = Host::new(&sim, None);
            next.dial(&sim, "gone");
            run(&sim, &mut [&mut next, &mut server], 20 * MS, |hosts| {
                hosts[0].app().received.len() as u64 == MESSAGES
            });
            assert!(echoed(&next, next.app().opened[0]), "{what}");
        }
    }
}

/// R13: a peer that still holds the connection of an earlier queue pair refuses as stale; another queue pair is tried, and
/// not for ever.
#[test]
fn r13_a_stale_connection_is_tried_again_with_another_queue_pair() {
    for (stale, connects) in [(1, true), (4, true), (5, false)] {
        let faults = (0..stale).map(|number| Fault::at(Step::Request, FaultKind::Stale).of(number)).collect();
        let sim = Sim::new(SimConfig { real_time: true, faults, ..SimConfig::default() });
        let plan = Config { idle: Idle::Event, ..Config::default() }.validate().unwrap();
        let servers = Workers::spawn(&sim, &plan, |_| Party::default()).unwrap();
        let listener = sim.listen(&address("stale"), &ListenOptions::default()).unwrap();
        let acceptor = Acceptor::spawn(listener, servers.handles().to_vec()).unwrap();
        let clients = Workers::spawn(&sim, &plan, |_| Party::default()).unwrap();
        let outcome = clients.handles()[0].connect(&address("stale"));
        assert_eq!(sim.findings().injected.len(), stale as usize);
        match outcome {
            Ok(_) => assert!(connects, "after {stale}"),
            Err(OpenError::Connect(ConnectError::Refused { status: 10, .. })) => {
                assert!(!connects, "gave up after {stale}");
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(acceptor.accepted(), u64::from(connects));
    }
}

/// Ports of one world, and workers that hand connections to each other, compare times.
#[test]
fn workers_of_different_ages_have_one_clock() {
    let sim = Sim::new(SimConfig { real_time: true, ..SimConfig::default() });
    let mut old = Host::new(&sim, None);
    std::thread::sleep(Duration::from_millis(20));
    let mut young = Host::new(&sim, None);
    let before = old.inline.now();
    let during = young.inline.now();
    assert!(before <= during && during <= old.inline.now(), "{before:?}, {during:?}");
}
