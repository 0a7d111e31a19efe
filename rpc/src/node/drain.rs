//! Going away in good order: a server that takes no more calls says so, and a client that has another connection
//! leaves the old one when its calls have ended.
//!
//! ```text
//!  server: drain ─ GoAway ─► client: Watcher::leaving ─► a thread dials the next server; calls in flight go on here
//! ```
//! A request that crosses the GoAway on its way is refused, not run.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use gimmal_engine::{
    Head, Io,
    transport::{ConnId, Port},
};

use super::Node;
use crate::{frame::Kind, id::CallId};

impl Node {
    /// Tells every peer that this side takes no more calls.
    #[cold]
    pub(crate) fn drain<P: Port>(&mut self, io: &mut Io<'_, P>) {
        let all: Vec<ConnId> = self.conns.iter_mut().map(|(conn, _)| conn).collect();
        for conn in all {
            self.owe_go_away(io, conn);
        }
    }

    #[cold]
    pub(super) fn owe_go_away<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        if let Some(here) = self.conns.get_mut(conn) {
            here.owes_go_away = true;
        }
        self.send_go_away(io, conn);
    }

    /// Says it, as soon as there is room.
    pub(super) fn send_go_away<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let Some(here) = self.conns.get_mut(conn).filter(|here| here.owes_go_away) else { return };
        let head = Head { kind: Kind::GoAway.code(), aux: CallId::NONE.aux() };
        here.owes_go_away = io.send(conn, head, 0, |_| Some(0)).is_err();
    }

    /// The peer takes no more calls.
    #[cold]
    pub(super) fn gone_away(&mut self, conn: ConnId) {
        if let Some(watcher) = self.conns.get_mut(conn).and_then(|here| here.watcher.as_ref()) {
            watcher.leaving();
        }
    }

    /// Closes `conn` if none of our calls is on it any more; `done` then.
    #[cold]
    pub(super) fn retire<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, done: &Arc<AtomicBool>) {
        let idle = match self.conns.get_mut(conn) {
            Some(here) => here.calls.any_live().is_none(),
            None => true,
        };
        if idle {
            io.close(conn);
            done.store(true, Ordering::Release);
        }
    }
}
