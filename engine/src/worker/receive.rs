//! What arrived is handed out, and accounted for run by run.

use gimmal_transport::{Bulk, BulkError, CloseReason, ConnId, Lent, Port, Run, Time, Violation};

use super::Worker;
use crate::{
    app::{App, Pick},
    connection::Connection,
    io::Io,
    message::{Head, Message, RemoteBulk},
    proto::{
        StateEvent, check,
        wire::{self, Frame},
    },
    table::ConnTable,
};

/// A frame that is a message and nothing else, as nearly all are.
#[inline]
pub(super) fn plain(frame: Lent<'_>) -> Option<Message<'_>> {
    let (kind, aux, body) = wire::plain(frame.tag(), frame.payload())?;
    Some(Message { head: Head { kind, aux }, body, bulk: None, frame })
}

/// Whether the frames of `run` have numbers, as off the ring, and no positions.
#[inline]
pub(super) fn is_numbered<Q: Port>(run: &Run) -> bool {
    !Q::IN_MEMORY && !run.is_in_ring()
}

/// Whether it has the next number of its connection, whose frames have some; it has arrived then.
#[inline]
pub(super) fn is_next(conns: &mut ConnTable<Connection>, frame: Lent<'_>) -> bool {
    conns.peek(frame.conn()).is_some_and(|connection| connection.check.is_next(frame.tag()))
}

impl<P: Port, A: App> Worker<P, A> {
    /// Hands out what lies open on one connection, unless `pick` takes it, and accounts for all of it at once.
    #[inline(always)]
    pub(super) fn receive_run<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        mut run: Run,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> usize {
        let (conn, mut outcome) = (run.conn(), Ok(()));
        let mut io = Io { port, conns, now };
        io.conns.cut = false;
        if is_numbered::<Q>(&run) {
            outcome = Self::receive_numbered(app, &mut io, &mut run, pick);
        } else {
            while !io.conns.cut
                && let Some(frame) = run.next_frame()
            {
                if let Some(message) = plain(frame) {
                    Self::hand_out(app, &mut io, conn, message, pick);
                } else {
                    outcome = Self::other_of_run(app, &mut io, frame, pick);
                }
                if !Q::IN_MEMORY && run.is_over() {
                    break;
                }
            }
        }
        Self::end_run(port, conns, &mut run, outcome, now);
        run.taken() as usize
    }

    /// Hands out a message, unless `pick` takes it. Whether it did.
    #[inline(always)]
    pub(super) fn hand_out<Q: Port>(
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
            match plain(frame) {
                Some(message) if is_next(io.conns, frame) => {
                    Self::hand_out(app, io, conn, message, pick);
                }
                _ => outcome = Self::other_of_run(app, io, frame, pick),
            }
            if run.is_over() {
                break;
            }
        }
        outcome
    }

    #[inline(always)]
    pub(super) fn end_run<Q: Port>(
        port: &mut Q,
        conns: &mut ConnTable<Connection>,
        run: &mut Run,
        outcome: Result<(), Violation>,
        now: Time,
    ) {
        let conn = run.conn();
        let turn = conns.turn;
        // The application has seen the frames: what this frees is given back by the turn's settling.
        let owes = match conns.peek(conn) {
            Some(connection) => {
                // Before the answers may leave: credit that is owed rides along with them.
                connection.count_receive(turn);
                let may_leave = outcome.is_ok() && !connection.ledger.may_owe();
                if port.end_run(run, may_leave) {
                    connection.left();
                }
                let end = (!is_numbered::<Q>(run)).then(|| run.end());
                outcome.and_then(|()| connection.read(end))
            }
            None => {
                port.end_run(run, false);
                outcome.map(|()| false)
            }
        };
        if owes == Ok(true) {
            conns.touch(conn);
        }
        if let Err(violation) = owes {
            port.close(conn, violation.into(), now);
        }
    }

    #[inline(never)]
    pub(super) fn other_of_run<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        frame: Lent<'_>,
        pick: &mut impl Pick<A>,
    ) -> Result<(), Violation> {
        io.conns.accounted = true;
        let accounted = io.conns.peek(frame.conn()).map_or(Ok(()), |conn| {
            conn.check.arrived(frame.tag())?;
            conn.ledger.handle_run(frame.end())
        });
        let outcome = accounted.and_then(|()| Self::other(app, io, frame, pick));
        io.conns.cut |= outcome.is_err();
        outcome
    }

    /// A frame of any kind.
    fn other<Q: Port>(
        app: &mut A,
        io: &mut Io<'_, Q>,
        frame: Lent<'_>,
        pick: &mut impl Pick<A>,
    ) -> Result<(), Violation> {
        let (conn, tag, payload) = (frame.conn(), frame.tag(), frame.payload());
        let (tag, payload) =
            if check::is_sealed(tag) { check::unseal(tag, payload)? } else { (tag, payload) };
        match Frame::parse(tag, payload)? {
            Frame::Message { kind, aux, bulk, body } => {
                let is_shown = bulk.is_none();
                let bulk = bulk.map(|(id, sum, offer)| RemoteBulk { id, sum, offer });
                let message = Message { head: Head { kind, aux }, body, bulk, frame };
                if !(is_shown && pick.pick(app, io, conn, &message)) {
                    app.message(io, conn, message);
                }
                // Its answer leaves with this turn's.
                while let Some((conn, slot, result)) = io.conns.brought.pop() {
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
                    connection.loan_came_back();
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
            Frame::Unused(receives) => io.port.take_back(conn, receives)?,
        }
        Ok(())
    }

    /// A pull ended.
    pub(super) fn pulled<Q: Port>(
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
}
