//! The conformance suite through `Any`, and what only `Any` can do: several providers on one poll thread.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use gimmal_testkit::conformance::{RealTime, knock_on_socket, knock_on_tcp, run};
use gimmal_transport::{
    Address, Any, AnyConfig, Batch, Chain, ConnId, ConnectOptions, Connecting, Incoming, Instant, Limit,
    ListenError, ListenOptions, Listener, Look, Port, PortConfig, PortError, Provider, Staged, Tag, Time,
    Wait,
    any::{AnyListener, AnyPort},
    testing::{self, Came},
};

fn without_verbs() -> Any {
    Any::with(AnyConfig { verbs: false, ..AnyConfig::default() })
}

const WRONG: &str = "rdma://127.0.0.1:1";
/// Cases of the suite that apply to shared memory, and as many to TCP.
const PASSED: usize = 124;

#[test]
fn any_conforms_over_shared_memory() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_owned();
    let address = move |number: u32| Address::Shm { path: base.join(number.to_string()) };
    let harness = RealTime::new("any/shm", without_verbs(), address, WRONG.parse().unwrap());
    run(&mut harness.with_knocker(knock_on_socket)).expect(PASSED);
}

#[test]
fn any_conforms_over_memory() {
    let address = |number: u32| Address::Mem { name: format!("any-{number}") };
    let harness = RealTime::new("any/mem", without_verbs(), address, WRONG.parse().unwrap());
    run(&mut harness.with_knocker(knock_on_socket)).expect(PASSED);
}

#[test]
fn any_conforms_over_tcp() {
    let address = |_| "tcp://127.0.0.1:0".parse().unwrap();
    let harness = RealTime::new("any/tcp", without_verbs(), address, WRONG.parse().unwrap());
    run(&mut harness.with_knocker(knock_on_tcp)).expect(PASSED);
}

struct Both {
    any: Any,
    started: Instant,
    ports: [AnyPort; 2],
    events: [Vec<Came>; 2],
}

impl Both {
    fn new(config: &PortConfig) -> Self {
        let any = without_verbs();
        let ports = [any.open_port(config).unwrap(), any.open_port(config).unwrap()];
        Self { any, started: Instant::now(), ports, events: [Vec::new(), Vec::new()] }
    }

    fn now(&self) -> Time {
        Time::default().plus(self.started.elapsed())
    }

    fn poll(&mut self) {
        let now = self.now();
        for (port, events) in self.ports.iter_mut().zip(&mut self.events) {
            let mut batch = Batch::new(8);
            events.extend(testing::poll(port, now, &mut batch));
        }
        assert!(self.started.elapsed() < Duration::from_secs(20), "it never came: {:?}", self.events);
    }

    fn until(&mut self, side: usize, want: impl Fn(&Came) -> bool) -> Came {
        loop {
            if let Some(at) = self.events[side].iter().position(&want) {
                return self.events[side].remove(at);
            }
            self.poll();
        }
    }

    fn connect(&mut self, listener: &mut AnyListener) -> [ConnId; 2] {
        let (address, options) = (listener.address(), ConnectOptions::default());
        let mut connecting = self.any.connect(&address, &self.ports[0].gate(), &options).unwrap();
        let wait = Duration::from_secs(10);
        let incoming = listener.accept(wait).unwrap().unwrap();
        let passive = incoming.accept(&self.ports[1].gate()).unwrap();
        let active = connecting.poll(wait).unwrap().unwrap();
        let now = self.now();
        let ids = [self.ports[0].adopt(active, now).unwrap(), self.ports[1].adopt(passive, now).unwrap()];
        for (side, id) in ids.into_iter().enumerate() {
            self.until(side, |event| matches!(event, Came::Opened { conn, .. } if *conn == id));
        }
        ids
    }

    fn send(&mut self, conn: ConnId, payload: &[u8]) {
        stage(&mut self.ports[0], conn, payload);
        self.ports[0].flush();
    }
}

/// Stages `payload` as a frame.
fn stage(port: &mut impl Port, conn: ConnId, payload: &[u8]) {
    let staged = Staged { payload_bytes: payload.len(), tag: Tag(1), chain: Chain::Begin };
    let end = port.compose(conn, payload.len(), |room| {
        room.copy_from_slice(payload);
        Some(staged)
    });
    assert!(end.unwrap().is_some());
}

fn listeners(both: &Both, name: &str) -> (tempfile::TempDir, [AnyListener; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let shm = Address::Shm { path: folder.path().join(name) };
    let mem = Address::Mem { name: format!("both-{name}") };
    let listen = |address| both.any.listen(&address, &ListenOptions::default()).unwrap();
    (folder, [listen(shm), listen(mem), listen("tcp://127.0.0.1:0".parse().unwrap())])
}

fn readable(port: &AnyPort) -> bool {
    let fd = port.wait_fd();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&none)).unwrap() == 1
}

