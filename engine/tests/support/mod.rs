//! Two engines on one simulated world, driven turn by turn in virtual time.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use gimmal_engine::{
    App, Config, Head, Inline, Io, Message, Pick, RemoteBulk, RxBuf, SendError,
    transport::{
        Address, Bulk, BulkError, CloseReason, ConnId, ConnectOptions, Connecting as _, Gate as _,
        Incoming as _, ListenOptions, Listener as _, LoanError, Negotiated, Port, PortConfig, Provider as _,
        SharedReceives, Time,
    },
};
use std::{collections::VecDeque, time::Duration};

use gimmal_sim::{Sim, SimConfig};

/// What the client sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// How many messages.
    pub(crate) messages: u64,
    /// Their largest body.
    pub(crate) bytes_max: usize,
    /// Every how many of them a loan goes with one; 0: never.
    pub(crate) bulk_every: u64,
}

/// An echo server and its client in one application.
#[derive(Debug)]
pub(crate) struct Node {
    is_client: bool,
    traffic: Traffic,
    close_after_sending: bool,
    /// The next leaves when the last was answered.
    one_by_one: bool,
    gate: Option<gimmal_sim::SimGate>,
    conn: Option<ConnId>,
    echoes: VecDeque<(Head, Vec<u8>)>,
    refused_bulk: Vec<(RemoteBulk, u64)>,
    holds: bool,
    kept: Vec<(u64, RxBuf)>,
    pub(crate) opened: bool,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) echoed: u64,
    /// Of those, by a look for one at a time.
    pub(crate) picked: u64,
    pub(crate) blocked: u64,
    pub(crate) pulls_pending: usize,
    pub(crate) pulled: u64,
    pub(crate) loans_back: u64,
    pub(crate) closed: Vec<CloseReason>,
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seed.wrapping_mul(31).wrapping_add(at * 7)).to_le_bytes()[0]).collect()
}

