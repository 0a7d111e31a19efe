//! The RPC layer on a worker: both roles of every connection, since connections are symmetric.
//!
//! ```text
//!   commands ─► caller ─ Request, Cancel ─►  peer's callee ─► service ─► task or raw
//!               caller ◄─ Response ────────  peer's callee ◄─ answer, in place
//! ```

mod accesses;
mod answers;
mod bringing;
mod callee;
mod caller;
mod dispatch;
mod drain;
mod failure;
mod header_cache;
#[cfg(test)]
mod hoard_tests;
mod items;
mod large;
mod map;
mod noted;
mod one_way;
mod pulls;
mod raw;
mod request;
mod requests;
mod responses;
mod schemas;
mod serving;
#[cfg(test)]
mod sim_bytes;
#[cfg(test)]
mod sim_streams;
#[cfg(test)]
mod sim_tests;
mod streams;
mod tagged;
mod tasks;
#[cfg(any(test, feature = "sim"))]
pub mod world;

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use gimmal_engine::{
    App, Io, Message,
    transport::{
        AccessError, Accessed, Bulk, BulkError, CloseReason, ConnId, Instant, Negotiated, Port, Time,
    },
};

use bringing::Bringing;
use header_cache::HeaderCache;
use map::ConnMap;
use request::Enclosed;
pub(crate) use request::{Composed, Fresh, Source};
use serving::Serving;
pub(crate) use tagged::{Asked, Common};
use tasks::Tasks;

use crate::{
    batch::Draft,
    calls::{CallKey, Calls},
    cell::Responder,
    command::{Command, Watcher},
    config::Limits,
    cx::{Cx, Peer},
    error::TransportError,
    frame::{BARE_REQUEST, BARE_RESPONSE, Flags},
    here,
    id::CallId,
    late::Late,
    memory::Ended,
    reach::Reach,
    response::Response,
    service::Registry,
    shared::{Enrolled, Shared},
    stats::Counters,
    status::Fate,
    stream::{Begun, Home, Lane, Owner, Streams},
    task::Seat,
    wake::Waking,
};

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    peer: Arc<Peer>,
    calls: Calls,
    serving: Serving,
    headers: HeaderCache,
    /// For raw methods, one after the other: no counting of references for each call.
    raw_cx: Option<Cx>,
    draft: Draft,
    /// One-way handlers that are pending.
    one_way: usize,
    /// Whether any call had streams.
    streams_seen: bool,
    /// Calls with streams that wait for room, in turn.
    behind: VecDeque<Owner>,
    /// Of its streams, and the budget of their windows.
    home: Arc<Home>,
    /// Items of its streams that are on their way.
    bringing: Bringing,
    /// It was logged that they have every place of the window.
    has_warned: bool,
    watcher: Option<Arc<dyn Watcher>>,
    /// The peer has not been told yet that we take no more calls.
    owes_go_away: bool,
    /// The peer was asked to come again.
    was_asked: bool,
    /// The peer takes no more calls.
    has_left: bool,
    /// Its place among the server's connections.
    _enrolled: Enrolled,
}

/// Connections that ended, remembered so that later calls on them can say why.
const REMEMBERED: usize = 64;
/// A reading of the clock that is this much older than the next is not what a call's deadline counts from.
const AWAY: Duration = Duration::from_millis(1);
/// Between two questions whether a watcher is done.
const WATCH: Duration = Duration::from_millis(100);
/// Handlers polled in one turn.
const WAKES: usize = 256;
/// Pull tokens with this bit belong to the callee.
const CALLEE: u64 = 1 << 63;
/// Those with this bit, too, are of items of streams, in either role.
const ITEM: u64 = 1 << 62;

/// The [`App`] of gimmal's workers.
#[derive(Debug)]
pub(crate) struct Node {
    limits: Limits,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    reach: Arc<Reach>,
    counters: Arc<Counters>,
    late: Arc<Late>,
    conns: ConnMap<Conn>,
    tasks: Tasks,
    /// Calls of closed connections whose response the worker's own thread has not taken.
    closed: Vec<(ConnId, Calls)>,
    closings: VecDeque<(ConnId, CloseReason)>,
    /// Connections that clients of this worker left for others, in that order, and for which.
    moved: VecDeque<(ConnId, ConnId)>,
    /// Watchers that work on what they heard, and when they are asked about it.
    moving: Vec<Arc<dyn Watcher>>,
    moving_at: Time,
    /// Earliest deadline of any call or handler, of `moving` too, or earlier.
    next_deadline: Time,
    /// Connections whose turn it is in `expire`; its memory is used again.
    due: Vec<ConnId>,
    /// Boxes of handlers that are done, one for each method: the next one's future goes into it.
    seats: Box<[Seat]>,
    /// Of a handler that is done and used none of it: the next one's stream.
    spare_lane: Option<Arc<Lane>>,
    /// Marks every request served, see [`Cx::cancelled`](crate::Cx::cancelled).
    mark: u64,
    calls_live: usize,
    /// Tasks of other threads, of calls that ended.
    waking: Waking,
    /// Accesses of peers' memory that are in flight; a window of them for each connection.
    accesses: BTreeMap<(ConnId, u64), Responder<Ended>>,
    /// The token of the next one.
    access_token: u64,
    /// The clock's reading at time 0.
    epoch: Instant,
    /// The time as it was seen last.
    seen: Time,
    /// Calls were started, or handlers left pending, with that time, which may have been old.
    stale: bool,
    /// See [`Node::is_alone`].
    alone: bool,
    /// Every peer was told that this side takes no more calls.
    drains: bool,
}

