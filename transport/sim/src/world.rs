//! The world: virtual time, what is on its way, and every connection's two ends.
//!
//! ```text
//!  call on a port, listener, … ─► with(world) ─► schedule(at, happening) ─► settle: all that is due, in order
//!                                                                             └─► inbox of an end ─► poll
//! ```
//! Handlers only schedule; so what is due at once is still done one after the other, in a fixed order. Time is
//! what ports were told by `poll`; somebody who waits in real time moves it on by what he waited.

use std::{
    any::Any,
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::{
    config::{Fault, FaultKind, Misuse, SimConfig, SimDevice, Step, When},
    conn::{Conn, Inbound, Life, Side},
    halves::Posted,
    oracle::{Digest, Findings, Rng},
    transfers::{LoanState, Memory},
};
use gimmal_transport::{
    BulkError, CloseReason, ConnId, ConnectError, Credit, Instant, ListenOptions, PortConfig, Refusal, Time,
    Waker,
    parts::{Common, PROOF_BYTES, Rejected},
};

/// A world and its waiters.
#[derive(Debug)]
pub(super) struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(config: SimConfig) -> Self {
        Self { world: Mutex::new(World::new(config)), changed: Condvar::new() }
    }

    /// Does something to the world, and all that is due then.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut world);
        world.settle();
        if std::mem::take(&mut world.changed) {
            self.changed.notify_all();
        }
        let thrown_away = std::mem::take(&mut world.thrown_away);
        drop((world, thrown_away));
        result
    }

    /// Looks until there is something or `timeout` of real time is over.
    pub(super) fn wait<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&mut World) -> Option<T>,
    ) -> Option<T> {
        let started = Instant::now();
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        let base = world.now;
        loop {
            let waited = started.elapsed();
            if !timeout.is_zero() {
                world.advance(base.plus(waited));
            }
            let found = look(&mut world);
            world.settle();
            if std::mem::take(&mut world.changed) {
                self.changed.notify_all();
            }
            if found.is_some() || waited >= timeout {
                return found;
            }
            let next = world.next_at().since(world.now).max(Duration::from_micros(1));
            let wait = next.min(timeout.saturating_sub(waited));
            world = self.changed.wait_timeout(world, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What is on its way.
#[derive(Debug)]
pub(super) enum Happening {
    Request { conn: u64 },
    Reply { conn: u64 },
    Refusal { conn: u64, refusal: Refusal },
    ConnectDeadline { conn: u64 },
    HandshakeDeadline { conn: u64, side: Side },
    Grant { conn: u64, from: Side, proof: Option<[u8; PROOF_BYTES]> },
    Arrive { conn: u64, from: Side, chain: Posted },
    RnrRetry { conn: u64, to: Side },
    Complete { conn: u64, side: Side, chains: u64, position: u64 },
    Credit { conn: u64, from: Side, credit: Credit },
    Piece { conn: u64, side: Side, bytes: u64 },
    InPlace { conn: u64, side: Side },
    Access { conn: u64, side: Side },
    Goodbye { conn: u64, from: Side },
    Timed(Fault),
}

#[derive(Debug)]
struct Scheduled {
    at: Time,
    order: u64,
    happening: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A name that somebody listens on.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) options: ListenOptions,
    pub(super) waiting: VecDeque<u64>,
    pub(super) rejected: Arc<Rejected>,
}

#[derive(Debug)]
pub(super) struct PortState {
    pub(super) waker: Waker,
    pub(super) config: PortConfig,
    pub(super) device: SimDevice,
    pub(super) ready: VecDeque<(u64, Side)>,
    pub(super) common: Common,
    /// Something changed that brings no event: a completion, a credit word.
    pub(super) nudged: bool,
    pub(super) conns: BTreeMap<ConnId, (u64, Side)>,
}

/// Everything that is simulated.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Time,
    pub(super) config: SimConfig,
    pub(super) rng: Rng,
    pub(super) digest: Digest,
    pub(super) findings: Findings,
    pub(super) changed: bool,
    pub(super) listeners: BTreeMap<String, Listening>,
    pub(super) conns: BTreeMap<u64, Conn>,
    pub(super) ports: BTreeMap<u64, PortState>,
    pub(super) loans: BTreeMap<u64, LoanState>,
    pub(super) exposed: BTreeMap<u64, Memory>,
    pub(super) connects: u32,
    /// What holds loans, whose end the world has to be told when nobody is in it.
    pub(super) thrown_away: Vec<Box<dyn Any + Send>>,
    faults: Vec<Fault>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
}

impl World {
    fn new(config: SimConfig) -> Self {
        let mut world = Self {
            now: Time(0),
            rng: Rng::new(config.seed),
            digest: Digest::new(),
            findings: Findings::default(),
            changed: false,
            listeners: BTreeMap::new(),
            conns: BTreeMap::new(),
            ports: BTreeMap::new(),
            loans: BTreeMap::new(),
            exposed: BTreeMap::new(),
            connects: 0,
            thrown_away: Vec::new(),
            faults: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            config,
        };
        for fault in world.config.faults.clone() {
            world.inject(fault);
        }
        world
    }

    /// A number never given before.
    pub(super) fn fresh(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        match fault.when {
            When::Step(_) => self.faults.push(fault),
            When::Time(at) => self.schedule(at, Happening::Timed(fault)),
        }
    }

    /// Into the digest, with the time.
    pub(super) fn log(&mut self, what: &str, words: &[u64]) {
        self.digest.words(what, &[self.now.0]);
        self.digest.words("", words);
    }

    pub(super) fn misuse(&mut self, misuse: Misuse) {
        self.log("misuse", &[]);
        self.findings.misuses.push(misuse);
    }

    pub(super) fn schedule(&mut self, at: Time, happening: Happening) {
        let order = self.fresh();
        self.queue.push(Reverse(Scheduled { at, order, happening }));
    }

    fn delay(&mut self) -> Duration {
        let least = self.config.delay_min;
        let spread = self.config.delay_max.saturating_sub(least);
        let drawn = self.rng.below(u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX));
        least.saturating_add(Duration::from_nanos(drawn))
    }

    /// Something goes from one end to the other, behind all that went before it.
    pub(super) fn travel(&mut self, conn: u64, from: Side, extra: Duration, happening: Happening) {
        let at = self.now.plus(self.delay()).plus(extra);
        let Some(entry) = self.conns.get_mut(&conn) else { return };
        let end = &mut entry.ends[from];
        end.sent_until = end.sent_until.max(at);
        let at = end.sent_until;
        self.schedule(at, happening);
    }

    /// A completion comes back to the end that posted, behind its earlier ones.
    pub(super) fn come_back(&mut self, conn: u64, side: Side, extra: Duration, happening: Happening) {
        let at = self.now.plus(self.delay()).plus(extra);
        let Some(entry) = self.conns.get_mut(&conn) else { return };
        let end = &mut entry.ends[side];
        end.completed_until = end.completed_until.max(at);
        let at = end.completed_until;
        self.schedule(at, happening);
    }

    /// The next moment at which something happens.
    pub(super) fn next_at(&mut self) -> Time {
        while let Some(Reverse(next)) = self.queue.peek() {
            let stale = match &next.happening {
                Happening::ConnectDeadline { conn } => {
                    self.conns.get(conn).is_none_or(|conn| conn.outcome.is_some())
                }
                Happening::HandshakeDeadline { conn, side } => {
                    self.conns.get(conn).is_none_or(|conn| conn.ends[*side].life != Life::Linked)
                }
                _ => false,
            };
            if !stale {
                return next.at;
            }
            self.queue.pop();
        }
        Time::NEVER
    }

    pub(super) fn advance(&mut self, now: Time) {
        while self.queue.peek().is_some_and(|Reverse(next)| next.at <= now.max(self.now)) {
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.now = self.now.max(next.at);
            self.handle(next.happening);
        }
        self.now = self.now.max(now);
    }

    fn settle(&mut self) {
        self.advance(self.now);
    }

    fn handle(&mut self, happening: Happening) {
        use Happening as H;
        match happening {
            H::ConnectDeadline { conn } => self.on_connect_deadline(conn),
            H::HandshakeDeadline { conn, side } => self.on_handshake_deadline(conn, side),
            H::Timed(fault) => self.on_timed(fault),
            H::Request { conn } if self.hears(conn) => self.on_request(conn),
            H::Reply { conn } if self.hears(conn) => self.on_reply(conn),
            H::Refusal { conn, refusal } if self.hears(conn) => self.on_refusal(conn, refusal),
            H::Grant { conn, from, proof } if self.hears(conn) => self.on_grant(conn, from, proof),
            H::Arrive { conn, from, chain } if self.hears(conn) => self.on_arrive(conn, from, chain),
            H::RnrRetry { conn, to } if self.hears(conn) => self.on_rnr_retry(conn, to),
            H::Complete { conn, side, chains, position } if self.hears(conn) => {
                self.on_complete(conn, side, chains, position);
            }
            H::Credit { conn, from, credit } if self.hears(conn) => self.on_credit(conn, from, credit),
            H::Piece { conn, side, bytes } if self.hears(conn) => self.on_piece(conn, side, bytes),
            H::InPlace { conn, side } if self.hears(conn) => self.on_in_place(conn, side),
            H::Access { conn, side } if self.hears(conn) => self.on_access(conn, side),
            H::Goodbye { conn, from } if self.hears(conn) => self.on_goodbye(conn, from),
            _ => {}
        }
    }

    pub(super) fn hears(&self, conn: u64) -> bool {
        self.conns.get(&conn).is_some_and(|conn| !conn.silent)
    }

    /// The fault that waits for `conn` at `step`; it happens now.
    pub(super) fn fault(&mut self, conn: u64, step: Step) -> Option<FaultKind> {
        let number = self.conns.get(&conn)?.number;
        let hit = |fault: &Fault| {
            fault.when == When::Step(step) && fault.connection.is_none_or(|wanted| wanted == number)
        };
        let fault = self.faults.remove(self.faults.iter().position(hit)?);
        self.injected(fault.kind, number);
        Some(fault.kind)
    }

    pub(super) fn injected(&mut self, kind: FaultKind, number: u32) {
        self.findings.injected.push(kind);
        self.log("fault", &[number.into()]);
    }

    fn on_timed(&mut self, fault: Fault) {
        let alive = |(_, conn): &(&u64, &Conn)| {
            fault.connection.is_none_or(|number| number == conn.number)
                && conn.ends.iter().any(|end| matches!(end.life, Life::Linked | Life::Open))
        };
        let found = self.conns.iter().find(alive).map(|(id, conn)| (*id, conn.number));
        if let Some((id, number)) = found {
            self.injected(fault.kind, number);
            self.strike(id, fault.kind, 0, "connection");
        } else if fault.kind == FaultKind::DeviceRemoved {
            self.injected(fault.kind, 0);
            self.remove_device();
        }
    }

    /// What a fault does to a connection, where a step has nothing of its own to say.
    pub(super) fn strike(&mut self, conn: u64, kind: FaultKind, sender: Side, operation: &'static str) {
        match kind {
            FaultKind::Silent => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.silent = true;
                }
            }
            FaultKind::Work(status) => {
                self.close_end(conn, sender, CloseReason::Work { operation, status, vendor: 0 });
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.ends[sender].failed = true;
                }
                self.travel(conn, sender, Duration::ZERO, Happening::Goodbye { conn, from: sender });
            }
            FaultKind::DeviceRemoved => self.remove_device(),
            FaultKind::Overrun => self.overrun(conn, sender),
            _ => self.break_off(conn, &CloseReason::PeerGone { how: "simulated loss" }),
        }
    }

    fn remove_device(&mut self) {
        let all: Vec<u64> = self.conns.keys().copied().collect();
        for conn in all {
            self.break_off(conn, &CloseReason::DeviceGone);
        }
    }

    /// Both ends are over, and a pending attempt too.
    fn break_off(&mut self, conn: u64, reason: &CloseReason) {
        let event = if *reason == CloseReason::DeviceGone {
            "RDMA_CM_EVENT_DEVICE_REMOVAL"
        } else {
            "RDMA_CM_EVENT_UNREACHABLE"
        };
        self.fail_attempt(conn, |conn, step| ConnectError::Event {
            address: conn.address.clone(),
            event,
            status: 0,
            step,
        });
        self.close_end(conn, 0, reason.clone());
        self.close_end(conn, 1, reason.clone());
    }

    /// Gives an end its cause of death, unless it has one.
    pub(super) fn close_end(&mut self, id: u64, side: Side, reason: CloseReason) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        if end.life == Life::Closed || end.gone {
            end.life = Life::Closed;
            return;
        }
        end.life = Life::Closed;
        if matches!(reason, CloseReason::Local | CloseReason::Violation(_)) {
            end.inbox.retain(|inbound| !matches!(inbound, Inbound::Frame { .. }));
        }
        let pulls = std::mem::take(&mut end.pulls);
        self.log("closed", &[id, side as u64]);
        for pull in pulls {
            self.forget_reader(&pull);
            self.put(id, side, Inbound::Pulled { token: pull.token, result: Err(BulkError::Closed) });
        }
        self.end_accesses(id, side);
        self.put(id, side, Inbound::Closed(reason));
        self.changed = true;
    }

    /// Lays something into an end's inbox, and wakes its port.
    pub(super) fn put(&mut self, id: u64, side: Side, inbound: Inbound) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.ends[side].inbox.push_back(inbound);
        self.offer_inbox(id, side);
    }

    pub(super) fn offer_inbox(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        let Some(port) = end.port.and_then(|port| self.ports.get_mut(&port)) else { return };
        if end.id.is_none() || end.inbox.is_empty() {
            return;
        }
        if !end.queued {
            end.queued = true;
            port.ready.push_back((id, side));
        }
        port.waker.ring();
    }

    /// Makes an armed port look again.
    pub(super) fn nudge(&mut self, id: u64, side: Side) {
        let port = self.conns.get(&id).and_then(|conn| conn.ends[side].port);
        if let Some(port) = port.and_then(|port| self.ports.get_mut(&port)) {
            port.nudged = true;
            port.waker.ring();
        }
    }

    /// The connection whose turn it is on a port.
    /// One of the connections of a port that have a frame next, or something else.
    pub(super) fn choose(&mut self, port: u64, frames: bool) -> Option<(u64, Side)> {
        let is_next = |&&(id, side): &&(u64, Side)| {
            let front = self.conns.get(&id).and_then(|conn| conn.ends[side].inbox.front());
            matches!(front, Some(Inbound::Frame { .. })) == frames
        };
        let ready = &self.ports.get(&port)?.ready;
        let count = ready.iter().filter(is_next).count() as u64;
        let at = if self.config.shuffle { self.rng.below(count) } else { 0 };
        ready.iter().filter(is_next).nth(usize::try_from(at).unwrap_or(0)).copied()
    }

    /// The next thing of a connection for its port, in order.
    pub(super) fn take(&mut self, port: u64, id: u64, side: Side) -> Option<(ConnId, Inbound)> {
        let end = &mut self.conns.get_mut(&id)?.ends[side];
        let inbound = end.inbox.pop_front()?;
        end.queued = !end.inbox.is_empty();
        let (conn, more) = (end.id?, end.queued);
        if !more && let Some(port) = self.ports.get_mut(&port) {
            port.ready.retain(|entry| *entry != (id, side));
        }
        self.taken(id, side, conn, port, &inbound);
        Some((conn, inbound))
    }

    fn taken(&mut self, id: u64, side: Side, conn: ConnId, port: u64, inbound: &Inbound) {
        match inbound {
            Inbound::Frame { end, slot, chain_end, .. } => {
                self.frame_taken(id, side, *end, *slot, *chain_end);
            }
            Inbound::Closed(_) => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.conns.remove(&conn);
                }
                self.leave(id, side);
            }
            Inbound::Opened(_) | Inbound::Pulled { .. } | Inbound::Accessed { .. } => {}
        }
    }

    /// Nobody holds this end any more; the connection goes with the second one.
    pub(super) fn leave(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.ends[side].gone = true;
        conn.ends[side].life = Life::Closed;
        if conn.ends.iter().all(|end| end.gone) {
            self.forget(id);
        }
    }
}
