//! The server's application: takes a plan, then echoes every message.

use std::collections::VecDeque;

use gimmal_engine::{
    App, Head, Io, Message, RemoteBulk, SendError,
    transport::{Bulk, BulkError, CloseReason, ConnId, Negotiated, Port, copy},
};

use crate::{
    bulk::read,
    inline::fill,
    plan::{ACCEPTED, ECHO, PLAN, Plan, READ, TOUCH, WHOLE, head},
};

/// An echo that waits for room. Only then are bytes copied aside.
#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    kind: u16,
    aux: u64,
    body: Vec<u8>,
}

/// Echoes in the turn that received.
#[derive(Debug, Default)]
pub struct Echo {
    plan: Option<(ConnId, Plan)>,
    /// A plan that nobody answered yet.
    asked: Option<(ConnId, Plan)>,
    waiting: VecDeque<Waiting>,
    served: u64,
    /// The number of the echo in which a bit is turned over.
    corrupt: Option<u64>,
    /// Loans that could not be pulled yet, with their numbers.
    pulls: VecDeque<(ConnId, RemoteBulk, u64)>,
}

impl Echo {
    /// One that turns a bit of echo number `corrupt` over, so that it can be seen who notices.
    #[must_use]
    pub fn corrupting(corrupt: Option<u64>) -> Self {
        Self { corrupt, ..Self::default() }
    }

    /// What the client that is connected wants measured.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref().map(|(_, plan)| plan)
    }

    /// Messages sent back.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.served
    }

    /// A plan that was not answered yet; see [`Echo::accept`] and [`Echo::refuse`].
    #[must_use]
    pub fn asked(&self) -> Option<&Plan> {
        self.asked.as_ref().map(|(_, plan)| plan)
    }

    /// Takes the plan that was asked for; `url` is where its layer is served, when that is elsewhere.
    pub fn accept<P: Port>(&mut self, io: &mut Io<'_, P>, url: &str) {
        if let Some((conn, plan)) = self.asked.take() {
            self.plan = Some((conn, plan));
            self.send(io, conn, PLAN, 0, format!("{ACCEPTED}{url}").as_bytes());
        }
    }

    /// Says why the plan that was asked for cannot be.
    pub fn refuse<P: Port>(&mut self, io: &mut Io<'_, P>, why: &str) {
        if let Some((conn, _)) = self.asked.take() {
            self.send(io, conn, PLAN, 0, why.as_bytes());
        }
    }

    /// Stores a plan. The code that runs the turns answers it.
    fn ask(&mut self, conn: ConnId, body: &[u8]) -> Result<(), String> {
        let plan: Plan = serde_json::from_slice(body).map_err(|error| format!("malformed plan: {error}"))?;
        let planner = self.plan.as_ref().or(self.asked.as_ref());
        if planner.is_some_and(|(other, _)| *other != conn) {
            return Err("another client is being served".to_owned());
        }
        self.asked = Some((conn, plan));
        Ok(())
    }

    /// Sends an echo as it came, what nearly all there is to do.
    #[inline]
    fn echo<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, aux: u64, body: &[u8]) {
        if !self.waiting.is_empty() || self.corrupt.is_some() {
            return self.send(io, conn, ECHO, aux, body);
        }
        match io.send(conn, head(ECHO, aux), body.len(), fill(body)) {
            Ok(()) => self.served += 1,
            Err(error) => self.unsent(error, conn, ECHO, aux, body),
        }
    }

    fn send<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, kind: u16, aux: u64, body: &[u8]) {
        if !self.waiting.is_empty() {
            return self.wait(conn, kind, aux, body);
        }
        let is_wrong = self.corrupt == Some(self.served);
        let sent = io.send(conn, head(kind, aux), body.len(), |out| {
            copy(body, out);
            if let (true, Some(last)) = (is_wrong, out[..body.len()].last_mut()) {
                *last ^= 0x10;
            }
            Some(body.len())
        });
        match sent {
            Ok(()) => self.served += 1,
            Err(error) => self.unsent(error, conn, kind, aux, body),
        }
    }

    #[cold]
    fn unsent(&mut self, error: SendError, conn: ConnId, kind: u16, aux: u64, body: &[u8]) {
        match error {
            SendError::Blocked => self.wait(conn, kind, aux, body),
            // The client sees that its connection ended, or that an answer is missing.
            error => tracing::warn!(?conn, %error, "an echo was not sent"),
        }
    }

    /// Brings a loan here, now or when there is room.
    fn pull<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, bulk: RemoteBulk, token: u64) {
        if !self.pulls.is_empty() {
            return self.pulls.push_back((conn, bulk, token));
        }
        match io.pull(conn, bulk, token) {
            Ok(()) => {}
            Err((SendError::Blocked, bulk)) => self.pulls.push_back((conn, bulk, token)),
            Err((error, bulk)) => {
                tracing::warn!(?conn, %error, "a loan was not pulled");
                io.decline(conn, bulk);
            }
        }
    }

    /// A message that is no echo.
    #[inline(never)]
    fn other<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        head: Head,
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) {
        if let (kind @ (TOUCH | WHOLE), Some(bulk)) = (head.kind, bulk) {
            // The token says both, for the time in which nothing else is kept.
            return self.pull(io, conn, bulk, head.aux << 1 | u64::from(kind == WHOLE));
        }
        let taken = match head.kind {
            PLAN => self.ask(conn, body),
            kind => Err(format!("a message of kind {kind}")),
        };
        if let Err(why) = taken {
            self.send(io, conn, PLAN, 0, why.as_bytes());
        }
    }

    #[cold]
    fn wait(&mut self, conn: ConnId, kind: u16, aux: u64, body: &[u8]) {
        self.waiting.push_back(Waiting { conn, kind, aux, body: body.to_vec() });
    }
}

