//! The engine's echo, inline: the calling thread runs the turns.

use std::{collections::VecDeque, time::Duration};

use gimmal_engine::{
    Act, App, Head, Idle, Inline, Io, Message, Pick, SendError,
    transport::{Address, Bulk, BulkError, CloseReason, ConnId, Negotiated, Port, Provider, copy},
};

use crate::{
    arrivals::Arrivals,
    clock::{PATIENCE, Patience, Relax, Stamp},
    error::BenchError,
    plan::{ECHO, PLAN, Plan, READ, engine_plan, head, parse_answer},
    recorder::Recorder,
    stopwatch::Stopwatch,
    target::{Counted, Target, body, digest, read},
};

/// Turns without an answer between two questions whether to go on.
const TURNS: u32 = 1 << 10;
/// The longest sleep of a side that sleeps. A timer that ends before the kernel's next tick, as one of 1 ms, makes a sleep
/// longer by 5 us.
pub(crate) const NAP: Duration = Duration::from_millis(20);

/// The client's application: counts the echoes.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    pub(crate) opened: Option<ConnId>,
    pub(crate) answered: u64,
    aux: u64,
    pub(crate) digest: u64,
    /// Loans that were read: their numbers, and what was found in them.
    pub(crate) loans_read: Vec<(u64, u64)>,
    is_thorough: bool,
    plan_answer: Option<Vec<u8>>,
    /// A send was refused, and there is room again.
    has_room: bool,
    pub(crate) closed: Option<CloseReason>,
}

impl App for Caller {
    type Command = std::convert::Infallible;

    fn opened<P: Port>(&mut self, _io: &mut Io<'_, P>, conn: ConnId, _negotiated: &Negotiated) {
        self.opened = Some(conn);
    }

    /// As [`Echo`](crate::echo::Echo)'s.
    #[inline(always)]
    fn message<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId, message: Message<'_>) {
        if message.head.kind == ECHO {
            self.echoed(message.head.aux, message.body);
        } else {
            self.other(message.head, message.body);
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

    fn writable<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId) {
        self.has_room = true;
    }

    fn closed<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId, reason: &CloseReason) {
        self.closed = Some(reason.clone());
    }

    fn command<P: Port>(&mut self, _io: &mut Io<'_, P>, command: Self::Command) {
        match command {}
    }
}

impl Caller {
    #[inline]
    fn echoed(&mut self, aux: u64, body: &[u8]) {
        self.answered += 1;
        self.aux = aux;
        self.digest = read(body, self.is_thorough);
    }

    #[inline(never)]
    fn other(&mut self, head: Head, body: &[u8]) {
        if head.kind == READ {
            self.answered += 1;
            self.loans_read.push((head.aux, digest(body)));
        } else {
            self.plan_answer = Some(body.to_vec());
        }
    }
}

/// The one echo that is waited for.
struct Echo;

impl Pick<Caller> for Echo {
    #[inline]
    fn pick<P: Port>(
        &mut self,
        app: &mut Caller,
        _: &mut Io<'_, P>,
        _: ConnId,
        message: &Message<'_>,
    ) -> bool {
        let is_it = message.head.kind == ECHO;
        if is_it {
            app.echoed(message.head.aux, message.body);
        }
        is_it
    }
}

/// Sends echoes up to number `wanted`; those of one burst leave together.
struct Burst<'a> {
    conn: ConnId,
    body: &'a [u8],
    sent: u64,
    wanted: u64,
}

impl Act<Caller> for Burst<'_> {
    /// The number of the last that was sent, and why no more were.
    type Outcome = (u64, Result<(), SendError>);

    #[inline]
    fn act<P: Port>(mut self, _: &mut Caller, io: &mut Io<'_, P>) -> Self::Outcome {
        while self.sent < self.wanted {
            let number = self.sent + 1;
            if let Err(error) = io.send(self.conn, head(ECHO, number), self.body.len(), fill(self.body)) {
                return (self.sent, Err(error));
            }
            self.sent = number;
        }
        (self.sent, Ok(()))
    }
}

/// The client's end.
#[derive(Debug)]
pub struct InlineTarget<P: Provider> {
    pub(crate) inline: Inline<P, Caller>,
    pub(crate) conn: ConnId,
    pub(crate) body: Vec<u8>,
    digest: u64,
    relax: Relax,
    window: u64,
    /// The longest sleep; none where nobody sleeps.
    nap: Duration,
    watch: Stopwatch,
    /// Echoes asked for, on whichever connection.
    pub(crate) sent: u64,
    /// Sends that found no room.
    pub(crate) blocked: u64,
    served_at: String,
}

