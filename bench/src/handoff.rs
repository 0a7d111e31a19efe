//! The engine's echo, handed off: a worker thread runs the turns, calls reach it through its inbox.
//!
//! ```text
//!  caller ── ticket, with its buffer ──► inbox ─► worker ─► peer
//!         ◄── the same ticket, filled ── answers ◄── worker ◄─┘        nothing is allocated
//! ```

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    thread::Thread,
    time::Duration,
};

use crossbeam::{queue::ArrayQueue, utils::Backoff};
use gimmal_engine::{
    App, Config, Idle, Io, Message, SendError, Workers,
    transport::{Address, Bulk, BulkError, CloseReason, ConnId, Negotiated, Port, Provider, Time},
    worker::WorkerHandle,
};

use crate::{
    clock::{Patience, Relax, Stamp},
    error::BenchError,
    plan::{ECHO, PLAN, Plan, engine_config, head, parse_answer},
    recorder::Recorder,
    target::{Counted, Target, body, digest, total},
};

/// How long a parked caller waits before it looks whether anything is wrong.
pub(crate) const PARK: Duration = Duration::from_millis(100);

/// A call on its way, with the memory for its answer.
#[derive(Debug)]
struct Ticket {
    slot: usize,
    buffer: Vec<u8>,
    started: Stamp,
}

/// What a caller may ask.
#[derive(Debug)]
enum Request {
    /// Send this and bring it back.
    Call(ConnId, Ticket),
    /// The plan; its answer comes on `answers`.
    Plan(ConnId, Ticket),
}

/// Where answers wait for the caller.
#[derive(Debug)]
struct Answers {
    done: ArrayQueue<Ticket>,
    caller: Thread,
    closed: OnceLock<String>,
}

/// The application on the client's worker.
#[derive(Debug)]
struct Courier {
    answers: Arc<Answers>,
    /// Tickets under way, by slot.
    under_way: Vec<Option<Ticket>>,
    /// Those that found no room.
    waiting: VecDeque<(ConnId, u16, Ticket)>,
    answered: bool,
}

impl Courier {
    fn new(answers: &Arc<Answers>, window: usize) -> Self {
        Self {
            answers: Arc::clone(answers),
            under_way: (0..window).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(window),
            answered: false,
        }
    }

    /// Sends a ticket; false when it must wait.
    fn send<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, kind: u16, ticket: Ticket) -> bool {
        let bytes = ticket.buffer.len();
        let sent = io.send(conn, head(kind, ticket.slot as u64), bytes, |out| {
            out[..bytes].copy_from_slice(&ticket.buffer);
            Some(bytes)
        });
        match sent {
            Ok(()) => {
                let slot = ticket.slot;
                self.under_way[slot] = Some(ticket);
                true
            }
            Err(SendError::Blocked) => {
                self.waiting.push_front((conn, kind, ticket));
                false
            }
            Err(error) => {
                self.fail(&error.to_string());
                true
            }
        }
    }

    fn fail(&self, why: &str) {
        // The first cause stays.
        let _ = self.answers.closed.set(why.to_owned());
        self.answers.caller.unpark();
    }
}

impl App for Courier {
    type Command = Request;

    fn opened<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId, _negotiated: &Negotiated) {}

    fn message<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId, message: Message<'_>) {
        let slot = usize::try_from(message.head.aux).unwrap_or(usize::MAX);
        let Some(mut ticket) = self.under_way.get_mut(slot).and_then(Option::take) else {
            return self.fail("an answer to no call");
        };
        if message.head.kind == PLAN {
            ticket.buffer.clear();
            ticket.buffer.extend_from_slice(message.body);
        } else if ticket.buffer.len() == message.body.len() {
            ticket.buffer.copy_from_slice(message.body);
        } else {
            return self.fail("an answer of another size");
        }
        // There is a place for every ticket.
        let _ = self.answers.done.push(ticket);
        self.answered = true;
    }

    fn pulled<P: Port>(
        &mut self,
        _io: &mut Io<'_, P>,
        _conn: ConnId,
        _token: u64,
        _result: Result<Bulk, BulkError>,
    ) {
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _conn: ConnId) {
        while let Some((conn, kind, ticket)) = self.waiting.pop_front() {
            if !self.send(io, conn, kind, ticket) {
                return;
            }
        }
    }

    fn closed<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId, reason: &CloseReason) {
        self.fail(&reason.to_string());
    }

    fn command<P: Port>(&mut self, io: &mut Io<'_, P>, request: Request) {
        let (conn, kind, ticket) = match request {
            Request::Call(conn, ticket) => (conn, ECHO, ticket),
            Request::Plan(conn, ticket) => (conn, PLAN, ticket),
        };
        if self.waiting.is_empty() {
            self.send(io, conn, kind, ticket);
        } else {
            self.waiting.push_back((conn, kind, ticket));
        }
    }

    fn tick<P: Port>(&mut self, _io: &mut Io<'_, P>) -> Time {
        if std::mem::take(&mut self.answered) {
            self.answers.caller.unpark();
        }
        Time::NEVER
    }
}

