//! Everything at once: a client that loses its connection in every way and at every step and comes back, calls that the
//! server spells differently or does not have, wrong keys, drains, pauses, and beside it a peer that says anything.
//!
//! What [`Run::check`] says of every run · nobody with a wrong key gets in · when the storm is over every call is answered ·
//! no loan, no connection is left.

use gimmal_engine::{
    App, Head, Message,
    transport::{Bulk as Brought, BulkError, CloseReason, ConnId, Key, Negotiated, Port, RejectReason},
};
use gimmal_sim::{SimConnecting, SimListener};
use gimmal_testkit::Choices;

use super::*;
use crate::{
    frame::{Flags, Kind, RequestHead},
    id::CallId,
    method::MethodKind,
};

const CALLS: u32 = 120;
/// Made when the storm is over.
const CALM_CALLS: u32 = 20;
const HEARTBEAT_MS: u32 = 10;
/// A handshake is over by then, one way or another.
const HANDSHAKE: Duration = Duration::from_millis(2);
const UNKNOWN: usize = 8;

static OTHERS: [Method; 2] = [
    Method::new("World", "now", "(String) -> u32", "postcard", MethodKind::Async),
    Method::new("World", "never", "(u32) -> u32", "postcard", MethodKind::Async),
];

/// A peer whose engine is honest, and which says anything above it.
#[derive(Debug, Default)]
struct Foe {
    conn: Option<ConnId>,
    closed: usize,
}

impl App for Foe {
    type Command = ();

    fn opened<P: Port>(&mut self, _: &mut gimmal_engine::Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.conn = Some(conn);
    }

    fn message<P: Port>(&mut self, io: &mut gimmal_engine::Io<'_, P>, conn: ConnId, message: Message<'_>) {
        if let Some(bulk) = message.bulk {
            io.decline(conn, bulk);
        }
    }

    fn pulled<P: Port>(
        &mut self,
        _: &mut gimmal_engine::Io<'_, P>,
        _: ConnId,
        _: u64,
        _: Result<Brought, BulkError>,
    ) {
    }

    fn writable<P: Port>(&mut self, _: &mut gimmal_engine::Io<'_, P>, _: ConnId) {}

    fn closed<P: Port>(&mut self, _: &mut gimmal_engine::Io<'_, P>, conn: ConnId, _: &CloseReason) {
        if self.conn == Some(conn) {
            self.conn = None;
            self.closed += 1;
        }
    }

    fn command<P: Port>(&mut self, _: &mut gimmal_engine::Io<'_, P>, (): ()) {}
}

/// An attempt to connect, when it began, and whether it has the key.
struct Dial {
    connecting: Option<SimConnecting>,
    since: Time,
    is_right: bool,
}

/// What happened, over all seeds.
#[derive(Debug, Default)]
struct Seen {
    sums: [usize; 3],
    reconnects: usize,
    locked_out: usize,
    mismatched: usize,
    unknown: usize,
    drains: usize,
    foe_closed: usize,
    faults: HashSet<&'static str>,
}

struct Storm<'a> {
    run: Run,
    foe: Inline<Sim, Foe>,
    listener: SimListener,
    choices: Choices,
    /// The client's, and the foe's.
    dials: [Option<Dial>; 2],
    /// Connections that were tried.
    dialed: u32,
    /// The client's connection, as the world counts them.
    number: u32,
    /// Turns that the client and the server leave out.
    pauses: [u64; 2],
    is_calm: bool,
    /// Nobody dials any more.
    is_over: bool,
    seen: &'a mut Seen,
}

fn key(byte: u8) -> Key {
    Key::new(&[byte; 32]).unwrap()
}

fn address() -> Address {
    "mem://storm".parse().unwrap()
}

fn small<T: TryFrom<u64, Error: std::fmt::Debug>>(choices: &mut Choices, below: u64) -> T {
    T::try_from(choices.below(below)).unwrap()
}

fn named(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Refuse => "refuse",
        FaultKind::Reject(_) => "reject",
        FaultKind::Silent => "silent",
        FaultKind::Lost => "lost",
        FaultKind::Work(_) => "work",
        FaultKind::Forged => "forged",
        FaultKind::Corrupt => "corrupt",
        _ => "other",
    }
}

impl<'a> Storm<'a> {
    fn new(seed: u64, device: SimDevice, seen: &'a mut Seen) -> Self {
        let run = Run::apart(seed, world(seed, device), HEARTBEAT_MS);
        let options =
            ListenOptions { keys: vec![key(1)], handshake_timeout: HANDSHAKE, ..ListenOptions::default() };
        let listener = run.sim.listen(&address(), &options).unwrap();
        let foe = Inline::new(&run.sim, &config(1).engine.validate().unwrap(), Foe::default()).unwrap();
        Self {
            run,
            foe,
            listener,
            choices: Choices::Seed(seed),
            dials: [None, None],
            dialed: 0,
            number: 0,
            pauses: [0; 2],
            is_calm: false,
            is_over: false,
            seen,
        }
    }