impl<P: Provider> InlineTarget<P> {
    /// Connects on the calling thread and tells the server the plan.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connect(
        provider: &P,
        address: &Address,
        plan: &Plan,
        ring_bytes: u32,
    ) -> Result<Self, BenchError> {
        let mut target = Self::connect_beside(provider, address, plan, ring_bytes)?;
        target.served_at = target.tell(plan)?;
        Ok(target)
    }

    /// As [`InlineTarget::connect`], beside the connection that tells the plan.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connect_beside(
        provider: &P,
        address: &Address,
        plan: &Plan,
        ring_bytes: u32,
    ) -> Result<Self, BenchError> {
        let caller = Caller { is_thorough: plan.verify, ..Caller::default() };
        let idle = plan.mode.idle();
        let mut inline = Inline::new(provider, &engine_plan(plan.bytes, ring_bytes, idle)?, caller)?;
        let (conn, _) = inline
            .connect(address)
            .map_err(|why| BenchError::NoServer { address: address.to_string(), why })?;
        let limit = inline.with(|_, io| io.body_bytes_max(conn));
        if plan.bytes > limit {
            return Err(BenchError::TooLarge { bytes: plan.bytes, limit });
        }
        let body = body(plan.bytes);
        let relax = Relax::for_cores(plan.client_core, plan.server_core);
        Ok(Self {
            inline,
            conn,
            digest: read(&body, plan.verify),
            body,
            relax,
            window: plan.window as u64,
            nap: if idle == Idle::Event { NAP } else { Duration::ZERO },
            watch: Stopwatch::new(plan.window),
            sent: 0,
            blocked: 0,
            served_at: String::new(),
        })
    }

    fn tell(&mut self, plan: &Plan) -> Result<String, BenchError> {
        let text = serde_json::to_vec(plan).map_err(|error| BenchError::Refused(error.to_string()))?;
        self.send(PLAN, &text)?;
        self.turns(|app| app.plan_answer.is_some(), "waiting for the server to take the plan")?;
        parse_answer(&self.inline.app_mut().plan_answer.take().unwrap_or_default())
    }

    fn send(&mut self, kind: u16, body: &[u8]) -> Result<(), BenchError> {
        let conn = self.conn;
        let sent = self.inline.with(|_, io| io.send(conn, head(kind, 0), body.len(), fill(body)));
        sent.map_err(|error| BenchError::Closed(error.to_string()))
    }

    /// Turns until `done`.
    #[inline]
    pub(crate) fn turns(
        &mut self,
        done: impl Fn(&Caller) -> bool,
        doing: &'static str,
    ) -> Result<(), BenchError> {
        let mut patience = Patience::new(self.relax);
        let mut turns = 0u32;
        while !done(self.inline.app()) {
            let work = if self.nap.is_zero() { self.inline.turn() } else { self.inline.idle(self.nap) };
            if work > 0 {
                continue;
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS) {
                self.check(&mut patience, doing)?;
            } else if self.relax == Relax::Yield {
                self.relax.relax();
            }
        }
        Ok(())
    }

    /// Waits for echo number `sent`, of which nothing is done before the next is sent but to look at it. As one loop
    /// with
    /// [`InlineTarget::turns`] it cost the rate of a window 5 %.
    #[inline]
    fn seek_echo(&mut self, sent: u64) -> Result<(), BenchError> {
        let mut patience = Patience::new(self.relax);
        let mut looks = 0u32;
        while self.inline.app().answered != sent {
            if self.inline.seek(self.nap, Echo) {
                continue;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(TURNS) {
                self.check(&mut patience, "waiting for an echo")?;
            } else {
                self.relax_if_shared();
            }
        }
        Ok(())
    }

    /// Waits after a send was refused with nothing in flight: credit for a frame returns after its echo, so no echo
    /// may arrive here.
    #[cold]
    pub(crate) fn wait_for_room(&mut self) -> Result<(), BenchError> {
        self.inline.app_mut().has_room = false;
        self.turns(|app| app.has_room, "waiting for room in the ring")
    }

    #[cold]
    fn check(&self, patience: &mut Patience<'_>, doing: &'static str) -> Result<(), BenchError> {
        match &self.inline.app().closed {
            Some(reason) => Err(BenchError::Closed(reason.to_string())),
            None if patience.go_on() => Ok(()),
            None => Err(BenchError::stalled(doing)),
        }
    }

    fn relax_if_shared(&self) {
        if self.relax == Relax::Yield {
            self.relax.relax();
        }
    }

    /// One call at a time.
    fn latency(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let conn = self.conn;
        let first = recorder.begin_laps();
        for _ in 0..count {
            self.sent += 1;
            let sent = self.sent;
            let body = &*self.body;
            self.inline
                .with(|_, io| io.send(conn, head(ECHO, sent), body.len(), fill(body)))
                .map_err(|error| BenchError::Closed(error.to_string()))?;
            self.seek_echo(sent)?;
            recorder.lap();
            self.compare(sent)?;
        }
        recorder.end_laps();
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }

    /// A window of calls.
    fn rate(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let (conn, window) = (self.conn, self.window);
        let (mut done, last) = (self.sent, self.sent + count);
        self.watch.begin(done);
        let first = Stamp::now();
        while done < last {
            let (before, wanted) = (self.sent, last.min(done + window));
            self.watch.start(before);
            let burst = Burst { conn, body: &self.body, sent: before, wanted };
            let (sent, outcome) = self.inline.with_later(burst);
            self.sent = sent;
            match outcome {
                Ok(()) => {}
                Err(SendError::Blocked) => self.blocked += 1,
                Err(error) => return Err(BenchError::Closed(error.to_string())),
            }
            self.watch.leave(before, self.sent);
            if self.sent == done {
                self.wait_for_room()?;
                continue;
            }
            self.turns(|app| app.answered > done, "waiting for an echo")?;
            done = self.inline.app().answered;
            self.watch.come_back(done, recorder);
            self.compare(done)?;
        }
        self.watch.end(recorder);
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }

    #[inline]
    fn compare(&self, sent: u64) -> Result<(), BenchError> {
        let app = self.inline.app();
        if app.aux != sent {
            return Err(BenchError::Wrong("another number"));
        }
        if app.digest != self.digest {
            return Err(BenchError::Wrong("another body"));
        }
        Ok(())
    }
}