impl Node {
    pub(crate) fn new(
        limits: Limits,
        registry: Arc<Registry>,
        shared: Arc<Shared>,
        reach: Arc<Reach>,
        counters: Arc<Counters>,
        late: Arc<Late>,
    ) -> Self {
        let seats = (0..registry.len()).map(|_| Seat::default()).collect();
        // What a worker before this one was serving when it panicked.
        counters.serving.add(counters.serving.get().wrapping_neg());
        Self {
            limits,
            registry,
            seats,
            spare_lane: None,
            tasks: Tasks::new(&limits, Arc::clone(&reach), shared.runtime.clone(), Arc::clone(&counters)),
            waking: Waking::new(&shared.woken, here::is_worker()),
            shared,
            reach,
            counters,
            late,
            conns: ConnMap::new(),
            closed: Vec::new(),
            closings: VecDeque::with_capacity(REMEMBERED),
            moved: VecDeque::new(),
            moving: Vec::new(),
            moving_at: Time::NEVER,
            next_deadline: Time::NEVER,
            due: Vec::with_capacity(64),
            mark: 0,
            calls_live: 0,
            accesses: BTreeMap::new(),
            access_token: 0,
            epoch: Instant::now(),
            seen: Time(0),
            stale: false,
            alone: false,
            drains: false,
        }
    }

    /// For what must not be lost for a full inbox.
    pub(crate) fn late(&self) -> Arc<Late> {
        Arc::clone(&self.late)
    }

    /// Why `conn` is not there.
    fn closing(&self, conn: ConnId) -> CloseReason {
        let known = self.closings.iter().find(|(closed, _)| *closed == conn);
        known.map_or(CloseReason::Local, |(_, reason)| reason.clone())
    }

    /// Whether there was no call on its connection when the last one began, not even an ended one that nobody had taken.
    #[inline]
    pub(crate) const fn is_alone(&self) -> bool {
        self.alone
    }

    /// Returns how a call of this thread ended, once; see [`Calls::take`].
    #[inline]
    pub(crate) fn take(&mut self, conn: ConnId, key: CallKey, spare: &Cell<Vec<u8>>) -> Option<Response> {
        match self.conns.get_mut(conn) {
            Some(here) => here.calls.take(key, spare),
            None => self.take_closed(conn, |calls| calls.take(key, spare)),
        }
    }

    /// Returns the stream down of a call that this thread made, if it has begun, once.
    #[inline]
    pub(crate) fn take_begun(&mut self, conn: ConnId, key: CallKey) -> Option<Begun> {
        match self.conns.get_mut(conn) {
            Some(here) => here.calls.take_begun(key),
            None => self.take_closed(conn, |calls| calls.take_begun(key)),
        }
    }

    /// Has a task of this thread woken when a call that it made ends.
    #[inline]
    pub(crate) fn watch(&mut self, conn: ConnId, key: CallKey, waker: &Waker) {
        if let Some(here) = self.conns.get_mut(conn) {
            here.calls.watch(key, waker);
        }
    }

    /// Asks a watcher that heard something, from now on, until it is done.
    #[cold]
    fn follow(&mut self, watcher: Arc<dyn Watcher>, now: Time) {
        if watcher.is_moving() {
            self.moving.push(watcher);
            self.moving_at = self.moving_at.min(now.plus(WATCH));
            self.next_deadline = self.next_deadline.min(self.moving_at);
        }
    }

    /// Takes from the calls of a connection that is closed.
    #[cold]
    fn take_closed<T>(&mut self, conn: ConnId, take: impl FnOnce(&mut Calls) -> Option<T>) -> Option<T> {
        let index = self.closed.iter().position(|(closed, _)| *closed == conn)?;
        let calls = &mut self.closed[index].1;
        let taken = take(calls);
        if !calls.has_done() {
            self.closed.swap_remove(index);
        }
        taken
    }

