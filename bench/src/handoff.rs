//! The engine's echo, handed off: a worker thread runs the turns, calls reach it through its inbox.
//!
//! ```text
//!  caller ── ticket, with its buffer ──► inbox ─► worker ─► peer
//!         ◄── the same ticket, filled ── answers ◄── worker ◄─┘        nothing is allocated
//! ```

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crossbeam::{
    queue::ArrayQueue,
    sync::{Parker, Unparker},
    utils::Backoff,
};
use gimmal_engine::{
    App, Config, Idle, Io, Message, Placement, SendError, Workers,
    transport::{Address, Bulk, BulkError, CloseReason, ConnId, Negotiated, Port, Provider, Time},
    worker::WorkerHandle,
};

use crate::{
    clock::{Patience, Relax, Stamp},
    crew::{Calls, Crew},
    error::BenchError,
    plan::{ECHO, PLAN, Plan, engine_config, head, parse_answer},
    recorder::Recorder,
    target::{Counted, Target, body, read},
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

/// Where answers wait for one caller.
#[derive(Debug)]
struct Answers {
    done: ArrayQueue<Ticket>,
    caller: Unparker,
    closed: OnceLock<String>,
}

/// The application on the client's worker.
#[derive(Debug)]
struct Courier {
    /// Of each caller; its tickets have `window` slots of their own.
    answers: Vec<Arc<Answers>>,
    window: usize,
    /// Tickets in flight, by slot.
    under_way: Vec<Option<Ticket>>,
    /// Those that found no room.
    waiting: VecDeque<(ConnId, u16, Ticket)>,
    /// Callers with answers that they were not woken for; each once.
    answered: Vec<usize>,
    /// Some came in this turn.
    has_fresh: bool,
}

impl Courier {
    fn new(answers: Vec<Arc<Answers>>, window: usize) -> Self {
        let (callers, all) = (answers.len(), answers.len() * window);
        Self {
            answers,
            window,
            under_way: (0..all).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(all),
            answered: Vec::with_capacity(callers),
            has_fresh: false,
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
        for answers in &self.answers {
            // The first cause stays.
            let _ = answers.closed.set(why.to_owned());
            answers.caller.unpark();
        }
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
        let caller = slot / self.window;
        // There is a place for every ticket.
        let _ = self.answers[caller].done.push(ticket);
        self.has_fresh = true;
        if !self.answered.contains(&caller) {
            self.answered.push(caller);
        }
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

    fn tick<P: Port>(&mut self, io: &mut Io<'_, P>) -> Time {
        // Several callers are woken when no more answers come: who wakes for one would take the core from the worker for it.
        let more_come = std::mem::take(&mut self.has_fresh) && self.answers.len() > 1;
        if more_come {
            return io.now();
        }
        for caller in self.answered.drain(..) {
            self.answers[caller].caller.unpark();
        }
        Time::NEVER
    }
}

/// A thread's end.
#[derive(Debug)]
struct Desk<P: Provider> {
    handle: WorkerHandle<P, Courier>,
    conn: ConnId,
    answers: Arc<Answers>,
    parker: Parker,
    free: Vec<Ticket>,
    digest: u64,
    is_thorough: bool,
    /// No other thread calls.
    is_alone: bool,
    relax: Relax,
}

/// The client's end.
#[derive(Debug)]
pub struct HandoffTarget<P: Provider> {
    workers: Workers<P, Courier>,
    handle: WorkerHandle<P, Courier>,
    conn: ConnId,
    negotiated: Arc<Negotiated>,
    crew: Crew<Desk<P>>,
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
        let placement = Placement::Cores(vec![plan.client_core]);
        let config = Config { placement, inbox: base.inbox.max(plan.window), ..base };
        let window = plan.window / plan.threads;
        let parkers: Vec<Parker> = (0..plan.threads).map(|_| Parker::new()).collect();
        let answers: Vec<_> = parkers.iter().map(|parker| Arc::new(Answers::of(parker, window))).collect();
        let theirs = answers.clone();
        let workers =
            Workers::spawn(provider, &config.validate()?, move |_| Courier::new(theirs.clone(), window))?;
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
        let desk = |(number, (answers, parker))| Desk {
            handle: handle.clone(),
            conn,
            answers,
            parker,
            free: tickets(number * window..(number + 1) * window, &body),
            digest: read(&body, plan.verify),
            is_thorough: plan.verify,
            is_alone: plan.threads == 1,
            relax: Relax::for_cores(plan.client_core, plan.server_core),
        };
        let crew = Crew::new(answers.into_iter().zip(parkers).enumerate().map(desk).collect())?;
        crew.first().map_or(Ok(()), |desk| desk.tell(plan))?;
        Ok(Self { workers, handle, conn, negotiated, crew })
    }
}

fn tickets(slots: Range<usize>, body: &[u8]) -> Vec<Ticket> {
    slots.map(|slot| Ticket { slot, buffer: body.to_vec(), started: Stamp::now() }).collect()
}

impl Answers {
    fn of(parker: &Parker, window: usize) -> Self {
        let caller = parker.unparker().clone();
        Self { done: ArrayQueue::new(window), caller, closed: OnceLock::new() }
    }
}

impl<P: Provider> Desk<P> {
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
            // Of several callers others have work meanwhile.
            if self.is_alone && !backoff.is_completed() {
                backoff.snooze();
                continue;
            }
            if let Some(why) = self.answers.closed.get() {
                return Err(BenchError::Closed(why.clone()));
            }
            self.parker.park_timeout(PARK);
            if !patience.go_on() {
                return Err(BenchError::stalled(doing));
            }
        }
    }
}

impl<P: Provider> Calls for Desk<P> {
    fn calls(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let (mut sent, mut done) = (0, 0);
        let first = Stamp::now();
        // Those that leave together have one start, those that come back together one end: a reading costs as much as a call.
        let mut now = first;
        while done < count {
            while sent < count
                && let Some(mut ticket) = self.free.pop()
            {
                ticket.started = now;
                if let Err(Request::Call(_, ticket) | Request::Plan(_, ticket)) =
                    self.handle.submit(Request::Call(self.conn, ticket))
                {
                    self.free.push(ticket);
                    break;
                }
                sent += 1;
            }
            let mut next = Some(self.next("waiting for an echo")?);
            now = Stamp::now();
            while let Some(ticket) = next {
                recorder.record(now.nanos_since(ticket.started));
                let found = read(&ticket.buffer, self.is_thorough);
                if found != self.digest {
                    return Err(BenchError::Wrong("another body"));
                }
                self.free.push(ticket);
                done += 1;
                next = self.answers.done.pop();
            }
        }
        recorder.busy(now.nanos_since(first));
        Ok(())
    }
}

impl<P: Provider> Target for HandoffTarget<P> {
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        self.crew.calls(count, recorder)
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