/// Copies `body` to where it leaves from.
#[inline]
pub(crate) fn fill(body: &[u8]) -> impl FnOnce(&mut [u8]) -> Option<usize> + '_ {
    move |out| {
        copy(body, out);
        Some(body.len())
    }
}

impl<P: Provider> Target for InlineTarget<P> {
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        if self.window == 1 { self.latency(count, recorder) } else { self.rate(count, recorder) }
    }

    fn offer(&mut self, arrivals: &mut Arrivals, recorder: &mut Recorder) -> Result<(), BenchError> {
        let conn = self.conn;
        // When those in flight were due; room for what a stall of seconds leaves behind.
        let mut due = VecDeque::with_capacity(1 << 20);
        let first = Stamp::now();
        let mut next = first.after(arrivals.gap());
        let end = first.after(arrivals.duration);
        let mut answered = self.inline.app().answered;
        while next < end || !due.is_empty() {
            let now = Stamp::now();
            if next <= now && next < end && due.len() < due.capacity() {
                let Self { inline, body, sent, .. } = self;
                match inline.with(|_, io| io.send(conn, head(ECHO, *sent + 1), body.len(), fill(body))) {
                    Ok(()) => {
                        *sent += 1;
                        due.push_back(next);
                        next = next.after(arrivals.gap());
                        continue;
                    }
                    // It stays due: its waiting counts.
                    Err(SendError::Blocked) => self.blocked += 1,
                    Err(error) => return Err(BenchError::Closed(error.to_string())),
                }
            }
            self.inline.turn();
            let app = self.inline.app();
            if app.answered > answered {
                let came = Stamp::now();
                for _ in answered..app.answered {
                    recorder.record(due.pop_front().map_or(0, |due| came.nanos_since(due)));
                }
                answered = app.answered;
            } else if let Some(reason) = &app.closed {
                return Err(BenchError::Closed(reason.to_string()));
            } else if now.since(end) > PATIENCE {
                return Err(BenchError::stalled("waiting for the last echoes"));
            } else {
                self.relax_if_shared();
            }
        }
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }

    fn counted(&mut self) -> Counted {
        let (conn, duty) = (self.conn, self.inline.handle().duty());
        let blocked = self.blocked;
        self.inline.with(|_, io| Counted {
            port: io.port_counters(conn),
            duty,
            blocked,
            negotiated: io.negotiated(conn).map(ToString::to_string),
        })
    }

    fn served_at(&self) -> &str {
        &self.served_at
    }

    fn close(self: Box<Self>) {
        self.inline.close(Duration::from_secs(1));
    }
}
