//! What a message is for, by its kind.

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{ConnId, Port, Violation},
};

use super::Node;
use crate::{
    frame::{Flags, Kind},
    id::CallId,
};

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
        (code, id): (u16, CallId),
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        let (kind, flags) = Kind::parse(code)?;
        let may_have_bulk = match kind {
            Kind::Request | Kind::Response => !flags.has(Flags::NO_HEAD),
            Kind::Item => flags.has(Flags::BULK),
            _ => false,
        };
        if bulk.is_some() && !may_have_bulk {
            return Err(Violation::Malformed { what: "message with bulk, of a kind that has none" });
        }
        match kind {
            Kind::Request => return self.request_arrived(io, conn, (flags, id), body, bulk),
            Kind::Response => return self.response_arrived(io, conn, (flags, id), body, bulk),
            Kind::Item | Kind::End | Kind::Credit => {
                return self.streamed(io, conn, (kind, flags), id, (body, bulk));
            }
            Kind::Cancel => self.cancelled(io, conn, id),
            Kind::GoAway => self.gone_away(conn, io.now()),
            Kind::Schema => return self.schema_arrived(conn, body),
        }
        Ok(())
    }
}
