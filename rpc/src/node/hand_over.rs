//! A connection that goes to another worker of the server as it stands; see
//! [`WorkerHandle::hand_over`](gimmal_engine::WorkerHandle::hand_over).

use std::sync::{Arc, atomic::Ordering};

use gimmal_engine::{
    Io,
    transport::{ConnId, Port},
};

use super::{Command, Conn, Node};
use crate::{
    cx::Peer,
    here,
    metadata::{AnswerNotes, Notes},
};

impl Node {
    /// What goes along of `conn`, if nothing is under way and nobody here has anything of it in hand: no call either way, no
    /// stream, no loan that a handler took from this worker's memory.
    #[cold]
    pub(super) fn pack_conn(&mut self, conn: ConnId) -> Option<Command> {
        let here = self.conns.get_mut(conn)?;
        here.raw_cx = None;
        let is_ours_alone = Arc::get_mut(&mut here.peer).is_some_and(|peer| !*peer.has_lent.get_mut());
        let is_at_rest = is_ours_alone
            && here.serving.is_idle()
            && here.calls.is_idle()
            && !here.streams_seen
            && here.watcher.is_none()
            && !here.owes_go_away;
        let here = if is_at_rest { self.conns.remove(conn) } else { None };
        here.map(|here| {
            here::leave(&here.peer.negotiated);
            Command::Arrived(Box::new(here))
        })
    }

    /// Goes on with what another worker packed.
    #[cold]
    pub(super) fn unpack_conn<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, here: Conn) {
        // Nobody else had it when it was packed. Marks are the worker's own, so what was noted under them stays behind.
        let Some(peer) = Arc::into_inner(here.peer) else { return io.close(conn) };
        let (notes, answer_notes) = (Notes::default(), AnswerNotes::default());
        let (reach, epoch) = (Arc::clone(&self.reach), self.epoch);
        let peer = Arc::new(Peer { conn, reach, epoch, notes, answer_notes, ..peer });
        here::enter(&peer.negotiated);
        self.conns.insert(conn, Conn { peer, ..here });
        if self.shared.draining.load(Ordering::Relaxed) {
            self.owe_go_away(io, conn);
        }
    }
}
