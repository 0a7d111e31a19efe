//! A whole engine on shared memory, turned by the test, whose application does a little of everything.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gimmal_rpc::Instant;
use gimmal_rpc::engine::{
    App, Config, Head, Idle, Inline, Io, Message, RemoteBulk, SendError,
    transport::{
        Address, Bulk, BulkError, CloseReason, ConnId, Gate as _, Incoming as _, ListenOptions,
        Listener as _, Negotiated, Port, PortConfig, Provider as _, Time, Trust,
        shm::{Shm, ShmGate, ShmListener},
    },
};
use gimmal_testkit::Choices;

/// A turn that takes longer has hung, however loaded the machine is.
const TURN_MAX: Duration = Duration::from_secs(10);
/// Connections at once, in a victim that accepts.
const CONNECTIONS_MAX: usize = 4;

/// Answers, pulls, declines, lends, keeps and closes, by its own choices.
#[derive(Debug)]
pub struct Node {
    choices: Choices,
    gate: Option<ShmGate>,
    kept: VecDeque<Bulk>,
    waiting: VecDeque<(ConnId, RemoteBulk)>,
    sum: u64,
    /// Connections that are open.
    pub open: usize,
    /// Pulls that have not ended.
    pub pulls_pending: i64,
    /// Why connections ended.
    pub reasons: BTreeMap<String, u64>,
    /// Messages that came.
    pub messages: u64,
}

impl Node {
    fn new(seed: u64) -> Self {
        Self {
            choices: Choices::Seed(seed),
            gate: None,
            kept: VecDeque::new(),
            waiting: VecDeque::new(),
            sum: 0,
            open: 0,
            pulls_pending: 0,
            reasons: BTreeMap::new(),
            messages: 0,
        }
    }

    fn answer<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, head: Head, body: &[u8]) {
        let fill = |out: &mut [u8]| {
            out[..body.len()].copy_from_slice(body);
            Some(body.len())
        };
        let sent = if self.choices.once_in(16) {
            let bytes = self.choices.index(2000);
            let Ok(loan) = self.gate.as_ref().unwrap().allocate(conn, bytes) else { return };
            io.send_with_loan(conn, head, loan, body.len(), fill).map_err(|refused| refused.error)
        } else {
            io.send(conn, head, body.len(), fill)
        };
        match sent {
            // An honest server waits for room; this one does without.
            Ok(()) | Err(SendError::Blocked | SendError::Closed | SendError::NoBulk) => {}
            Err(SendError::TooLarge { bytes, limit }) => assert!(bytes > limit),
            Err(error) => panic!("{error}"),
        }
    }

    fn pull<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, bulk: RemoteBulk) {
        match io.pull(conn, bulk, 9) {
            Ok(()) => self.pulls_pending += 1,
            Err((SendError::Blocked, bulk)) => self.waiting.push_back((conn, bulk)),
            Err((_, bulk)) => io.decline(conn, bulk),
        }
    }
}

impl App for Node {
    type Command = ();

    fn opened<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: &Negotiated) {
        self.open += 1;
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        self.messages += 1;
        self.sum += message.body.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        if let Some(bulk) = message.bulk {
            if self.choices.once_in(4) { io.decline(conn, bulk) } else { self.pull(io, conn, bulk) }
        }
        if !self.choices.once_in(4) {
            self.answer(io, conn, message.head, message.body);
        }
        if self.choices.once_in(20_000) {
            io.close(conn);
        }
    }

    fn pulled<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: u64, result: Result<Bulk, BulkError>) {
        self.pulls_pending -= 1;
        let Ok(bulk) = result else { return };
        self.sum += bulk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        if self.choices.once_in(2) {
            self.kept.push_back(bulk);
        }
        if self.kept.len() > 8 {
            self.kept.remove(self.choices.index(8));
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _: ConnId) {
        if let Some((conn, bulk)) = self.waiting.pop_front() {
            self.pull(io, conn, bulk);
        }
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        self.open -= 1;
        self.waiting.retain(|(other, _)| *other != conn);
        *self.reasons.entry(named(reason)).or_default() += 1;
    }
}

