//! One turn: inbox → poll → receive → tick → settle → flush.

use std::sync::Arc;

use gimmal_transport::{
    Batch, BulkError, CloseReason, ConnId, Event, Instant, Limit, Look, Negotiated, Port, Time,
};

use super::{Worker, inbox::Command};
use crate::{
    app::{App, Pick},
    connection::Connection,
    error::OpenError,
    io::Io,
    proto::State,
    table::ConnTable,
};

/// Commands taken from the inbox in one turn.
pub(super) const COMMANDS: usize = 64;

impl<P: Port, A: App> Worker<P, A> {
    /// Does what there is to do, at most one batch of it, and returns how much that was. Messages that `pick` takes
    /// are not handed out.
    pub(crate) fn turn(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        let taken = self.take_commands(now) + self.take_runs(now, pick).0;
        self.turn_behind(taken, now)
    }

    /// Finishes a whole turn after a short one that found no frames.
    pub(crate) fn rest_of_turn(&mut self, now: Time) -> usize {
        let taken = self.take_commands(now);
        self.turn_behind(taken, now)
    }

    fn turn_behind(&mut self, taken: usize, now: Time) -> usize {
        let work = taken + self.poll(now);
        if self.beats.is_due(now, work > 0) {
            self.beat(now);
        }
        self.end_turn(now);
        work
    }

    /// A turn for nothing but what lies open: most turns, between two whole ones. `None`: there are events, and the
    /// [rest](Worker::rest_of_turn) brings them.
    #[inline]
    pub(crate) fn short_turn(&mut self, now: Time, pick: &mut impl Pick<A>) -> Option<usize> {
        let (work, has_events) = self.take_runs(now, pick);
        if work > 0 {
            self.beats.worked();
            self.end_turn(now);
        } else if has_events {
            return None;
        }
        Some(work)
    }

    #[inline]
    fn end_turn(&mut self, now: Time) {
        self.tick(now);
        self.settle(now);
    }

    /// Takes what lies open, at most one batch of it: how much that was, and whether the last look found events.
    #[inline]
    fn take_runs(&mut self, now: Time, pick: &mut impl Pick<A>) -> (usize, bool) {
        let taken = if self.sought.is_some() { self.receive_sought(now, pick) } else { 0 };
        let Self { port, app, conns, batch_limit, .. } = self;
        directly!(port => Self::receive_runs(port, (app, conns), (taken, *batch_limit), now, pick))
    }

    #[inline(always)]
    fn receive_runs<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        (mut taken, most): (usize, usize),
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> (usize, bool) {
        loop {
            match port.next_run(Limit::Frames(most - taken)) {
                Look::Run(run) => taken += Self::receive_run(port, (app, conns), run, now, pick),
                Look::Events => return (taken, true),
                Look::Nothing => return (taken, false),
            }
        }
    }

    /// What is no frame.
    fn poll(&mut self, now: Time) -> usize {
        // It is gone when the application panicked in the middle of one.
        let mut batch = self.batch.take().unwrap_or_else(|| Box::new(Batch::new(self.batch_limit)));
        self.port.poll(now, &mut batch);
        let work = batch.len();
        if work > 0 {
            self.handle_events(&mut batch, now);
        }
        self.batch = Some(batch);
        work
    }

    fn handle_events(&mut self, batch: &mut Batch, now: Time) {
        for event in batch.drain() {
            match event {
                Event::Pulled { conn, token, result } => {
                    let Self { port, app, conns, .. } = self;
                    let outcome = Self::pulled(app, &mut Io { port, conns, now }, conn, token, result);
                    if let Err(violation) = outcome {
                        port.close(conn, violation.into(), now);
                    }
                }
                Event::Accessed { conn, token, result } => {
                    let Self { port, app, conns, .. } = self;
                    if conns.get(conn).is_some() {
                        app.accessed(&mut Io { port, conns, now }, conn, token, result);
                    }
                }
                Event::Opened { conn, negotiated } => self.opened(conn, negotiated, now),
                Event::Suspect { conn } => self.doubt(conn, now),
                Event::Closed { conn, reason } => self.closed(conn, reason, now),
            }
        }
    }

    /// When the worker wants a turn although nothing happens.
    pub(crate) fn deadline(&mut self, now: Time) -> Time {
        let Self { port, app, conns, .. } = self;
        let wanted = app.tick(&mut Io { port, conns, now });
        wanted.min(self.port.deadline()).min(self.beats.deadline())
    }

    #[inline]
    fn tick(&mut self, now: Time) {
        let Self { port, app, conns, .. } = self;
        directly!(port => app.tick(&mut Io { port, conns, now }));
    }

