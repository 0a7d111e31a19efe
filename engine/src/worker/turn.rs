//! One turn: inbox → poll → receive → tick → settle → flush.

use std::sync::Arc;

use gimmal_transport::{
    Batch, Bulk, BulkError, CloseReason, ConnId, Event, Lent, Negotiated, Port, Run, RxFrame, Tag, Time,
    Violation,
};

use super::{Worker, inbox::Command};
use crate::{
    app::{App, Nothing, Pick},
    connection::Connection,
    error::OpenError,
    io::Io,
    message::{Head, Message, RemoteBulk, Source},
    planted::{self, Bug},
    proto::{
        State, StateEvent, check,
        wire::{self, Frame},
    },
    table::ConnTable,
};

/// Commands taken from the inbox in one turn.
const COMMANDS: usize = 64;

/// A frame that is a message and nothing else, as nearly all are.
#[inline]
fn plain<'a>(conn: ConnId, frame: &'a Lent<'a>) -> Option<Message<'a>> {
    let (kind, aux, body) = wire::plain(frame.tag(), frame.payload())?;
    Some(Message { head: Head { kind, aux }, body, bulk: None, source: Source::Run(conn, frame) })
}

impl<P: Port, A: App> Worker<P, A> {
    /// Does what there is to do, at most one batch of it, and returns how much that was. Messages that `pick` takes
    /// are not handed out.
    pub(crate) fn turn(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        let work = self.take_commands(now) + self.take_frames(now, pick) + self.poll(now, pick);
        if self.beats.is_due(now, work > 0) {
            self.beat(now);
        }
        self.end_turn(now);
        work
    }

    /// A turn for nothing but the frames that lie open in memory: most turns, between two whole ones.
    #[inline]
    pub(crate) fn short_turn(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        let work = self.take_frames(now, pick);
        if work > 0 {
            self.beats.worked();
            self.end_turn(now);
        }
        work
    }

    #[inline]
    fn end_turn(&mut self, now: Time) {
        self.tick(now);
        self.settle(now);
    }

    #[inline]
    fn take_frames(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        let taken = if self.sought.is_some() { self.receive_sought(now, pick) } else { 0 };
        let Self { port, app, conns, batch_limit, .. } = self;
        directly!(port => taken + Self::receive_runs(port, (app, conns), *batch_limit - taken, now, pick))
    }

    #[inline(always)]
    fn receive_runs<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        limit: usize,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> usize {
        let mut taken = 0;
        while let Some(run) = port.next_run(limit - taken) {
            taken += Self::receive_run(port, (app, conns), run, now, pick);
        }
        taken
    }

    /// Hands out one of the frames that lie open, unless `pick` takes it. `None`: there is none. What a turn does beside that
    /// comes with the next one, and so do the accounts of a run that was not sought to its end.
    #[inline(always)]
    pub(crate) fn seek(&mut self, now: Time, pick: &mut impl Pick<A>) -> Option<bool> {
        let Self { port, app, conns, sought, unsent, beats, batch_limit, .. } = self;
        let sought = directly!(port => Self::seek_on(port, (app, conns), sought, *batch_limit, now, pick));
        if sought.is_some() {
            *unsent = true;
            beats.worked();
        }
        sought
    }

    #[inline(always)]
    fn seek_on<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        sought: &mut Option<Run>,
        limit: usize,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> Option<bool> {
        let mut rounds = 0;
        loop {
            if std::mem::take(&mut conns.cut) {
                Self::end_sought(port, conns, sought, Ok(()), now);
            }
            let Some(run) = sought else {
                *sought = port.next_run(limit);
                // None of those may be taken without a look at its number.
                if Q::COUNTS_RECEIVES && sought.as_ref().is_some_and(|run| !run.is_in_ring()) {
                    Self::receive_sought_on(port, (app, conns), sought, now, &mut Nothing);
                    return Some(false);
                }
                // Nothing may mean that everybody was asked since the last time.
                if sought.is_none() && std::mem::replace(&mut rounds, 1) == 1 {
                    return None;
                }
                continue;
            };
            let conn = run.conn();
            let Some(frame) = run.next_frame() else {
                Self::end_sought(port, conns, sought, Ok(()), now);
                continue;
            };
            let mut io = Io { port, conns, now };
            let Some(message) = plain(conn, &frame) else {
                let outcome = Self::other_of_run(app, &mut io, conn, &frame, &mut Nothing);
                if outcome.is_err() {
                    Self::end_sought(port, conns, sought, outcome, now);
                }
                return Some(false);
            };
            return Some(Self::hand_out(app, &mut io, conn, message, pick));
        }
    }

