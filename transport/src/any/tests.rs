//! Two providers on one port: what is idle costs the other nothing, and is not forgotten.

#![allow(clippy::unwrap_used, reason = "loud failures")]

use std::time::Duration;

use super::{
    Any, AnyPort,
    have::{SHM, TCP, number},
    used::{IDLE_EVERY, IDLE_LOOKS},
};
use crate::{
    Address, Batch, Chain, CloseReason, ConnId, Connecting, Incoming, Instant, Limit, ListenOptions,
    Listener, Look, Port, PortConfig, PortError, Provider, Staged, Tag, Time, Wait, kernel,
    testing::{self, Came, patient_connect, patient_listen},
};

const LONG: Duration = Duration::from_secs(60);

/// Two ports with a connection over each provider.
struct Pair {
    ports: [AnyPort; 2],
    shm: [ConnId; 2],
    tcp: [ConnId; 2],
    batch: Batch,
}

impl Pair {
    fn open(name: &str) -> Self {
        let any = Any::new();
        let mut ports = [(); 2].map(|()| any.open_port(&PortConfig::default()).unwrap());
        let mut connect = |address: Address| {
            let mut listener = any.listen(&address, &patient_listen()).unwrap();
            let options = patient_connect();
            let mut connecting = any.connect(&listener.address(), &ports[0].gate(), &options).unwrap();
            let incoming = listener.accept(LONG).unwrap().unwrap();
            let accepted = incoming.accept(&ports[1].gate()).unwrap();
            let link = connecting.poll(LONG).unwrap().unwrap();
            [ports[0].adopt(link, Time(0)).unwrap(), ports[1].adopt(accepted, Time(0)).unwrap()]
        };
        let shm = connect(Address::Mem { name: name.to_owned() });
        let tcp = connect("tcp://127.0.0.1:0".parse().unwrap());
        let mut pair = Self { ports, shm, tcp, batch: Batch::new(16) };
        assert_eq!((number(pair.shm[0]), number(pair.tcp[0])), (SHM, TCP));
        for side in 0..2 {
            for _ in 0..2 {
                let came = pair.next(side);
                assert!(matches!(came, Came::Opened { .. }), "{came:?}");
            }
        }
        pair
    }

    /// What comes to `side` next.
    fn next(&mut self, side: usize) -> Came {
        let until = Instant::now() + LONG;
        let mut one = Batch::new(1);
        loop {
            if let Some(came) = testing::poll(&mut self.ports[side], Time(0), &mut one).pop() {
                return came;
            }
            assert!(Instant::now() < until, "nothing came");
        }
    }

    fn send(&mut self, side: usize, conn: ConnId) {
        let staged = Staged { payload_bytes: 8, tag: Tag(0), chain: Chain::Begin };
        self.ports[side].compose(conn, 8, |_| Some(staged)).unwrap().unwrap();
        self.ports[side].flush();
    }

    /// A frame on `conn` of `side`, by no more than so many looks.
    fn found(&mut self, side: usize, conn: ConnId, looks: u32) {
        for _ in 0..looks {
            match self.ports[side].next_run(Limit::Frames(1)) {
                Look::Run(mut run) => {
                    assert!(run.next_frame().is_some());
                    self.ports[side].end_run(&mut run, false);
                    assert_eq!(run.conn(), conn);
                    return;
                }
                Look::Events => self.ports[side].poll(Time(0), &mut self.batch),
                Look::Nothing => {}
            }
        }
        panic!("not found by {looks} looks");
    }
}

#[test]
fn an_idle_provider_is_looked_at_now_and_then() {
    let mut pair = Pair::open("any-idle");
    let [ours, theirs] = pair.shm;
    // Each side looks about twice a message.
    let messages = 20 * IDLE_EVERY;
    let before = [0, 1].map(|side: usize| pair.ports[side].used.made);
    for _ in 0..messages {
        for (from, to, conn) in [(0, 1, theirs), (1, 0, ours)] {
            pair.send(from, pair.shm[from]);
            pair.found(to, conn, 4);
            assert!(matches!(pair.ports[to].next_run(Limit::Frames(8)), Look::Nothing | Look::Events));
        }
    }
    for (port, before) in pair.ports.iter().zip(before) {
        let looks = |of: usize| port.used.made[of] - before[of];
        let most = IDLE_LOOKS + looks(SHM) / IDLE_EVERY + 1;
        assert!(looks(SHM) >= 2 * messages, "{} looks at shared memory", looks(SHM));
        assert!(looks(TCP) <= most, "{} looks at idle TCP, {} at shared memory", looks(TCP), looks(SHM));
    }
    // It is found all the same, and its answer by the next look of the one that asked.
    pair.send(0, pair.tcp[0]);
    pair.found(1, pair.tcp[1], IDLE_EVERY + 1);
    pair.send(1, pair.tcp[1]);
    pair.found(0, pair.tcp[0], 2);
}