/// The client's end.
#[derive(Debug)]
pub struct HandoffTarget<P: Provider> {
    workers: Workers<P, Courier>,
    handle: WorkerHandle<P, Courier>,
    conn: ConnId,
    negotiated: Arc<Negotiated>,
    answers: Arc<Answers>,
    free: Vec<Ticket>,
    digest: u64,
    is_thorough: bool,
    relax: Relax,
}

impl<P: Provider> HandoffTarget<P> {
    /// Starts a worker on the client's core, connects, and tells the server the plan.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connect(
        provider: &P,
        address: &Address,
        plan: &Plan,
        ring_bytes: u32,
    ) -> Result<Self, BenchError> {
        let base = engine_config(plan.bytes, ring_bytes, Idle::default());
        let config = Config { cores: vec![plan.client_core], inbox: base.inbox.max(plan.window), ..base };
        let answers = Arc::new(Answers {
            done: ArrayQueue::new(plan.window),
            caller: std::thread::current(),
            closed: OnceLock::new(),
        });
        let (theirs, window) = (Arc::clone(&answers), plan.window);
        let workers = Workers::spawn(provider, &config.validate()?, move |_| Courier::new(&theirs, window))?;
        let handle = workers.handles().first().cloned();
        let handle = handle.ok_or_else(|| BenchError::Arguments("a plan without workers".to_owned()))?;
        let (conn, negotiated) = handle
            .connect(address)
            .map_err(|why| BenchError::NoServer { address: address.to_string(), why })?;
        let limit = (negotiated.frame_bytes_max as usize).saturating_sub(16);
        if plan.bytes > limit {
            return Err(BenchError::TooLarge { bytes: plan.bytes, limit });
        }
        let body = body(plan.bytes);
        let ticket = |slot| Ticket { slot, buffer: body.clone(), started: Stamp::now() };
        let free = (0..plan.window).map(ticket).collect();
        let relax = Relax::for_cores(plan.client_core, plan.server_core);
        let is_thorough = plan.verify;
        let digest = if is_thorough { total(&body) } else { digest(&body) };
        let target = Self { workers, handle, conn, negotiated, answers, free, digest, is_thorough, relax };
        target.tell(plan)?;
        Ok(target)
    }

    fn tell(&self, plan: &Plan) -> Result<(), BenchError> {
        let buffer = serde_json::to_vec(plan).map_err(|error| BenchError::Refused(error.to_string()))?;
        let ticket = Ticket { slot: 0, buffer, started: Stamp::now() };
        let full = |_| BenchError::stalled("handing the plan to the worker");
        self.handle.submit(Request::Plan(self.conn, ticket)).map_err(full)?;
        let answer = self.next("waiting for the server to take the plan")?;
        parse_answer(&answer.buffer).map(|_| ())
    }

    /// The next answer: looks, yields, then parks until the worker rings.
    fn next(&self, doing: &'static str) -> Result<Ticket, BenchError> {
        let backoff = Backoff::new();
        let mut patience = Patience::new(self.relax);
        loop {
            if let Some(ticket) = self.answers.done.pop() {
                return Ok(ticket);
            }
            if !backoff.is_completed() {
                backoff.snooze();
                continue;
            }
            if let Some(why) = self.answers.closed.get() {
                return Err(BenchError::Closed(why.clone()));
            }
            std::thread::park_timeout(PARK);
            if !patience.go_on() {
                return Err(BenchError::stalled(doing));
            }
        }
    }
}

impl<P: Provider> Target for HandoffTarget<P> {
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let (mut sent, mut done) = (0, 0);
        let first = Stamp::now();
        while done < count {
            while sent < count
                && let Some(mut ticket) = self.free.pop()
            {
                ticket.started = Stamp::now();
                if let Err(Request::Call(_, ticket) | Request::Plan(_, ticket)) =
                    self.handle.submit(Request::Call(self.conn, ticket))
                {
                    self.free.push(ticket);
                    break;
                }
                sent += 1;
            }
            let mut next = Some(self.next("waiting for an echo")?);
            while let Some(ticket) = next {
                recorder.record(Stamp::now().nanos_since(ticket.started));
                let found = if self.is_thorough { total(&ticket.buffer) } else { digest(&ticket.buffer) };
                if found != self.digest {
                    return Err(BenchError::Wrong("another body"));
                }
                self.free.push(ticket);
                done += 1;
                next = self.answers.done.pop();
            }
        }
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }

    fn counted(&mut self) -> Counted {
        let port = self.handle.port_counters(self.conn);
        Counted {
            negotiated: port.map(|_| self.negotiated.to_string()),
            port: port.unwrap_or_default(),
            duty: self.handle.duty(),
            blocked: 0,
        }
    }

    fn close(self: Box<Self>) {
        self.workers.shutdown(Duration::from_secs(2));
    }
}
