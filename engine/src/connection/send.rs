//! Frames that leave: admitted by the window, composed where they leave from, committed.

use gimmal_transport::{Chain, ConnId, Port, Refused, Staged, Tag, Violation};

use super::Connection;
use crate::{
    error::SendError,
    proto::{Lane, wire},
};

impl Connection {
    /// Whether a message with `min_bytes` of payload goes the short way.
    #[inline]
    pub(crate) fn is_open(&self, min_bytes: usize) -> bool {
        self.window.is_open() && min_bytes <= self.window.payload_bytes_max()
    }

    /// Whether there is room for a frame where receives are counted and no credit is owed that could ride along.
    #[inline]
    pub(crate) fn has_receives(&self, min_bytes: usize) -> bool {
        // One decision for all of it.
        let fits = min_bytes <= self.window.payload_bytes_max();
        self.window.has_receives() & fits & !self.ledger.may_owe()
    }

    /// Sends a message that `fill` composes, the short way where receives are not counted; as [`Connection::compose`] otherwise.
    #[inline]
    pub(crate) fn send_open<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        let room = self.window.payload_bytes_max();
        let end = port.compose(conn, room, move |payload| {
            let payload_bytes = fill(&mut payload[..room])?;
            Some(Staged { payload_bytes, tag, chain: Chain::Begin })
        });
        match end {
            Ok(Some(end)) => {
                self.window.advanced(end);
                Ok(())
            }
            Ok(None) => Err(self.too_small(room, wire::HEAD_BYTES)),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// Sends in turn number `turn`, where chains cost receives.
    #[inline]
    pub(crate) fn send_counted<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        turn: u64,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<(), SendError> {
        self.begin(turn);
        let room = self.window.payload_bytes_max();
        if self.compose(port, conn, room, tag, fill)? {
            Ok(())
        } else {
            Err(self.too_small(room, wire::HEAD_BYTES))
        }
    }

    /// Room for a frame of at least `min_bytes` of payload, after one look at what was given back since.
    #[inline]
    pub(crate) fn admit<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        min_bytes: usize,
        lane: Lane,
    ) -> Result<usize, SendError> {
        if lane == Lane::Data && !self.state.may_send() {
            return Err(SendError::Closed);
        }
        let limit = self.window.payload_bytes_max();
        if self.window.is_open() && min_bytes <= limit {
            return Ok(limit);
        }
        self.admit_closely(port, conn, min_bytes, lane)
    }

    fn admit_closely<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        min_bytes: usize,
        lane: Lane,
    ) -> Result<usize, SendError> {
        let (limit, trailer) = (self.payload_bytes_max(), self.check.trailer());
        if min_bytes > limit {
            return Err(SendError::TooLarge {
                bytes: min_bytes - wire::HEAD_BYTES,
                limit: limit - wire::HEAD_BYTES,
            });
        }
        // A full frame fits: nothing to ask. Less may only be what was known last, so look before offering it.
        match self.window.room(min_bytes + trailer, lane) {
            Some(room) if room - trailer >= limit || lane == Lane::Control => Ok(room - trailer),
            _ => self.admit_late(port, conn, min_bytes, lane),
        }
    }

    #[cold]
    fn admit_late<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        min_bytes: usize,
        lane: Lane,
    ) -> Result<usize, SendError> {
        let trailer = self.check.trailer();
        if self.refresh(port, conn).is_ok()
            && let Some(room) = self.window.room(min_bytes + trailer, lane)
        {
            return Ok(room - trailer);
        }
        if lane == Lane::Data {
            self.blocked_bytes = Some(min_bytes + trailer);
        }
        Err(SendError::Blocked)
    }

    pub(super) fn refresh<P: Port>(&mut self, port: &mut P, conn: ConnId) -> Result<(), Violation> {
        let credit = port.credit(conn);
        self.window.handle_completed(credit.completed);
        match credit.peer {
            Some(credit) => self.window.handle_credit(credit),
            None => Ok(()),
        }
    }

    /// The user needed more than `room` bytes of payload for a body that begins behind `front`.
    pub(crate) fn too_small(&mut self, room: usize, front: usize) -> SendError {
        let most = self.payload_bytes_max();
        if room >= most {
            return SendError::TooLarge { bytes: room - front + 1, limit: most - front };
        }
        let wanted = room + 1 + self.check.trailer();
        self.blocked_bytes = Some(wanted.min(self.window.payload_bytes_max()));
        SendError::Blocked
    }

    pub(crate) fn refused(&mut self, refused: Refused) -> SendError {
        match refused {
            Refused::TooLarge { bytes, limit } => SendError::TooLarge { bytes, limit },
            Refused::NoReads => SendError::NoBulk,
            Refused::Closed => SendError::Closed,
            Refused::Foreign => SendError::Foreign,
            Refused::Full => {
                self.blocked_bytes.get_or_insert(0);
                SendError::Blocked
            }
        }
    }

    /// Sends a frame that `fill` composes in `room` bytes, which were admitted, and says the length of. `false` when it
    /// did not want to after all.
    #[inline]
    pub(crate) fn compose<P: Port>(
        &mut self,
        port: &mut P,
        conn: ConnId,
        room: usize,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<bool, SendError> {
        let Self { window, check, .. } = self;
        let (trailer, mut chain) = (check.trailer(), Chain::Begin);
        let end = port.compose(conn, room + trailer, |payload| {
            let payload_bytes = fill(&mut payload[..room])? + trailer;
            let tag = check.stamp(tag, payload, payload_bytes);
            chain = window.chain(payload_bytes);
            Some(Staged { payload_bytes, tag, chain })
        });
        match end {
            Ok(Some(end)) => {
                window.committed(end, chain);
                check.committed();
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(refused) => Err(self.refused(refused)),
        }
    }
}
