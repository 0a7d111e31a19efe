//! One-sided operations: a peer's memory is read, written and changed by atomic operations while nobody turns there.

use gimmal_transport::{AccessError, ConnId, Exposed, OneSided, Port, Remote};

use crate::io::Io;

impl<P: Port> Io<'_, P> {
    /// What the peer of `conn` needs to use `exposed`, which [`WorkerHandle::expose`](crate::WorkerHandle::expose) made for
    /// `conn`. Send it in a message of your own; the peer [decodes](Remote::decode) it.
    ///
    /// # Errors
    /// See [`Transfer::show`](gimmal_transport::Transfer::show).
    pub fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        self.port.show(conn, exposed)
    }

    /// Makes a one-sided operation on what the peer has shown; ends with [`App::accessed`](crate::App::accessed) and
    /// `token`, before the connection does. Several may be in flight, in no order among themselves or with
    /// messages: wait
    /// for one before what must come after it. A write has ended when its loan may be used again; it is in place when a read
    /// or an atomic operation that was started after it has ended.
    ///
    /// Needs no credit and no turn of the peer's worker. Whether words may be changed atomically is
    /// [`Negotiated::atomics`](gimmal_transport::Negotiated::atomics).
    ///
    /// # Errors
    /// Why it was not made, with the operation and its loan. See [`AccessError`].
    pub fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        if self.conns.get(conn).is_none() {
            return Err((AccessError::Closed, op));
        }
        self.port.access(conn, remote, op, token)
    }
}