#[test]
fn one_port_serves_all_kinds_and_sleeps_on_one_descriptor() {
    let mut both = Both::new(&PortConfig::default());
    let (_folder, [mut shm, mut mem, mut tcp]) = listeners(&both, "two");
    let pairs = [both.connect(&mut shm), both.connect(&mut mem), both.connect(&mut tcp)];
    for (round, [active, passive]) in pairs.into_iter().cycle().take(12).enumerate() {
        while !both.ports[1].arm() {
            both.poll();
        }
        assert!(!readable(&both.ports[1]), "asleep in round {round}");
        let payload = [u8::try_from(round).unwrap(); 33];
        both.send(active, &payload);
        assert!(readable(&both.ports[1]), "a frame wakes in round {round}");
        both.ports[1].disarm();
        let event = both.until(1, |event| matches!(event, Came::Frame { .. }));
        let Came::Frame { conn, frame } = event else { unreachable!() };
        assert_eq!((conn, &*frame), (passive, &payload[..]));
        both.ports[1].release(conn, frame);
    }
    for [active, passive] in pairs {
        let now = both.now();
        both.ports[0].close(active, gimmal_transport::CloseReason::Local, now);
        both.until(0, |event| matches!(event, Came::Closed { conn, .. } if *conn == active));
        both.until(1, |event| matches!(event, Came::Closed { conn, .. } if *conn == passive));
    }
    assert!(both.ports[1].arm(), "nothing is left to say");
    assert!(!readable(&both.ports[1]));
    both.ports[1].waker().ring();
    assert!(readable(&both.ports[1]), "the waker wakes without connections too");
    both.ports[1].disarm();
}

#[test]
fn shared_memory_alone_is_reached_directly() {
    let mut both = Both::new(&PortConfig::default());
    let (_folder, [mut shm, mut mem, _]) = listeners(&both, "direct");
    let are_direct = |both: &mut Both| both.ports.each_mut().map(|port| port.direct().is_some());
    assert_eq!(are_direct(&mut both), [false; 2]);
    let [active, passive] = both.connect(&mut shm);
    assert_eq!(are_direct(&mut both), [true; 2]);

    let sender = both.ports[0].direct().unwrap();
    stage(sender, active, b"abc");
    sender.flush();
    let receiver = both.ports[1].direct().unwrap();
    let Look::Run(mut run) = receiver.next_run(Limit::Frames(1)) else { panic!("no frame") };
    assert_eq!((run.conn(), run.next_frame().unwrap().payload()), (passive, &b"abc"[..]));
    receiver.end_run(&mut run, false);

    // Names of this process are shared memory too.
    both.connect(&mut mem);
    assert_eq!(are_direct(&mut both), [true; 2]);
}

#[test]
fn a_small_batch_is_fair_and_the_limit_is_over_all() {
    let mut both = Both::new(&PortConfig { connections: 2, ..PortConfig::default() });
    let (_folder, [mut shm, mut mem, mut tcp]) = listeners(&both, "fair");
    let pairs = [both.connect(&mut shm), both.connect(&mut tcp)];
    for [active, _] in pairs {
        for _ in 0..8 {
            both.send(active, b"x");
        }
    }
    let mut seen = Vec::new();
    while seen.len() < 16 {
        let (now, mut batch) = (both.now(), Batch::new(1));
        for event in testing::poll(&mut both.ports[1], now, &mut batch) {
            let Came::Frame { conn, frame } = event else { panic!("{event:?}") };
            both.ports[1].release(conn, frame);
            seen.push(conn);
        }
    }
    let other = seen.iter().position(|conn| *conn != seen[0]).unwrap();
    assert!(other < 8, "one provider kept the other out: {seen:?}");

    let gate = both.ports[0].gate();
    let mut connecting = both.any.connect(&mem.address(), &gate, &ConnectOptions::default()).unwrap();
    let incoming = mem.accept(Duration::from_secs(5)).unwrap().unwrap();
    let link = incoming.accept(&both.ports[1].gate()).unwrap();
    let now = both.now();
    let refused = both.ports[1].adopt(link, now);
    assert!(
        matches!(refused, Err(PortError::Limit { field: "connections", value: 3, limit: 2 })),
        "{refused:?}"
    );
    drop(connecting.poll(Duration::from_secs(5)));
}

#[test]
fn what_is_missing_is_named() {
    let none = Any::with(AnyConfig { shm: false, verbs: false, tcp: false });
    assert!(matches!(none.open_port(&PortConfig::default()), Err(PortError::NotOpened { .. })));
    for (url, provider) in [("mem://x", "shm"), ("shm:///tmp/x", "shm"), ("tcp://127.0.0.1:0", "tcp")] {
        let error = none.listen(&url.parse().unwrap(), &ListenOptions::default()).unwrap_err();
        assert_eq!(error, ListenError::Port(PortError::NotOpened { provider }));
    }
    let any = without_verbs();
    let port = any.open_port(&PortConfig::default()).unwrap();
    let rdma: Address = WRONG.parse().unwrap();
    let listening = any.listen(&rdma, &ListenOptions::default()).unwrap_err();
    let connecting = any.connect(&rdma, &port.gate(), &ConnectOptions::default()).unwrap_err();
    for error in [listening.to_string(), connecting.to_string()] {
        let why = if cfg!(feature = "verbs") { "verbs was not opened" } else { "cargo feature `verbs`" };
        assert!(error.contains(why), "{error}");
    }
    let only = AnyConfig::for_addresses(&["mem://x".parse().unwrap()]);
    assert_eq!((only.shm, only.verbs, only.tcp), (true, false, false));
}