    /// The rest of a run of which some frames were sought out.
    #[cold]
    fn receive_sought(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        let Self { port, app, conns, sought, .. } = self;
        if std::mem::take(&mut conns.cut) {
            Self::end_sought(port, conns, sought, Ok(()), now);
        }
        Self::receive_sought_on(port, (app, conns), sought, now, pick)
    }

    #[cold]
    fn receive_sought_on<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        sought: &mut Option<Run>,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> usize {
        match sought.take() {
            Some(run) if !planted::is(Bug::SoughtRunForgotten) => {
                Self::receive_run(port, (app, conns), run, now, pick)
            }
            _ => 0,
        }
    }

    fn end_sought<Q: Port>(
        port: &mut Q,
        conns: &mut ConnTable<Connection>,
        sought: &mut Option<Run>,
        outcome: Result<(), Violation>,
        now: Time,
    ) {
        if let Some(run) = sought.take() {
            Self::end_run(port, conns, &run, outcome, now);
        }
    }

    /// What a device has brought, and everything that is no frame.
    fn poll(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        // It is gone when the application panicked in the middle of one.
        let mut batch = self.batch.take().unwrap_or_else(|| Box::new(Batch::new(self.batch_limit)));
        self.port.poll(now, &mut batch);
        let work = batch.len();
        if work > 0 {
            self.handle_events(&mut batch, now, pick);
        }
        self.batch = Some(batch);
        work
    }

    fn handle_events(&mut self, batch: &mut Batch, now: Time, pick: &mut impl Pick<A>) {
        for event in batch.drain() {
            match event {
                Event::Frame { conn, frame } => self.receive(conn, frame, now, pick),
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
        let mut taken = 0;
        while taken < COMMANDS
            && let Some(command) = self.inbox.pop()
        {
            taken += 1;
            match command {
                Command::App(command) => {
                    let Self { port, app, conns, .. } = self;
                    app.command(&mut Io { port, conns, now }, command);
                }
                Command::Adopt(link, adopted) => self.adopt(link, adopted, now),
                Command::Close(conn) => Io { port: &mut self.port, conns: &mut self.conns, now }.close(conn),
                Command::Counters(conn, reader) => {
                    // Whoever asked may have stopped waiting.
                    let _ = reader.try_send(self.port.counters(conn));
                }
                Command::HandOver(count, to, went) => {
                    let _ = went.try_send(self.hand_over(count, &to, now));
                }
                Command::Arrive(parcel) => self.arrive(*parcel, now),
                Command::Stop => self.stopping = true,
            }
        }
        taken
    }

    /// Hands out what lies open on one connection, unless `pick` takes it, and accounts for all of it at once.
    #[inline(always)]
    fn receive_run<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        mut run: Run,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> usize {
        let (conn, mut outcome) = (run.conn(), Ok(()));
        let mut io = Io { port, conns, now };
        io.conns.cut = false;
        if Q::COUNTS_RECEIVES && !run.is_in_ring() {
            outcome = Self::receive_numbered(app, &mut io, &mut run, pick);
        }
        while !io.conns.cut
            && let Some(frame) = run.next_frame()
        {
            if let Some(message) = plain(conn, &frame) {
                Self::hand_out(app, &mut io, conn, message, pick);
            } else {
                outcome = Self::other_of_run(app, &mut io, conn, &frame, pick);
            }
        }
        Self::end_run(port, conns, &run, outcome, now);
        run.taken() as usize
    }

    /// Hands out a message, unless `pick` takes it. Whether it did.
    #[inline(always)]
    fn hand_out<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        conn: ConnId,
        message: Message<'_>,
        pick: &mut impl Pick<A>,
    ) -> bool {
        let picked = pick.pick(app, io, conn, &message);
        if !picked {
            app.message(io, conn, message);
        }
        picked
    }

    /// Hands out all of a run whose frames have numbers, which none may be taken without a look at.
    #[inline]
    fn receive_numbered<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        run: &mut Run,
        pick: &mut impl Pick<A>,
    ) -> Result<(), Violation> {
        let conn = run.conn();
        let mut outcome = Ok(());
        while !io.conns.cut
            && let Some(frame) = run.next_frame()
        {
            let is_next = |conns: &mut ConnTable<Connection>| {
                conns.peek(conn).is_some_and(|connection| connection.check.is_next(frame.tag()))
            };
            match plain(conn, &frame) {
                Some(message) if is_next(io.conns) => {
                    Self::hand_out(app, io, conn, message, pick);
                }
                _ => outcome = Self::other_of_run(app, io, conn, &frame, pick),
            }
        }
        outcome
    }