    /// A turn of everybody who does not pause, and what they do between.
    fn step(&mut self, most_ns: u64) {
        tick(&self.run.sim, &mut self.run.now, 200 + self.run.rng.below(most_ns));
        let now = self.run.now;
        let turns = self.pauses.map(|pause| pause == 0);
        self.pauses = self.pauses.map(|pause| pause.saturating_sub(1));
        if turns[0] {
            self.run.client_turn();
        }
        if turns[1] {
            self.run.server.at(now).turn();
        }
        self.foe.at(now).turn();
        if let Some(incoming) = self.listener.accept(Duration::ZERO).unwrap() {
            // A client that is gone already is no concern of the server's.
            if let Ok(link) = incoming.accept(self.run.server.handle().gate()) {
                self.run.server.at(now).adopt(link);
            }
        }
        self.look_for_the_connection();
        self.run.act();
        if !self.is_over {
            self.dial(0);
        }
        if !self.is_calm {
            self.attack();
            self.disturb();
        } else if let Some(conn) = self.foe.app().conn {
            self.foe.with(|_, io| io.close(conn));
        }
    }

    fn look_for_the_connection(&mut self) {
        let run = &mut self.run;
        let known: Vec<ConnId> = run.client.app_mut().conns.iter_mut().map(|(conn, _)| conn).collect();
        assert!(known.len() <= 1, "two connections of a client that dials one after the other");
        if run.conn.is_some_and(|conn| !known.contains(&conn)) {
            run.take_responses();
            assert!(run.open.is_empty(), "calls outlive their connection: {:?}", run.open);
            run.conn = None;
            run.server.app().shared.draining.store(false, Ordering::Relaxed);
        }
        if run.conn.is_none()
            && let Some(conn) = known.first()
        {
            let dial = self.dials[0].take().expect("it was dialed");
            assert!(dial.is_right, "a wrong key was let in");
            run.conn = Some(*conn);
            self.seen.reconnects += 1;
        }
    }

    /// The client dials when it has no connection, or the foe.
    fn dial(&mut self, who: usize) {
        let Self { run, foe, dials, .. } = self;
        let is_up = if who == 0 { run.conn.is_some() } else { foe.app().conn.is_some() };
        if is_up {
            dials[who] = None;
            return;
        }
        let Some(dial) = &mut dials[who] else { return self.dial_anew(who) };
        match dial.connecting.as_mut().and_then(|connecting| connecting.poll(Duration::ZERO)) {
            Some(Ok(link)) => {
                dial.connecting = None;
                if who == 0 { run.client.at(run.now).adopt(link) } else { foe.at(run.now).adopt(link) }
            }
            Some(Err(error)) => {
                let is_locked = matches!(
                    error,
                    gimmal_engine::transport::ConnectError::Rejected {
                        reason: RejectReason::Authentication | RejectReason::KeyNeeded,
                        ..
                    }
                );
                self.seen.locked_out += usize::from(is_locked);
                dials[who] = None;
            }
            // Its handshake failed: nobody tells who adopted it.
            None if run.now.since(dial.since) > HANDSHAKE.saturating_mul(4) => {
                self.seen.locked_out += usize::from(!dial.is_right);
                dials[who] = None;
            }
            None => {}
        }
    }

    fn dial_anew(&mut self, who: usize) {
        let Self { run, choices, .. } = self;
        if !choices.once_in(20) {
            return;
        }
        let key = match choices.below(if self.is_calm { 1 } else { 6 }) {
            4 => None,
            5 => Some(key(2)),
            _ => Some(key(1)),
        };
        let is_right = key == Some(self::key(1));
        let options = ConnectOptions {
            key,
            connect_timeout: HANDSHAKE,
            handshake_timeout: HANDSHAKE,
            ..ConnectOptions::default()
        };
        if who == 0 {
            self.number = self.dialed;
            if !self.is_calm && choices.once_in(2) {
                run.sim.inject(any_fault(choices).of(self.dialed));
            }
        } else {
            run.handlers.foes.lock().unwrap().insert(format!("connection {}", self.dialed));
        }
        let gate = if who == 0 { run.client.handle() } else { run.server.handle() }.gate().clone();
        let gate = if who == 0 { gate } else { self.foe.handle().gate().clone() };
        let connecting = if who == 1 && choices.once_in(4) {
            run.sim.connect_raw(&address(), &gate, &options, &choices.bytes(56))
        } else {
            run.sim.connect(&address(), &gate, &options)
        };
        self.dialed += 1;
        let connecting = Some(connecting.unwrap());
        self.dials[who] = Some(Dial { connecting, since: run.now, is_right });
    }

