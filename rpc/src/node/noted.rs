//! Metadata beside calls: that of a request is put where its handler finds it, that of an answer goes before it.

use std::sync::Arc;

use gimmal_engine::{
    Head, Io, RemoteBulk, SendError,
    transport::{ConnId, Port, Violation},
};

use super::{
    Node,
    answers::{Sent, send_answer},
    serving::Answered,
};
use crate::{
    cx::Peer,
    frame::{Kind, RequestHead},
    id::CallId,
    metadata::{self, Metadata},
};

/// Sends an answer, behind the metadata that its handler left for it.
pub(super) fn send_noted<P: Port>(
    peer: &Peer,
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    answered: &mut Answered,
) -> Sent {
    if peer.answer_notes.any() && !send_notes(peer, io, conn, id) {
        return Sent::Blocked;
    }
    send_answer(io, conn, id, answered)
}

/// `false`: there is no room for it now.
#[cold]
fn send_notes<P: Port>(peer: &Peer, io: &mut Io<'_, P>, conn: ConnId, id: CallId) -> bool {
    let Some(metadata) = peer.answer_notes.take(id.slot) else { return true };
    let head = Head { kind: Kind::Notes.code(), aux: id.aux() };
    let pairs = metadata.pairs();
    let sent = io.send(conn, head, pairs.len(), |body| {
        body[..pairs.len()].copy_from_slice(pairs); // metadata
        Some(pairs.len())
    });
    match sent {
        Err(SendError::Blocked) => {
            peer.answer_notes.put(id.slot, metadata);
            return false;
        }
        Err(SendError::TooLarge { limit, .. }) => {
            tracing::warn!(limit, "the metadata of an answer is above what a message holds; it is not sent");
        }
        _ => {}
    }
    true
}

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
        self.serve(io, conn, id, &self.hear(head), arguments, bulk)?;
        if let Some(here) = self.conns.get_mut(conn)
            && (id.slot as usize) < self.limits.serving_max
            && !here.serving.is_taken(id.slot)
        {
            here.peer.notes.put(id.slot, 0, None);
        }
        Ok(())
    }

    /// Sends an answer, behind the metadata that its handler left for it.
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
            None => Sent::Left,
        }
    }

    /// Metadata of an answer arrived, which is next. That of a call that has ended is late, and dropped.
    #[cold]
    pub(super) fn answer_noted(&mut self, conn: ConnId, id: CallId, body: &[u8]) -> Result<(), Violation> {
        let metadata = metadata::parse(body)?;
        if let Some(here) = self.conns.get_mut(conn)
            && let Some(index) = here.calls.posted(id)
        {
            here.calls.note(index, metadata);
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
