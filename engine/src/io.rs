//! How an [`App`](crate::App) acts: sends, pulls, closes. Lent to it for one call.

use std::sync::Arc;

use gimmal_transport::{CloseReason, ConnId, Loan, Negotiated, Port, Refused, Time};

use crate::{
    connection::Connection,
    error::{LoanRefused, SendError},
    message::{Head, RemoteBulk},
    proto::{Lane, wire},
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

    /// Sends a message whose body `fill` writes where it leaves from.
    ///
    /// `fill` gets at least `min_bytes` and at most what fits now, and returns how many it wrote, or `None` when that
    /// was too little: then this is [`SendError::Blocked`] if more room can come, else [`SendError::TooLarge`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(
        &mut self,
        conn: ConnId,
        head: Head,
        min_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        let connection = self.conns.touch(conn).ok_or(SendError::Closed)?;
        let room = connection.admit(self.port, conn, wire::HEAD_BYTES + min_bytes, Lane::Data)?;
        let payload = reserve(self.port, connection, conn, room)?;
        payload[..wire::HEAD_BYTES].copy_from_slice(&head.aux.to_le_bytes());
        let body = &mut payload[wire::HEAD_BYTES..room];
        let offered = body.len();
        let Some(bytes) = fill(body) else {
            return Err(connection.too_small(offered));
        };
        let payload_bytes = wire::HEAD_BYTES + bytes.min(offered);
        connection.commit(self.port, conn, payload_bytes, wire::message_tag(head.kind, false));
        Ok(())
    }

    /// Sends a message with a loan beside it, which the peer pulls. The engine keeps the loan until the peer is done.
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
            Ok(slot) => {
                if let Some(connection) = self.conns.touch(conn) {
                    connection.loans.keep(slot, loan, head.aux);
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
    ) -> Result<u32, SendError> {
        let connection = self.conns.touch(conn).ok_or(SendError::Closed)?;
        let front = wire::HEAD_BYTES + wire::BULK_BYTES;
        let room = connection.admit(self.port, conn, front + min_bytes, Lane::Data)?;
        let slot = connection.loans.slot();
        let offer = self.port.offer(conn, loan).map_err(|refused| connection.refused(refused))?;
        let payload = reserve(self.port, connection, conn, room)?;
        payload[..wire::HEAD_BYTES].copy_from_slice(&head.aux.to_le_bytes());
        wire::put_bulk(&mut payload[wire::HEAD_BYTES..front], slot, &offer);
        let body = &mut payload[front..room];
        let offered = body.len();
        let Some(bytes) = fill(body) else {
            return Err(connection.too_small(offered));
        };
        let payload_bytes = front + bytes.min(offered);
        connection.commit(self.port, conn, payload_bytes, wire::message_tag(head.kind, true));
        Ok(slot)
    }

    /// Brings `bulk` here; ends with [`App::pulled`](crate::App::pulled) and `token`.
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
        let Some(connection) = self.conns.touch(conn) else {
            return Err((SendError::Closed, bulk));
        };
        let slot = connection.pulls.insert(bulk.id, token);
        match self.port.pull(conn, bulk.offer, slot) {
            Ok(()) => Ok(()),
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
        self.port.close(conn, reason, self.now);
    }

    /// What the port did for `conn`.
    #[must_use]
    pub fn port_counters(&self, conn: ConnId) -> gimmal_transport::PortCounters {
        self.port.counters(conn)
    }
}

/// Reserves `room` payload bytes; a full queue counts as blocked.
fn reserve<'p, P: Port>(
    port: &'p mut P,
    connection: &mut Connection,
    conn: ConnId,
    room: usize,
) -> Result<&'p mut [u8], SendError> {
    match port.reserve(conn, room) {
        Ok(payload) => Ok(payload),
        Err(Refused::Full) => Err(connection.refused(Refused::Full)),
        Err(refused) => Err(connection.refused(refused)),
    }
}
