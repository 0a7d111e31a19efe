//! The server's application: takes a plan, then sends back what comes.

use std::collections::VecDeque;

use gimmal_engine::{
    App, Io, Message, SendError,
    transport::{Bulk, BulkError, CloseReason, ConnId, Negotiated, Port},
    worker::thread::pin_to,
};

use crate::plan::{ECHO, PLAN, Plan, head};

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
    waiting: VecDeque<Waiting>,
    served: u64,
}

impl Echo {
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

    /// Takes the plan; pins this thread, as the client wants it.
    fn take_plan(&mut self, conn: ConnId, body: &[u8]) -> Result<(), String> {
        let plan: Plan = serde_json::from_slice(body).map_err(|error| format!("malformed plan: {error}"))?;
        if let Some((other, _)) = &self.plan
            && *other != conn
        {
            return Err("another client is being served".to_owned());
        }
        if plan.same_host {
            pin_to(plan.server_core).map_err(|error| error.to_string())?;
        }
        self.plan = Some((conn, plan));
        Ok(())
    }

    #[inline]
    fn send<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, kind: u16, aux: u64, body: &[u8]) {
        if !self.waiting.is_empty() {
            return self.wait(conn, kind, aux, body);
        }
        let sent = io.send(conn, head(kind, aux), body.len(), |out| {
            out[..body.len()].copy_from_slice(body);
            Some(body.len())
        });
        match sent {
            Ok(()) => self.served += 1,
            Err(SendError::Blocked) => self.wait(conn, kind, aux, body),
            // The client sees that its connection ended, or that an answer is missing.
            Err(error) => tracing::warn!(?conn, %error, "an echo was not sent"),
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

    #[inline]
    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        if message.head.kind == ECHO {
            return self.send(io, conn, ECHO, message.head.aux, message.body);
        }
        let why = match message.head.kind {
            PLAN => self.take_plan(conn, message.body).err().unwrap_or_default(),
            kind => format!("a message of kind {kind}"),
        };
        self.send(io, conn, PLAN, message.head.aux, why.as_bytes());
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
        if self.plan.as_ref().is_some_and(|(planner, _)| *planner == conn) {
            self.plan = None;
        }
    }

    fn command<P: Port>(&mut self, _io: &mut Io<'_, P>, command: Self::Command) {
        match command {}
    }
}
