//! Requests with metadata: it is put where their handlers find it, and they go on like any other.

use std::sync::Arc;

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{ConnId, Port, Violation},
};

use super::Node;
use crate::{
    frame::RequestHead,
    id::CallId,
    metadata::{self, Metadata},
};

impl Node {
    /// A request with metadata arrived.
    #[cold]
    pub(super) fn requested_noted<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        let (head, noted) = RequestHead::parse(body)?;
        let (metadata, arguments) = metadata::split(noted)?;
        self.note(conn, id.slot, metadata);
        self.requested_by(io, conn, id, &head, arguments, bulk)?;
        if let Some(here) = self.conns.get_mut(conn)
            && !here.serving.is_taken(id.slot)
        {
            here.peer.notes.put(id.slot, 0, None);
        }
        Ok(())
    }

    /// Keeps metadata for the handler that is called next, in `slot`.
    pub(super) fn note(&mut self, conn: ConnId, slot: u32, metadata: Metadata) {
        let mark = self.mark + 1;
        if let Some(here) = self.conns.get_mut(conn)
            && (slot as usize) < self.limits.serving_max
            && !here.serving.is_taken(slot)
        {
            here.peer.notes.put(slot, mark, Some(Arc::new(metadata)));
        }
    }

    /// A request that was pulled is run next: its metadata, if it has any, is found by another mark then.
    pub(super) fn note_again(&mut self, conn: ConnId, slot: u32, mark: u64) {
        let next = self.mark + 1;
        if let Some(here) = self.conns.get_mut(conn)
            && let Some(metadata) = here.peer.notes.get(slot, mark)
        {
            here.peer.notes.put(slot, next, Some(metadata));
        }
    }
}
