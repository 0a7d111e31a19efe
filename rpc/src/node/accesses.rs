//! Memory that handlers show to their callers, and the accesses of callers that are in flight.

use std::sync::Arc;

use gimmal_engine::{
    Io,
    transport::{AccessError, ConnId, Exposed, OneSided, Port},
};

use super::Node;
use crate::{
    error::TransportError,
    memory::{Handed, RemoteMemory, Shown},
    status::Fate,
};

impl Node {
    #[cold]
    pub(crate) fn access<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, handed: Handed) {
        let Handed { memory, op, responder } = handed;
        if let Err(error) = self.try_access(io, conn, memory, op) {
            return responder.complete(Err(error));
        }
        self.accesses.insert((conn, self.access_token), responder);
        self.access_token += 1;
    }

    /// Makes an access on the connection that its memory was shown on.
    fn try_access<P: Port>(
        &self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        memory: RemoteMemory,
        op: OneSided,
    ) -> Result<(), TransportError> {
        let closed = || TransportError::Closed { reason: self.closing(conn), fate: Fate::NotRun };
        let remote = memory.on(io.negotiated(conn).ok_or_else(closed)?).ok_or(AccessError::NotExposed)?;
        if self.accesses_on(conn) >= self.limits.window {
            return Err(AccessError::Full.into());
        }
        io.access(conn, remote, op, self.access_token).map_err(|(error, _)| error.into())
    }

    pub(super) fn accesses_on(&self, conn: ConnId) -> usize {
        self.accesses.range((conn, 0)..=(conn, u64::MAX)).count()
    }

    /// Tells the peer of `conn` where `exposed` is.
    #[cold]
    pub(super) fn show<P: Port>(io: &mut Io<'_, P>, conn: ConnId, exposed: &Arc<Exposed>) -> Shown {
        let remote = io.show(conn, exposed)?;
        Ok(RemoteMemory::new(&remote, io.negotiated(conn).ok_or(AccessError::Closed)?))
    }
}