/// The reason without its numbers. One that names neither side nor a rule is a finding.
fn named(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Local | CloseReason::Peer | CloseReason::PeerGone { .. } | CloseReason::PeerLacks => {}
        CloseReason::Violation(_) | CloseReason::Handshake | CloseReason::PeerSilent { .. } => {}
        other => panic!("no peer may cause this: {other}"),
    }
    let said = reason.to_string();
    said.split(' ')
        .map(|word| if word.parse::<u64>().is_ok() { "#" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// A folder's path that nobody else uses.
pub fn place(name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("gimmal-{name}-{}-{number}", std::process::id()))
}

/// A server that is attacked.
pub struct Victim {
    pub inline: Inline<Shm, Node>,
    listener: ShmListener,
    now: Time,
    /// Hellos that were good.
    pub accepted: u64,
    pub longest_turn: Duration,
}

impl Victim {
    /// One that listens at `path`.
    pub fn new(path: &Path, seed: u64) -> Self {
        let port = PortConfig { ring_bytes: 16 << 10, connections: 64, ..PortConfig::default() };
        let config = Config { port, idle: Idle::Spin, heartbeat_ms: 0, ..Config::default() };
        let mut inline = Inline::new(&Shm, &config.validate().unwrap(), Node::new(seed)).unwrap();
        inline.app_mut().gate = Some(inline.handle().gate().clone());
        let address = Address::Shm { path: path.to_owned() };
        // Every other one trusts nobody, which no attacker may notice.
        let trust = if seed.is_multiple_of(2) { Trust::Peer } else { Trust::None };
        let handshake_timeout = Duration::from_millis(50);
        let options = ListenOptions { handshake_timeout, trust, ..ListenOptions::default() };
        let listener = Shm.listen(&address, &options).unwrap();
        Self { inline, listener, now: Time(0), accepted: 0, longest_turn: Duration::ZERO }
    }

    /// Accepts who is there, and takes a turn `step_ns` later.
    pub fn turn(&mut self, step_ns: u64) {
        self.now = Time(self.now.0 + step_ns);
        let started = Instant::now();
        self.inline.at(self.now).turn();
        let took = started.elapsed();
        assert!(took < TURN_MAX, "a turn of {took:?}");
        self.longest_turn = self.longest_turn.max(took);
    }

    /// Lets one client in, if one is there.
    pub fn accept(&mut self) {
        if self.inline.app().open >= CONNECTIONS_MAX {
            return;
        }
        let Ok(Some(incoming)) = self.listener.accept(Duration::ZERO) else { return };
        let gate = self.inline.handle().gate().clone();
        match incoming.accept(&gate) {
            Ok(link) => {
                self.accepted += 1;
                self.inline.at(self.now).adopt(link);
            }
            Err(error) => {
                *self.inline.app_mut().reasons.entry(format!("not accepted: {error}")).or_default() += 1;
            }
        }
    }

    /// Turns until every connection is gone.
    pub fn outlive(&mut self) {
        for _ in 0..100_000 {
            self.turn(1_000_000);
            if self.inline.app().open == 0 {
                break;
            }
        }
        assert_eq!(self.inline.app().open, 0, "a connection outlives its peer");
        assert_eq!(self.inline.app().pulls_pending, 0, "a pull never ended");
        // For the grants of those that never opened.
        for _ in 0..100 {
            self.turn(1_000_000);
        }
    }

    /// Hellos that were refused.
    pub fn rejected(&self) -> u64 {
        use gimmal_rpc::engine::transport::Listener as _;
        self.listener.rejections().count()
    }

    /// Why connections ended.
    pub fn reasons(&self) -> &BTreeMap<String, u64> {
        &self.inline.app().reasons
    }
}
