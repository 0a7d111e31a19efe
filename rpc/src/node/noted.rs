//! Metadata of calls: that of a request is put where its handler finds it, that of an answer goes before its payload.

use std::sync::Arc;

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{ConnId, Port, Violation},
};

use super::{
    Node,
    answers::{MESSAGE_BYTES_MAX, Sent, send_answer},
    header_cache::Requested,
    serving::Answered,
};
use crate::{cx::Peer, frame::RESPONSE_BYTES, id::CallId, metadata::Metadata};

/// Sends an answer with the metadata that its handler left for it.
pub(super) fn send_noted<P: Port>(
    peer: &Peer,
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    answered: &mut Answered,
) -> Sent {
    match peer.answer_notes.any().then(|| peer.answer_notes.take(id.slot)).flatten() {
        None => send_answer(io, conn, id, &[], answered),
        Some(metadata) => send_with(metadata, peer, io, conn, id, answered),
    }
}

/// Sends an answer with metadata, which stays where it was until the answer leaves.
#[cold]
fn send_with<P: Port>(
    metadata: Metadata,
    peer: &Peer,
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    answered: &mut Answered,
) -> Sent {
    let block = metadata.block();
    let limit = io.body_bytes_max_with_loan(conn);
    if RESPONSE_BYTES + block.len() + MESSAGE_BYTES_MAX > limit {
        tracing::warn!(limit, "the metadata of an answer is above what a message holds; it is not sent");
        return send_answer(io, conn, id, &[], answered);
    }
    let sent = send_answer(io, conn, id, &block, answered);
    if sent.is_err() {
        peer.answer_notes.put(id.slot, metadata, || true);
    }
    sent
}

impl Node {
    /// A request with metadata arrived.
    #[cold]
    pub(super) fn requested_noted<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        requested: &Requested,
        (metadata, arguments): (Metadata, &[u8]),
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        self.note(conn, id.slot, metadata);
        self.serve(io, conn, id, requested, arguments, bulk)?;
        self.forget_notes_of_refused(conn, id);
        Ok(())
    }

    /// Forgets the metadata of a request that was refused, or has ended.
    pub(super) fn forget_notes_of_refused(&mut self, conn: ConnId, id: CallId) {
        if let Some(here) = self.conns.get_mut(conn)
            && (id.slot as usize) < self.limits.serving_max
            && !here.serving.is_taken(id.slot)
        {
            here.peer.notes.put(id.slot, 0, None);
        }
    }

    /// Whether there is metadata for the handler that is called next, in `slot`.
    pub(super) fn is_noted(&mut self, conn: ConnId, slot: u32) -> bool {
        let mark = self.mark + 1;
        self.conns.get_mut(conn).is_some_and(|here| here.peer.notes.get(slot, mark).is_some())
    }

    /// Sends an answer with the metadata that its handler left for it.
    #[inline]
    pub(super) fn send<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        answered: &mut Answered,
    ) -> Sent {
        match self.conns.get_mut(conn) {
            Some(here) => send_noted(&here.peer, io, conn, id, answered),
            // Nobody is there to hear it.
            None => Ok(()),
        }
    }

    /// Keeps the metadata of a response for the end of its call. That of a call that has ended is late, and dropped.
    #[cold]
    pub(super) fn answer_noted(&mut self, conn: ConnId, id: CallId, metadata: Metadata) {
        if let Some(here) = self.conns.get_mut(conn)
            && let Some(index) = here.calls.posted(id)
        {
            here.calls.note(index, metadata);
        }
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
