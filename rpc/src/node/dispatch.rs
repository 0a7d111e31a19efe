//! What a message is for, by its kind.

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{ConnId, Port, Violation},
};

use super::Node;
use crate::{frame::Kind, id::CallId};

impl Node {
    /// A message of any kind.
    ///
    /// # Errors
    /// What its sender did wrong.
    #[inline(never)]
    pub(super) fn dispatch<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (kind, id): (Result<Kind, Violation>, CallId),
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        match kind? {
            Kind::Answer | Kind::Again | Kind::Batch | Kind::Answers if bulk.is_some() => {
                Err(Violation::Malformed { what: "message with bulk, of a kind that has none" })
            }
            Kind::Answer => self.answered(io, conn, id, body),
            Kind::Again => self.requested_again(io, conn, id, body),
            Kind::Batch => self.requested_batch(io, conn, body),
            Kind::Answers => self.answered_batch(io, conn, body),
            Kind::Response => self.answered_otherwise(io, conn, id, body, bulk),
            Kind::Request => self.requested(io, conn, id, body, bulk),
            Kind::Cancel => {
                self.cancelled(io, conn, id);
                Ok(())
            }
            Kind::OneWay => self.told(io, conn, body, bulk),
            Kind::GoAway => {
                self.gone_away(conn, io.now());
                Ok(())
            }
            Kind::LargeRequest => self.requested_large(io, conn, id, body, bulk, false),
            Kind::NotedLargeRequest => self.requested_large(io, conn, id, body, bulk, true),
            Kind::NotedRequest => self.requested_noted(io, conn, id, body, bulk),
            Kind::Notes => self.answer_noted(conn, id, body),
            Kind::LargeResponse => self.answered_large(io, conn, id, body, bulk),
            kind => self.streamed(io, conn, kind, id, body),
        }
    }
}