    /// Takes note of the time. The thread may have been away since the clock was read: calls that it started inline, and
    /// requests that came then, begin with this reading.
    #[inline]
    fn look(&mut self, now: Time) {
        if now != self.seen {
            self.looked(now);
        }
    }

    fn looked(&mut self, now: Time) {
        let away = now.since(self.seen);
        if self.stale && away > AWAY {
            for (_, here) in self.conns.iter_mut() {
                here.calls.put_off(self.seen, away);
                here.serving.put_off(self.seen, away);
            }
        }
        (self.seen, self.stale) = (now, false);
    }

    /// Handlers that were woken, and streams that moved, by handlers perhaps.
    fn wake<P: Port>(&mut self, io: &mut Io<'_, P>) {
        self.wake_handlers(io);
        self.pump_noticed(io);
    }

    fn wake_handlers<P: Port>(&mut self, io: &mut Io<'_, P>) {
        for _ in 0..WAKES {
            let Some(index) = self.reach.pop_ready() else { return };
            if let Some((task, served, polled)) = self.tasks.wake(index) {
                self.handler_ended(io, served, task, polled);
            }
        }
    }

    #[cold]
    fn expire<P: Port>(&mut self, io: &mut Io<'_, P>) -> bool {
        let now = io.now();
        let mut due = std::mem::take(&mut self.due);
        let passed = self.conns.iter_mut().filter(|(_, conn)| conn.next_deadline() <= now);
        due.extend(passed.map(|(conn, _)| conn));
        for conn in &due {
            self.expire_calls(io, *conn);
            self.expire_handlers(io, *conn);
            self.bring_again(io, *conn);
        }
        if self.moving_at <= now {
            self.moving.retain(|watcher| watcher.is_moving());
            self.moving_at = if self.moving.is_empty() { Time::NEVER } else { now.plus(WATCH) };
        }
        let deadlines = self.conns.iter_mut().map(|(_, conn)| conn.next_deadline());
        self.next_deadline = deadlines.min().unwrap_or(Time::NEVER).min(self.moving_at);
        let any = !due.is_empty();
        due.clear();
        self.due = due;
        any
    }
}

impl Conn {
    fn next_deadline(&self) -> Time {
        self.calls.next_deadline().min(self.serving.next_deadline()).min(self.bringing.again_at)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.reach.forget_lanes();
        // Of calls that end with this.
        drop(self.late.take());
        for (_, here) in self.conns.iter_mut() {
            here::leave(&here.peer.negotiated);
        }
    }
}

impl App for Node {
    type Command = Command;