    #[inline(always)]
    fn end_run<Q: Port>(
        port: &mut Q,
        conns: &mut ConnTable<Connection>,
        run: &Run,
        outcome: Result<(), Violation>,
        now: Time,
    ) {
        let conn = run.conn();
        // The answers first: those who wait for them need not wait for our accounts.
        port.publish();
        let turn = conns.turn;
        // The application has seen the frames: what this frees is given back by the turn's settling.
        let owes = match conns.peek(conn) {
            Some(connection) => {
                let owes = outcome.and_then(|()| connection.read(run.end(), turn));
                // Credit that is owed rides along with the answers.
                if owes == Ok(false) && port.flush_answer(conn) {
                    connection.left();
                }
                owes
            }
            None => outcome.map(|()| false),
        };
        if owes == Ok(true) {
            conns.touch(conn);
        }
        port.end_run(run);
        if let Err(violation) = owes {
            port.close(conn, violation.into(), now);
        }
    }

    #[inline(never)]
    fn other_of_run<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        conn: ConnId,
        frame: &Lent<'_>,
        pick: &mut impl Pick<A>,
    ) -> Result<(), Violation> {
        io.conns.accounted = true;
        let accounted = io.conns.peek(conn).map_or(Ok(()), |conn| {
            conn.check.arrived(frame.tag())?;
            conn.ledger.handle_run(frame.end())
        });
        let (framed, source) = ((frame.tag(), frame.payload()), Source::Run(conn, frame));
        let outcome = accounted.and_then(|()| Self::other(app, io, framed, source, pick));
        io.conns.cut |= outcome.is_err();
        outcome
    }

    /// A frame that a poll brought.
    fn receive(&mut self, conn: ConnId, frame: RxFrame, now: Time, pick: &mut impl Pick<A>) {
        let outcome = self.dispatch(conn, &frame, now, pick);
        if frame.is_held() {
            self.keep(conn, frame);
        } else {
            self.port.release(conn, frame);
        }
        if let Err(violation) = outcome {
            if let Some(connection) = self.conns.peek(conn) {
                connection.check.broke(violation);
            }
            self.port.close(conn, violation.into(), now);
        }
    }

    #[cold]
    fn keep(&mut self, conn: ConnId, frame: RxFrame) {
        if let Some(connection) = self.conns.peek(conn) {
            connection.holds.keep(frame);
        }
    }

    fn dispatch(
        &mut self,
        conn: ConnId,
        frame: &RxFrame,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> Result<(), Violation> {
        let Self { port, app, conns, .. } = self;
        let turn = conns.turn;
        let Some(connection) = conns.peek(conn) else {
            return Ok(());
        };
        // What it frees is given back by the turn's settling: the application has seen it by then, and said if it holds it.
        if connection.arrived(frame.tag(), frame.end(), turn)? {
            conns.touch(conn);
        }
        let mut io = Io { port, conns, now };
        Self::other(app, &mut io, (frame.tag(), frame), Source::Frame(conn, frame), pick)
    }

    /// A frame of any kind.
    fn other<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        (tag, payload): (Tag, &[u8]),
        source: Source<'_>,
        pick: &mut impl Pick<A>,
    ) -> Result<(), Violation> {
        let conn = source.conn();
        let (tag, payload) =
            if check::is_sealed(tag) { check::unseal(tag, payload)? } else { (tag, payload) };
        match Frame::parse(tag, payload)? {
            Frame::Message { kind, aux, bulk, body } => {
                let may_pull = bulk.is_some();
                let bulk = bulk.map(|(id, sum, offer)| RemoteBulk { id, sum, offer });
                let message = Message { head: Head { kind, aux }, body, bulk, source };
                if may_pull || !pick.pick(app, io, conn, &message) {
                    app.message(io, conn, message);
                }
                // What needed no device is there: its answer leaves with this turn's.
                while may_pull && let Some((slot, result)) = io.port.next_pulled(conn) {
                    Self::pulled(app, io, conn, slot, result)?;
                }
                Ok(())
            }
            control => Self::control(app, io, conn, control),
        }
    }

    fn control<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        conn: ConnId,
        frame: Frame<'_>,
    ) -> Result<(), Violation> {
        let Some(connection) = io.conns.touch(conn) else {
            return Ok(());
        };
        connection.heart.handle_heard(io.now, connection.ledger.mark());
        match frame {
            Frame::Message { .. } => {}
            Frame::Credit(credit) => connection.handle_credit(credit)?,
            Frame::BulkDone(id) => {
                // An id that is not on offer is a late or doubled answer: harmless, the generation told.
                if let Some((loan, aux)) = connection.loans.done(id) {
                    drop(loan);
                    app.loan_done(io, conn, aux);
                }
            }
            Frame::Goodbye => connection.hear_goodbye(io.now)?,
            Frame::GoodbyeAck => {
                let violation = Violation::Malformed { what: "goodbye answer" };
                connection.set_state(connection.state().on(StateEvent::AckHeard).ok_or(violation)?);
                io.abort(conn, CloseReason::Local);
            }
            Frame::Ping(token) => connection.pong(token),
            Frame::Pong(_) => {}
        }
        Ok(())
    }

    /// A pull ended.
    fn pulled<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        conn: ConnId,
        slot: u64,
        result: Result<Bulk, BulkError>,
    ) -> Result<(), Violation> {
        let Some(connection) = io.conns.touch(conn) else { return Ok(()) };
        let Some(pull) = connection.pulls.take(slot) else { return Ok(()) };
        let result = connection.checked(&pull, result);
        connection.pulled(pull.loan_id, result.as_ref().ok().and_then(Bulk::release));
        let outcome = match result {
            Err(BulkError::Offer(violation @ Violation::Checksum { .. })) => Err(violation),
            _ => Ok(()),
        };
        app.pulled(io, conn, pull.token, result);
        outcome
    }

    fn opened(&mut self, conn: ConnId, negotiated: Arc<Negotiated>, now: Time) {
        let first = self.port.completed(conn);
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
            adopted.tell(Ok((conn, negotiated)));
        }
    }

    fn closed(&mut self, conn: ConnId, reason: CloseReason, now: Time) {
        if let Some(index) = self.opening.iter().position(|(waiting, _)| *waiting == conn) {
            let (_, adopted) = self.opening.swap_remove(index);
            adopted.tell(Err(OpenError::Closed(reason)));
            return;
        }
        let Some(mut connection) = self.conns.remove(conn) else {
            return;
        };
        self.duty.closed();
        connection.count = None;
        let cause = connection.cause(reason);
        connection.set_state(State::Closed);
        let Self { port, app, conns, .. } = self;
        let mut io = Io { port, conns, now };
        while let Some(pull) = connection.pulls.take_any() {
            app.pulled(&mut io, conn, pull.token, Err(BulkError::Closed));
        }
        if !planted::is(Bug::CloseNotTold) {
            app.closed(&mut io, conn, &cause);
        }
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
        let is_promising = directly!(port => {
            port.flush();
            port.is_promising()
        });
        self.unsent = false;
        self.unshown = 0;
        self.conns.turn += 1;
        self.restless = self.is_unsettled() || is_promising;
    }

    /// Credit is given for nothing that was not released: a run of which some is accounted for is over.
    #[cold]
    fn end_accounted(&mut self, now: Time) {
        let Self { port, conns, sought, .. } = self;
        conns.accounted = false;
        directly!(port => Self::end_sought(port, conns, sought, Ok(()), now));
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
}