#[test]
fn an_idle_provider_wakes_a_port_that_sleeps() {
    let mut pair = Pair::open("any-wakes");
    while !matches!(pair.ports[1].next_run(Limit::Frames(1)), Look::Nothing)
        || pair.ports[1].used.wants_poll(TCP)
    {}
    assert!(pair.ports[1].arm());
    pair.send(0, pair.tcp[0]);
    let fd = pair.ports[1].wait_fd();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    kernel::wait(&mut fds, Instant::now() + LONG).unwrap();
    assert!(!fds[0].revents().is_empty());
    pair.ports[1].disarm();
    pair.found(1, pair.tcp[1], 2);
}

/// Both ends of a link over `address`, the active one for `ports[0]`.
fn links(any: &Any, ports: &[AnyPort; 2], address: &Address) -> [super::AnyLink; 2] {
    let options = ListenOptions { backlog: 8, ..patient_listen() };
    let mut listener = any.listen(address, &options).unwrap();
    let mut connecting = any.connect(&listener.address(), &ports[0].gate(), &patient_connect()).unwrap();
    let until = Instant::now() + LONG;
    let incoming = loop {
        assert!(connecting.poll(Duration::ZERO).is_none() && Instant::now() < until, "a client is there");
        if let Some(incoming) = listener.accept(Duration::from_millis(10)).unwrap() {
            break incoming;
        }
    };
    let accepted = incoming.accept(&ports[1].gate()).unwrap();
    [connecting.poll(LONG).expect("the server answered").unwrap(), accepted]
}

/// What comes to `port` at `now` until its next `Closed`, and why it came.
fn closed(port: &mut AnyPort, now: Time) -> CloseReason {
    let (mut batch, until) = (Batch::new(16), Instant::now() + LONG);
    loop {
        for came in testing::poll(port, now, &mut batch) {
            if let Came::Closed { reason, .. } = came {
                return reason;
            }
        }
        assert!(Instant::now() < until, "it does not close");
    }
}

/// A worker has as many connections as it may have: one more is told why it ends.
#[test]
fn a_connection_beyond_the_limit_of_a_worker_is_told_why() {
    let any = Any::new();
    for (number, url) in ["mem://any-beyond", "tcp://127.0.0.1:0"].iter().enumerate() {
        let one = PortConfig { connections: 1, ..PortConfig::default() };
        let mut ports = [PortConfig::default(), one].map(|config| any.open_port(&config).unwrap());
        let mut named = |at: u32| {
            let url = if number == 0 { format!("{url}-{at}") } else { (*url).to_owned() };
            let [active, passive] = links(&any, &ports, &url.parse().unwrap());
            let active = ports[0].adopt(active, Time(0)).unwrap();
            (active, ports[1].adopt(passive, Time(0)))
        };
        let (_, first) = named(0);
        first.unwrap();
        let (_, second) = named(1);
        assert!(matches!(second, Err(PortError::Limit { field: "connections", .. })), "{second:?}");
        assert_eq!(closed(&mut ports[0], Time(0)), CloseReason::PeerLacks, "{url}");
    }
}

/// The last connection of TCP ends here and its peer never closes: its socket goes when its time is over, though there is no
/// connection left to poll for.
#[test]
fn what_the_last_connection_left_behind_is_seen_to() {
    let any = Any::new();
    let mut ports = [(); 2].map(|()| any.open_port(&PortConfig::default()).unwrap());
    let [held, passive] = links(&any, &ports, &"tcp://127.0.0.1:0".parse().unwrap());
    let conn = ports[1].adopt(passive, Time(0)).unwrap();
    ports[1].close(conn, CloseReason::Local, Time(0));
    assert_eq!(closed(&mut ports[1], Time(0)), CloseReason::Local);
    let due = ports[1].deadline();
    assert!(due < Time::NEVER && ports[1].used.is_used(TCP), "its socket is still there");
    let (mut now, mut batch) = (due, Batch::new(16));
    let until = Instant::now() + LONG;
    while ports[1].used.is_used(TCP) {
        now = now.plus(Duration::from_millis(100));
        assert!(testing::poll(&mut ports[1], now, &mut batch).is_empty());
        assert!(Instant::now() < until, "it is never over");
    }
    assert_eq!(ports[1].deadline(), Time::NEVER);
    // And the next one is served as the first was.
    let [active, passive] = links(&any, &ports, &"tcp://127.0.0.1:0".parse().unwrap());
    let conns = [ports[0].adopt(active, now).unwrap(), ports[1].adopt(passive, now).unwrap()];
    ports[1].close(conns[1], CloseReason::Local, now);
    assert_eq!(closed(&mut ports[0], now), CloseReason::Peer);
    drop(held);
}