    fn began(&mut self, at: Instant) {
        self.epoch = at;
    }

    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, negotiated: &Negotiated) {
        let negotiated = io.negotiated(conn).cloned().unwrap_or_else(|| Arc::new(negotiated.clone()));
        let peer = Arc::new(Peer {
            conn,
            negotiated,
            epoch: self.epoch,
            reach: Arc::clone(&self.reach),
            notes: crate::metadata::Notes::default(),
            answer_notes: crate::metadata::AnswerNotes::default(),
            admission: crate::admission::Admission::default(),
            running: (0..self.limits.serving_max).map(|_| AtomicU64::new(0)).collect(),
            one_way_started: crate::stats::Counter::default(),
            one_way_refused: crate::stats::Counter::default(),
        });
        let enrolled = self.shared.enroll(&peer.negotiated);
        here::enter(&peer.negotiated);
        let calls = Calls::new(self.limits.window, self.limits.waiting_max);
        self.conns.insert(
            conn,
            Conn {
                peer,
                calls,
                serving: Serving::default(),
                headers: HeaderCache::default(),
                raw_cx: None,
                draft: Draft::default(),
                one_way: 0,
                streams_seen: false,
                behind: VecDeque::new(),
                home: bringing::home(io, &self.reach, conn, self.limits.budget()),
                bringing: Bringing::default(),
                has_warned: false,
                watcher: None,
                owes_go_away: false,
                was_asked: false,
                has_left: false,
                _enrolled: enrolled,
            },
        );
        if self.shared.draining.load(Ordering::Relaxed) {
            self.owe_go_away(io, conn);
        }
    }

    #[inline]
    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, mut message: Message<'_>) {
        let id = CallId::from_aux(message.head.aux);
        let handled = match (message.head.kind, &message.bulk) {
            (BARE_RESPONSE, None) => self.answered(io, conn, id, message.body),
            (BARE_REQUEST, None) => self.requested_again(io, conn, id, message.body),
            (code, _) => {
                // Taken out: what the two above look at is never written to memory then.
                let bulk = message.bulk.take();
                self.dispatch(io, conn, (code, id), message.body, bulk)
            }
        };
        if let Err(violation) = handled {
            io.abort(conn, violation.into());
        }
    }

    fn pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Bulk, BulkError>,
    ) {
        if token & CALLEE == 0 {
            self.answer_pulled(io, conn, CallKey::from_bits(token), result);
        } else if token & ITEM != 0 {
            self.item_pulled(conn, token & !(CALLEE | ITEM), result);
        } else {
            self.request_pulled(io, conn, token & !CALLEE, result);
        }
    }

    fn accessed<P: Port>(
        &mut self,
        _: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Accessed, AccessError>,
    ) {
        if let Some(responder) = self.accesses.remove(&(conn, token)) {
            responder.complete(result.map_err(TransportError::of_access));
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        self.send_go_away(io, conn);
        // Answers first: they free what both sides wait for.
        self.send_answers(io, conn);
        self.send_requests(io, conn);
        self.bring_waiting(io, conn);
        self.pump_all(io, conn);
    }

    fn closed<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        if matches!(reason, CloseReason::Violation(_)) {
            self.counters.violations.increment();
        }
        if self.closings.len() == REMEMBERED {
            self.closings.pop_front();
        }
        self.closings.push_back((conn, reason.clone()));
        while let Some((key, _)) = self.accesses.range((conn, 0)..=(conn, u64::MAX)).next()
            && let Some(responder) = self.accesses.remove(&{ *key })
        {
            // The port has told of them, unless nobody takes turns any more.
            responder.complete(Err(TransportError::of_access(AccessError::Closed)));
        }
        if let Some(mut gone) = self.conns.remove(conn) {
            here::leave(&gone.peer.negotiated);
            self.end_handlers(&mut gone);
            self.end_calls(&mut gone, reason);
            if gone.calls.has_done() {
                self.closed.push((conn, gone.calls));
            }
            if let Some(watcher) = gone.watcher {
                watcher.ended(reason);
                self.follow(watcher, io.now());
            }
        }
    }

    fn command<P: Port>(&mut self, io: &mut Io<'_, P>, command: Command) {
        match command {
            Command::Call { conn, method, timeout, body, loan, flags, lanes, is_later, responder } => {
                let streams = Streams::of(lanes, is_later);
                let (reply, beside) = (crate::calls::Reply::Cell(responder), (loan, streams));
                let conn = self.successor(conn);
                // The cell is told if it failed.
                let _ = if flags.has(Flags::LARGE) {
                    self.counters.large.increment();
                    self.start(io, conn, method, timeout, Enclosed(flags, body), beside, reply)
                } else {
                    self.start(io, conn, method, timeout, Composed(body, flags), beside, reply)
                };
            }
            Command::Cancel(conn, cell) => self.cancel_cell(io, self.successor(conn), &cell),
            Command::Watch(conn, watcher) => self.look_after(conn, watcher, io.now()),
            Command::Retire(conn, next, done) => self.retire(io, conn, next, &done),
            Command::Drain(tell) => drop(tell.try_send(self.drain(io))),
            Command::RuntimeEnded => self.runtime_ended(io),
            Command::Shed(count) => self.shed(io, count),
            Command::Access(conn, handed) => self.access(io, conn, *handed),
            Command::Show(conn, exposed, responder) => responder.complete(Self::show(io, conn, &exposed)),
        }
    }

    fn refused(command: Command) {
        let why = "it is gone, and another takes its place: make the call again";
        let gone = TransportError::Worker { why, fate: Fate::NotRun };
        match command {
            Command::Call { responder, .. } => responder.complete(gone.into()),
            Command::Access(_, handed) => handed.responder.complete(Err(gone)),
            Command::Show(_, _, responder) => responder.complete(Err(gone)),
            Command::Watch(_, watcher) => watcher.ended(&CloseReason::WorkerPanicked),
            Command::Retire(_, _, done) => done.store(true, Ordering::Release),
            Command::Cancel(..) | Command::Drain(_) | Command::RuntimeEnded | Command::Shed(_) => {}
        }
    }

    fn panicked(&mut self, _: &str) {
        self.counters.worker_panics.increment();
    }

    #[inline]
    fn tick<P: Port>(&mut self, io: &mut Io<'_, P>) -> Time {
        let now = io.now();
        self.look(now);
        let mut acted = false;
        if self.reach.has_ready() {
            self.wake(io);
            acted = true;
        }
        if now >= self.next_deadline {
            acted |= self.expire(io);
        }
        if self.late.any() {
            acted |= self.asked_late(io);
        }
        // Over a device a turn that finds nothing may come late, so nobody waits for it.
        let waits = self.waking.end_turn(if P::IN_MEMORY { self.calls_live } else { 0 });
        // What was sent just now leaves with a turn, so there must be one.
        if acted || waits { now } else { self.next_deadline }
    }
}