fn size(seq: u64, max: usize) -> usize {
    (seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % (max + 1)
}

impl Node {
    fn new(is_client: bool, traffic: Traffic) -> Self {
        Self {
            is_client,
            traffic,
            close_after_sending: false,
            one_by_one: false,
            gate: None,
            conn: None,
            echoes: VecDeque::new(),
            refused_bulk: Vec::new(),
            holds: false,
            kept: Vec::new(),
            opened: false,
            sent: 0,
            received: 0,
            echoed: 0,
            picked: 0,
            blocked: 0,
            pulls_pending: 0,
            pulled: 0,
            loans_back: 0,
            closed: Vec::new(),
        }
    }

    /// Whether there is nothing left to wait for.
    pub(crate) fn is_finished(&self) -> bool {
        !self.closed.is_empty()
            || (self.echoed == self.traffic.messages
                && self.loans_back == self.loans_sent()
                && self.pulls_pending == 0)
    }

    pub(crate) fn loans_sent(&self) -> u64 {
        self.sent.checked_div(self.traffic.bulk_every).unwrap_or(0)
    }

    /// The number of a message that is what was sent.
    fn checked(&self, message: &Message<'_>) -> u64 {
        let seq = message.head.aux;
        assert_eq!(
            message.body,
            pattern(seq, size(seq, self.traffic.bytes_max)),
            "wrong bytes in message {seq}"
        );
        seq
    }

    fn take_echo<P: Port>(&mut self, io: &mut Io<'_, P>, seq: u64) {
        assert_eq!(seq, self.echoed, "an echo out of order");
        self.echoed += 1;
        if self.one_by_one {
            self.send_more(io);
        }
    }

    fn send_more<P: Port>(&mut self, io: &mut Io<'_, P>) {
        let Some(conn) = self.conn else { return };
        while self.is_client
            && self.sent < self.traffic.messages
            && !(self.one_by_one && self.sent > self.echoed)
        {
            let seq = self.sent;
            let body = pattern(seq, size(seq, self.traffic.bytes_max));
            let fill = |out: &mut [u8]| {
                out[..body.len()].copy_from_slice(&body);
                Some(body.len())
            };
            let head = Head { kind: 1, aux: seq };
            let outcome = if self.traffic.bulk_every > 0 && (seq + 1).is_multiple_of(self.traffic.bulk_every)
            {
                let mut loan = match self.gate.as_ref().unwrap().allocate(conn, 10_000) {
                    Ok(loan) => loan,
                    Err(LoanError::Closed) => return,
                    Err(error) => panic!("{error}"),
                };
                loan.copy_from_slice(&pattern(seq, 10_000));
                io.send_with_loan(conn, head, loan, body.len(), fill).map_err(|refused| refused.error)
            } else {
                io.send(conn, head, body.len(), fill)
            };
            match outcome {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked) => {
                    self.blocked += 1;
                    return;
                }
                Err(SendError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
        }
        if self.close_after_sending && self.is_client && self.sent == self.traffic.messages {
            self.close_after_sending = false;
            io.close(conn);
        }
        while let Some((head, body)) = self.echoes.front() {
            let sent = io.send(conn, *head, body.len(), |out| {
                out[..body.len()].copy_from_slice(body);
                Some(body.len())
            });
            if sent.is_err() {
                return;
            }
            self.echoes.pop_front();
        }
    }

    fn pull<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, bulk: RemoteBulk, token: u64) {
        match io.pull(conn, bulk, token) {
            Ok(()) => self.pulls_pending += 1,
            Err((SendError::Blocked, bulk)) => self.refused_bulk.push((bulk, token)),
            Err((SendError::Closed, _)) => {}
            Err((error, _)) => panic!("{error}"),
        }
    }
}

impl App for Node {
    type Command = ();

    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.conn = Some(conn);
        self.opened = true;
        self.send_more(io);
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        let seq = self.checked(&message);
        if self.is_client {
            return self.take_echo(io, seq);
        }
        assert_eq!(seq, self.received, "a message out of order");
        self.received += 1;
        if self.holds {
            self.kept.push((seq, io.hold(&message)));
            // Another one goes, but never the first; sometimes all the others.
            while self.kept.len() > 1 + size(seq, 20) {
                let (seq, buf) = self.kept.swap_remove(1 + size(seq, self.kept.len() - 2));
                assert_eq!(*buf, pattern(seq, size(seq, self.traffic.bytes_max)), "held message {seq}");
            }
        }
        if let Some(bulk) = message.bulk {
            assert_eq!(bulk.len(), 10_000);
            self.pull(io, conn, bulk, seq);
        }
        self.echoes.push_back((message.head, message.body.to_vec()));
        self.send_more(io);
    }

    fn pulled<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, token: u64, result: Result<Bulk, BulkError>) {
        self.pulls_pending -= 1;
        if let Ok(bulk) = result {
            assert_eq!(&*bulk, &*pattern(token, 10_000), "wrong bulk bytes");
            self.pulled += 1;
        }
    }

    fn loan_done<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: u64) {
        self.loans_back += 1;
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        self.send_more(io);
        if let Some((bulk, token)) = self.refused_bulk.pop() {
            self.pull(io, conn, bulk, token);
        }
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        self.conn = None;
        self.closed.push(reason.clone());
    }
}

/// Takes every other echo in its node's place.
struct Picker;

impl Pick<Node> for Picker {
    fn pick<P: Port>(
        &mut self,
        node: &mut Node,
        io: &mut Io<'_, P>,
        _: ConnId,
        message: &Message<'_>,
    ) -> bool {
        if !node.is_client || message.head.aux.is_multiple_of(2) {
            return false;
        }
        let seq = node.checked(message);
        node.take_echo(io, seq);
        node.picked += 1;
        true
    }
}

/// Client and server on one world.
pub(crate) struct Pair {
    sim: Sim,
    client: Inline<Sim, Node>,
    server: Inline<Sim, Node>,
    now: Time,
    /// The server takes a turn every so many of the client's.
    pub(crate) server_every: u64,
    /// Nobody turns for it.
    pub(crate) client_stopped: bool,
    /// Nobody turns for it.
    pub(crate) server_stopped: bool,
    /// The client closes when it has sent everything.
    pub(crate) close_after_sending: bool,
}

impl Pair {
    /// Connects the two.
    pub(crate) fn new(config: SimConfig, traffic: Traffic) -> Self {
        Self::with_heartbeats(config, traffic, [0, 0])
    }

    /// A world with heartbeats of client and server, in ms.
    pub(crate) fn with_heartbeats(config: SimConfig, traffic: Traffic, heartbeats: [u32; 2]) -> Self {
        Self::with_port(config, traffic, heartbeats, PortConfig::default())
    }