    fn take_commands(&mut self, now: Time) -> usize {
        let mut taken = usize::from(self.inbox.unring());
        while taken < COMMANDS
            && let Some(command) = self.inbox.pop()
        {
            taken += 1;
            match command {
                Command::App(command) => {
                    let Self { port, app, conns, .. } = self;
                    app.command(&mut Io { port, conns, now }, command);
                }
                Command::Adopt(link, adopted) => {
                    self.inbox.took();
                    self.adopt(link, adopted, now);
                }
                Command::Close(conn) => Io { port: &mut self.port, conns: &mut self.conns, now }.close(conn),
                Command::Counters(conn, reader) => {
                    // Whoever asked may have stopped waiting.
                    let _ = reader.try_send(self.port.counters(conn));
                }
            }
        }
        taken
    }

    fn opened(&mut self, conn: ConnId, negotiated: Arc<Negotiated>, now: Time) {
        let first = self.port.credit(conn).completed;
        let mut connection = Connection::new(Arc::clone(&negotiated), first, &self.config, &self.duty, now);
        let index = self.opening.iter().position(|(waiting, _)| *waiting == conn);
        let count = index.and_then(|index| self.opening[index].1.take_count());
        connection.count = Some(count.unwrap_or_else(|| self.duty.count()));
        self.conns.insert(conn, connection);
        self.duty.opened();
        self.beats.opened(self.conns.len(), now);
        let Self { port, app, conns, .. } = self;
        app.opened(&mut Io { port, conns, now }, conn, &negotiated);
        if let Some(index) = index {
            let (_, adopted) = self.opening.swap_remove(index);
            if !adopted.tell(Ok((conn, negotiated))) {
                // Nobody would ever close it.
                Io { port: &mut self.port, conns: &mut self.conns, now }.close(conn);
            }
        }
    }

    pub(super) fn closed(&mut self, conn: ConnId, reason: CloseReason, now: Time) {
        if let Some(index) = self.opening.iter().position(|(waiting, _)| *waiting == conn) {
            let (_, adopted) = self.opening.swap_remove(index);
            let _ = adopted.tell(Err(OpenError::Closed(reason)));
            return;
        }
        let Some(mut connection) = self.conns.remove(conn) else {
            return;
        };
        self.duty.closed();
        connection.count = None;
        let cause = connection.cause(reason);
        self.tell(&connection, &cause);
        connection.set_state(State::Closed);
        let Self { port, app, conns, .. } = self;
        let mut io = Io { port, conns, now };
        while let Some(pull) = connection.pulls.take_any() {
            app.pulled(&mut io, conn, pull.token, Err(BulkError::Closed));
        }
        app.closed(&mut io, conn, &cause);
    }

    /// What is owed, then the flush: the end of a turn, and of whatever else the application does.
    #[inline]
    pub(crate) fn settle(&mut self, now: Time) {
        if self.conns.accounted {
            self.end_accounted(now);
        }
        if self.is_unsettled() {
            self.settle_active(now);
        }
        let port = &mut self.port;
        directly!(port => port.flush());
        self.unsent = false;
        self.conns.turn += 1;
        self.restless = self.is_unsettled();
    }

    /// Credit is given for nothing that was not released: a run of which some is accounted for is over. What pulls brought
    /// at once is told.
    #[cold]
    fn end_accounted(&mut self, now: Time) {
        let Self { port, app, conns, sought, .. } = self;
        conns.accounted = false;
        directly!(port => Self::end_sought(port, conns, sought, Ok(()), now));
        while let Some((conn, slot, result)) = conns.brought.pop() {
            let outcome = Self::pulled(app, &mut Io { port, conns, now }, conn, slot, result);
            if let Err(violation) = outcome {
                port.close(conn, violation.into(), now);
            }
        }
    }

    /// Credit, control frames, connections that have room again. Those that want more stay on the list.
    fn settle_active(&mut self, now: Time) {
        let Self { port, app, conns, .. } = self;
        let turn = conns.turn;
        let mut index = 0;
        while let Some(conn) = conns.active(index) {
            let settled = conns.settle(index, |connection| {
                let settled = connection.settle(port, conn, now, turn);
                // Whoever is told of room may use it up and wait again: looked at once more, next turn.
                (settled, settled.again || settled.writable)
            });
            let Some(settled) = settled else { continue };
            if settled.writable {
                app.writable(&mut Io { port, conns, now }, conn);
            }
            index += usize::from(settled.again || settled.writable);
        }
    }

    /// Logs the end of a connection, once: with its reason, at INFO unless the end was orderly. Ten lines a second at most.
    #[cold]
    fn tell(&self, connection: &Connection, reason: &CloseReason) {
        let Negotiated { provider, peer, .. } = &**connection.negotiated();
        if matches!(reason, CloseReason::Local | CloseReason::Peer) {
            return tracing::debug!(provider, peer, %reason, "closed");
        }
        let Some(left_out) = self.log.line(Instant::now()) else { return };
        match reason {
            CloseReason::Port(_) => tracing::warn!(provider, peer, %reason, left_out, "a connection ended"),
            _ => tracing::info!(provider, peer, %reason, left_out, "a connection ended"),
        }
    }
}