    /// The foe says something.
    fn attack(&mut self) {
        let Some(conn) = self.foe.app().conn else { return self.dial(1) };
        let choices = &mut self.choices;
        if !choices.once_in(3) {
            return;
        }
        let method = &__world_methods()[choices.index(__world_methods().len())];
        // Any kind with flags that it may have, or one that nobody knows.
        let kind = if choices.once_in(2) {
            Kind::Request.with(Flags::NONE)
        } else {
            let code = small::<u16>(choices, 8) | small::<u16>(choices, 256) << 8;
            let known = Kind::parse(code).is_ok() || choices.once_in(100);
            if known { code } else { small(choices, 8) }
        };
        let id = CallId { slot: small(choices, 12), generation: small(choices, 3) };
        let mut body = RequestHead {
            method: method.id,
            signature: method.signature_hash,
            deadline_us: small(choices, 5000),
            window: 0,
        }
        .encode()
        .to_vec();
        body.extend(choices.bytes(40));
        if choices.once_in(4) {
            choices.spoil(&mut body);
        }
        let lent = choices.once_in(6).then(|| 1 + choices.index(3000));
        let loan = lent.and_then(|bytes| self.foe.handle().allocate(conn, bytes).ok());
        let head = Head { kind, aux: id.aux() };
        let fill = |out: &mut [u8]| {
            out[..body.len()].copy_from_slice(&body);
            Some(body.len())
        };
        // What finds no room is not said.
        self.foe.with(|_, io| match loan {
            None => drop(io.send(conn, head, body.len(), fill)),
            Some(loan) => drop(io.send_with_loan(conn, head, loan, body.len(), fill)),
        });
    }

    /// Something goes wrong, or slow.
    fn disturb(&mut self) {
        let Self { run, choices, .. } = self;
        if choices.once_in(500) {
            let kind =
                choices.pick(&[FaultKind::Lost, FaultKind::Silent, FaultKind::Work(12), FaultKind::Corrupt]);
            let at = Time(run.now.0 + choices.below(30_000));
            run.sim.inject(Fault::at_time(at, kind).of(self.number));
        }
        if choices.once_in(200) {
            self.pauses[choices.index(2)] = choices.below(120);
        }
        let draining = run.server.app().shared.draining.load(Ordering::Relaxed);
        if let Some(conn) = run.conn {
            if draining {
                run.client.with(|node, io| node.retire(io, conn, None, &Arc::default()));
            } else if choices.once_in(700) {
                run.server.app().shared.draining.store(true, Ordering::Relaxed);
                let _ = run.server.with(|node, io| node.drain(io));
                self.seen.drains += 1;
            }
        }
    }

    /// A call of the run's kinds, or of a method that the server spells differently or does not have.
    fn call(&mut self, number: u32) {
        let run = &mut self.run;
        let Some(conn) = run.conn.filter(|_| run.rng.below(6) == 0) else { return run.call(number) };
        let at = MISMATCHED + run.rng.index(2);
        let arguments = (number,);
        let value = Encoded::<Postcard, _>::new(&arguments);
        let timeout = Some(Duration::from_secs(1));
        let started = run.client.with(|node, io| {
            let method = &OTHERS[at - MISMATCHED];
            node.start(io, conn, method, timeout, Fresh::new(&value), (None, None), Reply::Local)
        });
        match started {
            Ok(key) => run.open.push((number, at, key)),
            Err(error) => drop(run.ended.insert(number, Err(error.fate()))),
        }
        *if at == UNKNOWN { &mut self.seen.unknown } else { &mut self.seen.mismatched } += 1;
    }

    /// Lets the storm pass.
    fn blow(&mut self, what: &str) {
        let mut next = 0;
        while next < CALLS {
            self.step(6000);
            let draining = self.run.server.app().shared.draining.load(Ordering::Relaxed);
            if self.run.conn.is_some() && self.run.rng.below(if draining { 40 } else { 2 }) == 0 {
                self.call(next);
                next += 1;
            }
            assert!(self.run.now < Time(10_000_000_000), "{what}: call {next} was never made");
        }
        self.is_calm = true;
        self.dials[1] = None;
        self.run.server.app().shared.draining.store(false, Ordering::Relaxed);
    }

    fn settle(&mut self, what: &str, until: impl Fn(&mut Self) -> bool) {
        for _ in 0..60_000 {
            self.step(40_000);
            if until(self) {
                return;
            }
        }
        let (open, connections, loans) = (&self.run.open, self.run.sim.connections(), self.run.sim.loans());
        panic!("{what}: it never ends; open: {open:?}, {connections} connections, {loans} loans");
    }