    /// A world with the settings of `port` besides sizes.
    pub(crate) fn with_port(
        config: SimConfig,
        traffic: Traffic,
        heartbeats: [u32; 2],
        port: PortConfig,
    ) -> Self {
        let sim = Sim::new(config);
        let shared = SharedReceives { slot_bytes: 4096, ..port.shared };
        let port = PortConfig { ring_bytes: 16 << 10, slot_bytes: 4096, arrivals: 16, shared, ..port };
        let [ours, theirs] = heartbeats.map(|heartbeat_ms| {
            Config { port: port.clone(), heartbeat_ms, ..Config::default() }.validate().unwrap()
        });
        let mut client = Inline::new(&sim, &ours, Node::new(true, traffic)).unwrap();
        let server = Inline::new(&sim, &theirs, Node::new(false, traffic)).unwrap();
        let address: Address = "mem://pair".parse().unwrap();
        client.app_mut().gate = Some(client.handle().gate().clone());
        let mut listener = sim.listen(&address, &ListenOptions::default()).unwrap();
        let mut connecting =
            sim.connect(&address, client.handle().gate(), &ConnectOptions::default()).unwrap();
        let mut pair = Self {
            sim,
            client,
            server,
            now: Time(0),
            server_every: 1,
            client_stopped: false,
            server_stopped: false,
            close_after_sending: false,
        };
        for _ in 0..10_000 {
            pair.step();
            if let Some(incoming) = listener.accept(Duration::ZERO).unwrap() {
                let link = incoming.accept(pair.server.handle().gate()).unwrap();
                pair.server.at(pair.now).adopt(link);
            }
            match connecting.poll(Duration::ZERO) {
                Some(Ok(link)) => {
                    pair.client.at(pair.now).adopt(link);
                    break;
                }
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
        }
        pair
    }

    fn step(&mut self) {
        self.now = Time(self.now.0 + 1000);
        // What is due lies there before anybody polls.
        self.sim.advance(self.now);
        let number = self.now.0 / 1000;
        if !self.client_stopped {
            if number % 32 < 16 {
                self.client.at(self.now).turn();
            } else {
                self.client.at(self.now).seek(Duration::ZERO, Picker);
            }
        }
        if !self.server_stopped && number.is_multiple_of(self.server_every) {
            if number % 8 < 6 {
                self.server.at(self.now).turn();
            } else {
                self.server.at(self.now).seek(Duration::ZERO, Picker);
            }
        }
    }

    /// Takes turns until `done` or the time is over.
    pub(crate) fn run_until(&mut self, end: Time, done: impl Fn(&Self) -> bool) {
        self.client.app_mut().close_after_sending = self.close_after_sending;
        while self.now < end && !done(self) {
            self.step();
        }
    }

    /// The client has so many more messages to send.
    pub(crate) fn more(&mut self, messages: u64) {
        self.client.app_mut().traffic.messages += messages;
        self.client.with(|node, io| node.send_more(io));
    }

    /// The client waits for each answer.
    pub(crate) fn one_by_one(&mut self) {
        self.client.app_mut().one_by_one = true;
    }

    /// The server keeps messages for a while, in any order, and the first for ever.
    pub(crate) fn hold(&mut self) {
        self.server.app_mut().holds = true;
    }

    /// Messages that the server held where they were, and those that it copied.
    pub(crate) fn held(&self) -> (u64, u64) {
        let duty = self.server.handle().duty();
        (duty.held, duty.held_copied)
    }

    /// The virtual time.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Frames that left the client and the server.
    pub(crate) fn frames_sent(&mut self) -> [u64; 2] {
        [&mut self.client, &mut self.server].map(|side| {
            let conn = side.app().conn.unwrap();
            side.with(|_, io| io.port_counters(conn)).frames_sent
        })
    }

    /// Receives of the server that its connections share, and those promised to nobody.
    pub(crate) fn common(&self) -> (u32, u32) {
        let shared = self.server.handle().gate().shared_receives();
        (shared[0].common, shared[0].common_free)
    }

    pub(crate) fn client(&self) -> &Node {
        self.client.app()
    }

    pub(crate) fn server(&self) -> &Node {
        self.server.app()
    }

    /// The world saw nothing against the contract.
    pub(crate) fn assert_clean(&self, what: &str) {
        assert_eq!(self.sim.rnr_count(), 0, "{what}: RNR");
        assert_eq!(self.sim.findings().misuses, [], "{what}");
    }

    /// How many faults happened.
    pub(crate) fn injected(&self) -> usize {
        self.sim.findings().injected.len()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.sim.digest()
    }
}
