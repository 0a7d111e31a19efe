//! How an [`App`](crate::App) acts: sends, pulls, closes. Lent to it for one call.

use std::sync::Arc;

use gimmal_transport::{BulkError, CloseReason, ConnId, Loan, Negotiated, Port, RxBuf, Time};

use crate::{
    connection::Connection,
    error::{LoanRefused, SendError},
    message::{Head, Message, RemoteBulk},
    proto::{Lane, bulk::LOANS_MAX, check, wire},
    table::ConnTable,
};

/// The engine's side of a turn.
#[derive(Debug)]
pub struct Io<'a, P> {
    pub(crate) port: &'a mut P,
    pub(crate) conns: &'a mut ConnTable<Connection>,
    pub(crate) now: Time,
}

impl<P: Port> Io<'_, P> {
    /// The turn's time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// What `conn` runs with; `None` when it is closed.
    #[must_use]
    pub fn negotiated(&self, conn: ConnId) -> Option<&Arc<Negotiated>> {
        self.conns.get(conn).map(Connection::negotiated)
    }

    /// The largest body of one message on `conn`, bytes; 0 when it is closed.
    #[must_use]
    pub fn body_bytes_max(&self, conn: ConnId) -> usize {
        self.conns.get(conn).map_or(0, Connection::body_bytes_max)
    }

    /// The largest body of a message with a loan on `conn`, bytes; 0 when it is closed.
    #[must_use]
    pub fn body_bytes_max_with_loan(&self, conn: ConnId) -> usize {
        self.conns.get(conn).map_or(0, Connection::body_bytes_max_with_loan)
    }

    /// Why `conn` takes no more messages, if a goodbye was said or heard: it ends soon. When its port has closed it,
    /// [`App::closed`](crate::App::closed) is the first to know.
    #[must_use]
    pub fn ending(&self, conn: ConnId) -> Option<CloseReason> {
        self.conns.get(conn).and_then(Connection::ending)
    }

    /// Whether the peer of `conn` may still be reading a loan that was sent to it, which ends with the connection: over a device.
    /// In shared memory the peer keeps what it reads.
    #[must_use]
    pub fn has_reader(&self, conn: ConnId) -> bool {
        let over_device = |connection: &&Connection| !connection.negotiated().credit_words;
        self.conns.get(conn).filter(over_device).is_some_and(|connection| !connection.loans.is_empty())
    }

    /// Sends a message whose body `fill` writes where it leaves from.
    ///
    /// `fill` gets at least `min_bytes` and at most what fits now, and returns how many it wrote. If that was too little
    /// it returns `None`: then this is [`SendError::Blocked`] if more room can come, else [`SendError::TooLarge`].
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline]
    pub fn send(
        &mut self,
        conn: ConnId,
        head: Head,
        min_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        // Its parts by value, so that only the long way writes them to memory.
        // ledger: short_sends
        let Head { kind, aux } = head;
        let write = move |payload: &mut [u8]| {
            let (front, body) = payload.split_first_chunk_mut()?;
            let offered = body.len();
            let bytes = fill(body)?;
            *front = aux.to_le_bytes();
            Some(wire::HEAD_BYTES + bytes.min(offered))
        };
        let min_bytes = wire::HEAD_BYTES + min_bytes;
        let turn = self.conns.turn;
        match self.conns.peek(conn) {
            Some(connection) if !P::IN_MEMORY && connection.has_receives(min_bytes) => {
                let tag = wire::message_tag(kind, false);
                let sent = connection.send_counted(self.port, conn, turn, tag, write);
                if sent == Err(SendError::Blocked) {
                    // It is told when there is room again.
                    self.conns.touch(conn);
                }
                sent
            }
            Some(connection) if connection.is_open(min_bytes) => {
                connection.send_open(self.port, conn, wire::message_tag(kind, false), write)
            }
            _ => self.send_closely(conn, kind, min_bytes, write),
        }
    }

    #[inline(never)]
    fn send_closely(
        &mut self,
        conn: ConnId,
        kind: u16,
        min_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        let (turn, tag) = (self.conns.turn, wire::message_tag(kind, false));
        // It may wait for room afterwards; and credit that is owed rides along.
        let connection = self.conns.touch(conn).ok_or(SendError::Closed)?;
        connection.begin(turn);
        let room = connection.admit(self.port, conn, min_bytes, Lane::Data)?;
        if connection.compose(self.port, conn, room, tag, write)? {
            Ok(())
        } else {
            Err(connection.too_small(room, wire::HEAD_BYTES))
        }
    }

    /// Sends a message with a loan beside it, which the peer pulls. The engine keeps the loan until the peer is done.
    ///
    /// The body can have [`Io::body_bytes_max_with_loan`] bytes. At most 65,536 loans of a connection are on offer at once.
    ///
    /// # Errors
    /// The loan, and why; see [`SendError`].
    pub fn send_with_loan(
        &mut self,
        conn: ConnId,
        head: Head,
        loan: Loan,
        min_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), LoanRefused> {
        match self.try_send_with_loan(conn, head, &loan, min_bytes, fill) {
            Ok(()) => {
                if let Some(connection) = self.conns.touch(conn) {
                    connection.loans.keep(loan, head.aux);
                }
                Ok(())
            }
            Err(error) => Err(LoanRefused { error, loan }),
        }
    }

    fn try_send_with_loan(
        &mut self,
        conn: ConnId,
        head: Head,
        loan: &Loan,
        min_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        let turn = self.conns.turn;
        let connection = self.conns.touch(conn).ok_or(SendError::Closed)?;
        connection.begin(turn);
        let front = wire::HEAD_BYTES + wire::BULK_BYTES;
        let room = connection
            .admit(self.port, conn, front + min_bytes, Lane::Data)
            .map_err(|error| error.of_body_behind(wire::BULK_BYTES))?;
        let id = connection.loans.next_id().ok_or(SendError::TooManyLoans { limit: LOANS_MAX })?;
        let offer = self.port.offer(conn, loan).map_err(|refused| connection.refused(refused))?;
        let sum = if connection.check.is_sealed() { check::bulk_sum(loan) } else { 0 };
        let tag = wire::message_tag(head.kind, true);
        let sent = connection.compose(self.port, conn, room, tag, |payload| {
            let body = &mut payload[front..];
            let offered = body.len();
            let bytes = fill(body)?;
            wire::put_bulk(&mut payload[wire::HEAD_BYTES..front], id, sum, &offer);
            payload[..wire::HEAD_BYTES].copy_from_slice(&head.aux.to_le_bytes());
            Some(front + bytes.min(offered))
        })?;
        if sent { Ok(()) } else { Err(connection.too_small(room, front)) }
    }

    /// Keeps the body of a message beyond this call, on any thread. It stays where it landed while held frames are within
    /// [`Config::hold_percent`](crate::Config::hold_percent). Otherwise it is copied once, now or when the peer needs the
    /// room.
    #[must_use]
    pub fn hold(&mut self, message: &Message<'_>) -> RxBuf {
        // Its run is accounted for so far, and has to end before credit is given.
        self.conns.accounted = true;
        let Some(connection) = self.conns.peek(message.frame.conn()) else {
            return RxBuf::copied(message.body);
        };
        connection.hold(self.port, message.frame, message.body)
    }

    /// Brings `bulk` here; ends with [`App::pulled`](crate::App::pulled) and `token`. Of several, any may end first.
    ///
    /// # Errors
    /// [`SendError::Blocked`] (with the bulk back) when the device's queue is full; [`SendError::NoBulk`],
    /// [`SendError::TooLarge`], [`SendError::Closed`].
    pub fn pull(
        &mut self,
        conn: ConnId,
        bulk: RemoteBulk,
        token: u64,
    ) -> Result<(), (SendError, RemoteBulk)> {
        self.bring(conn, bulk, token, false)
    }

    /// Starts to bring bulk if there is memory for it. Without it this is [`SendError::Blocked`], and nobody tells when there is memory
    /// again: try later. Else it does what [`Io::pull`] does.
    ///
    /// # Errors
    /// See [`Io::pull`].
    pub fn pull_if_room(
        &mut self,
        conn: ConnId,
        bulk: RemoteBulk,
        token: u64,
    ) -> Result<(), (SendError, RemoteBulk)> {
        self.bring(conn, bulk, token, true)
    }

    fn bring(
        &mut self,
        conn: ConnId,
        bulk: RemoteBulk,
        token: u64,
        is_patient: bool,
    ) -> Result<(), (SendError, RemoteBulk)> {
        let Some(connection) = self.conns.touch(conn) else {
            return Err((SendError::Closed, bulk));
        };
        let slot = connection.pulls.insert(bulk.id, bulk.sum, token);
        match self.port.pull(conn, bulk.offer, slot) {
            Ok(None) => Ok(()),
            Ok(Some(Err(BulkError::Memory(_)))) if is_patient => {
                connection.pulls.forget(slot);
                Err((SendError::Blocked, bulk))
            }
            Ok(Some(result)) => {
                // Told when the application's call is over.
                self.conns.brought.push((conn, slot, result));
                self.conns.accounted = true;
                Ok(())
            }
            Err(refused) => {
                connection.pulls.forget(slot);
                Err((connection.refused(refused), bulk))
            }
        }
    }

    /// Tells the peer that its bulk is not wanted.
    pub fn decline(&mut self, conn: ConnId, bulk: RemoteBulk) {
        if let Some(connection) = self.conns.touch(conn) {
            connection.bulk_done(bulk.id);
        }
    }

    /// Ends `conn` in an orderly way: what was sent leaves, the peer is told and answers, then it closes.
    /// [`App::closed`](crate::App::closed) follows within the drain time-out.
    pub fn close(&mut self, conn: ConnId) {
        let now = self.now;
        if let Some(connection) = self.conns.touch(conn) {
            connection.say_goodbye(now);
        }
    }

    /// Ends `conn` now, with `reason` as the cause if there was none before.
    pub fn abort(&mut self, conn: ConnId, reason: CloseReason) {
        self.conns.cut = true;
        self.port.close(conn, reason, self.now);
    }

    /// What the port did for `conn`.
    #[must_use]
    pub fn port_counters(&self, conn: ConnId) -> gimmal_transport::PortCounters {
        self.port.counters(conn)
    }
}