    fn faults(&self) -> usize {
        self.run.sim.findings().injected.len()
    }

    /// Whatever is gone comes to light within a heartbeat; what was injected for a step may be reached only now.
    fn rest(&mut self, what: &str) {
        loop {
            let before = self.faults();
            let until = self.run.now.plus(Duration::from_millis(u64::from(HEARTBEAT_MS) * 2));
            self.settle(what, |storm| storm.run.now > until && storm.run.conn.is_some());
            if self.faults() == before {
                return;
            }
        }
    }

    fn check(mut self, what: &str) {
        self.settle(what, |storm| storm.run.open.is_empty());
        self.rest(what);
        for number in CALLS..CALLS + CALM_CALLS {
            let before = (self.run.cancelled, self.faults());
            self.settle(what, |storm| storm.run.conn.is_some());
            while !self.calm_call(number) {
                // It is closing: what failed it is told soon.
                let old = self.run.conn;
                self.settle(what, |storm| storm.run.conn.is_some() && storm.run.conn != old);
            }
            self.settle(what, |storm| storm.run.open.is_empty());
            let (ended, now) = (self.run.ended.get(&number), (self.run.cancelled, self.faults()));
            assert!(ended == Some(&Ok(())) || before != now, "{what}: call {number}: {ended:?}");
            if now.1 != before.1 {
                self.rest(what);
            }
        }
        self.settle(what, |storm| {
            // What was cancelled last is on its way still.
            let mut served = Stats::default();
            storm.run.counters[1].add_to(&mut served);
            (storm.run.sim.loans(), served.serving) == (0, 0)
        });
        self.run.check(what, CALLS + CALM_CALLS);
        let seen = &mut *self.seen;
        seen.foe_closed += self.foe.app().closed;
        add(&mut seen.sums, &self.run);
        seen.faults.extend(self.run.sim.findings().injected.into_iter().map(named));
        // Nobody dials any more: no attempt may be on its way.
        self.settle(what, |storm| storm.run.conn.is_some());
        if let Some(conn) = self.run.conn {
            self.run.client.with(|_, io| io.close(conn));
        }
        self.is_over = true;
        self.settle(what, |storm| storm.run.sim.connections() == 0);
        assert_eq!(self.run.server.app_mut().conns.iter_mut().count(), 0, "{what}");
    }

    fn calm_call(&mut self, number: u32) -> bool {
        let (conn, arguments) = (self.run.conn.unwrap(), (number,));
        let at = self.run.rng.index(3);
        let value = Encoded::<Postcard, _>::new(&arguments);
        let key = self.run.client.with(|node, io| {
            let method = &__world_methods()[at];
            node.start(io, conn, method, None, Fresh::new(&value), (None, None), Reply::Local)
        });
        self.run.open.extend(key.ok().map(|key| (number, at, key)));
        !self.run.open.is_empty()
    }
}

/// One for a step of a connection's life.
fn any_fault(choices: &mut Choices) -> Fault {
    let late = [FaultKind::Lost, FaultKind::Silent, FaultKind::Work(12), FaultKind::Corrupt];
    // Only these steps can forge, so half of them do.
    let early = [FaultKind::Lost, FaultKind::Silent, FaultKind::Forged, FaultKind::Forged];
    let rejected = FaultKind::Reject(RejectReason::Overloaded);
    match choices.below(9) {
        0 => Fault::at(Step::Resolve, FaultKind::Refuse),
        1 => Fault::at(Step::Request, choices.pick(&[FaultKind::Refuse, rejected])),
        2 => Fault::at(Step::Accept, FaultKind::Refuse),
        3 => Fault::at(Step::Reply, choices.pick(&early)),
        4 => Fault::at(Step::Grant(1 + small::<u8>(choices, 2)), choices.pick(&early)),
        5 => Fault::at(Step::Completion(1 + choices.below(10)), choices.pick(&late)),
        6 => Fault::at(Step::Bulk(1 + choices.below(10)), choices.pick(&late)),
        _ => Fault::at(Step::Frame(1 + choices.below(120)), choices.pick(&late)),
    }
}

#[test]
fn what_goes_wrong_all_at_once_ends_every_call_once() {
    let mut seen = Seen::default();
    let all = each("what_goes_wrong_all_at_once_ends_every_call_once", all_met(), |what, seed, device| {
        let mut storm = Storm::new(seed, device, &mut seen);
        storm.blow(what);
        storm.check(what);
    });
    println!("{seen:?}");
    let Seen { reconnects, locked_out, mismatched, unknown, drains, foe_closed, faults, sums } = &seen;
    let counts = [reconnects, locked_out, mismatched, unknown, drains, foe_closed];
    assert!(!all || (!counts.contains(&&0) && !sums.contains(&0) && faults.len() >= 7), "{seen:?}");
}