impl App for Echo {
    type Command = std::convert::Infallible;

    fn opened<P: Port>(&mut self, _io: &mut Io<'_, P>, _conn: ConnId, _negotiated: &Negotiated) {}

    /// Inlined, so that an echo's parts stay in registers.
    #[inline(always)]
    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, mut message: Message<'_>) {
        if message.head.kind == ECHO {
            self.echo(io, conn, message.head.aux, message.body);
        } else {
            let bulk = message.bulk.take();
            self.other(io, conn, message.head, message.body, bulk);
        }
    }

    fn pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Bulk, BulkError>,
    ) {
        let kind = if token & 1 == 1 { WHOLE } else { TOUCH };
        match result {
            Ok(bulk) => {
                let found = read(kind, &bulk);
                drop(bulk);
                self.send(io, conn, READ, token >> 1, &found.to_le_bytes());
            }
            Err(error) => tracing::warn!(?conn, %error, "a loan did not come"),
        }
        if let Some((conn, bulk, token)) = self.pulls.pop_front() {
            self.pull(io, conn, bulk, token);
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, _conn: ConnId) {
        // Those that find no room again go back, in order.
        let mut waiting = std::mem::take(&mut self.waiting);
        while let Some(next) = waiting.pop_front() {
            self.send(io, next.conn, next.kind, next.aux, &next.body);
            if !self.waiting.is_empty() {
                self.waiting.append(&mut waiting);
                return;
            }
        }
    }

    fn closed<P: Port>(&mut self, _io: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        tracing::debug!(?conn, %reason, "closed");
        self.waiting.retain(|waiting| waiting.conn != conn);
        self.pulls.retain(|(other, ..)| *other != conn);
        if self.plan.as_ref().is_some_and(|(planner, _)| *planner == conn) {
            self.plan = None;
        }
        if self.asked.as_ref().is_some_and(|(planner, _)| *planner == conn) {
            self.asked = None;
        }
    }

    fn command<P: Port>(&mut self, _io: &mut Io<'_, P>, command: Self::Command) {
        match command {}
    }
}
