//! Going away in good order: a server that takes no more calls says so, and a client that has another connection
//! leaves the old one when its calls have ended.
//!
//! ```text
//!  server: drain ─ GoAway ─► client: Watcher::leaving ─► a thread dials the next server; calls in flight go on here
//!          shed  ─ GoAway ─► the same, and the next connection is to another worker of the same server
//! ```
//! A request that crosses the GoAway on its way is refused, not run, by a server that drains; otherwise it is served.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use gimmal_engine::{
    Head, Io,
    transport::{ConnId, Port, Time},
};

use super::{
    Node, REMEMBERED,
    failure::Failure,
    tasks::{Polled, discard},
};
use crate::{
    command::Watcher,
    frame::{Flags, Kind},
    id::CallId,
};

impl Node {
    /// Tells every peer, once, that this side takes no more calls. Returns whether nothing is left to be done for any of them: no
    /// handler is pending, one-way ones included, every answer has left, and the peers have read the bulk of these.
    #[cold]
    pub(crate) fn drain<P: Port>(&mut self, io: &mut Io<'_, P>) -> bool {
        let all: Vec<ConnId> = self.conns.iter_mut().map(|(conn, _)| conn).collect();
        if !std::mem::replace(&mut self.drains, true) {
            all.iter().for_each(|conn| self.owe_go_away(io, *conn));
        }
        let is_idle = self.tasks.len() == 0 && self.counters.serving.get() == 0;
        is_idle && !all.into_iter().any(|conn| io.has_reader(conn))
    }

    /// Says goodbye to every peer that was not told yet. Returns whether none is connected any more.
    #[cold]
    pub(crate) fn leave<P: Port>(&mut self, io: &mut Io<'_, P>) -> bool {
        self.conns.iter_mut().map(|(conn, _)| io.close(conn)).count() == 0
    }

    /// Drops every pending handler.
    #[cold]
    pub(crate) fn forget_handlers(&mut self) {
        for (task, _) in self.tasks.take_all() {
            discard(task);
        }
    }

    /// Ends every pending handler, since nothing may ever wake it, and tells every peer to go elsewhere.
    #[cold]
    pub(super) fn runtime_ended<P: Port>(&mut self, io: &mut Io<'_, P>) {
        for (task, served) in self.tasks.take_all() {
            self.handler_ended(io, served, task, Polled::Failed(Failure::RuntimeEnded));
        }
        self.drain(io);
    }

    /// Asks the clients of `count` connections, of those that were not asked yet, to come again.
    #[cold]
    pub(super) fn shed<P: Port>(&mut self, io: &mut Io<'_, P>, count: usize) {
        let unasked = self.conns.iter_mut().filter(|(_, here)| !here.was_asked);
        let asked: Vec<ConnId> = unasked.take(count).map(|(conn, _)| conn).collect();
        for conn in asked {
            if let Some(here) = self.conns.get_mut(conn) {
                here.was_asked = true;
            }
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
        let head = Head { kind: Kind::GoAway.with(Flags::NONE), aux: CallId::NONE.aux() };
        here.owes_go_away = io.send(conn, head, 0, |_| Some(0)).is_err();
    }

    /// The peer takes no more calls.
    #[cold]
    pub(super) fn gone_away(&mut self, conn: ConnId, now: Time) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        here.has_left = true;
        if let Some(watcher) = here.watcher.clone() {
            watcher.leaving();
            self.follow(watcher, now);
        }
    }

    /// Tells `watcher` what becomes of `conn`, and what has become of it already.
    #[cold]
    pub(super) fn look_after(&mut self, conn: ConnId, watcher: Arc<dyn Watcher>, now: Time) {
        match self.conns.get_mut(conn) {
            Some(here) => {
                here.watcher = Some(Arc::clone(&watcher));
                if !here.has_left {
                    return;
                }
                watcher.leaving();
            }
            None => watcher.ended(&self.closing(conn)),
        }
        self.follow(watcher, now);
    }

    /// Closes `conn` if none of our calls is on it any more and their streams have brought all their items; `done` then. Calls that
    /// come for it later go to `next`.
    #[cold]
    pub(super) fn retire<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        next: Option<ConnId>,
        done: &Arc<AtomicBool>,
    ) {
        if let Some(here) = self.conns.get_mut(conn) {
            // The answer of a call does not wait for large items of its stream that came before it.
            let is_in_use = here.calls.next_live(0).is_some() || !here.bringing.is_empty();
            if is_in_use || self.accesses_on(conn) > 0 {
                return;
            }
            if let Some(next) = next {
                if self.moved.len() == REMEMBERED {
                    self.moved.pop_front();
                }
                self.moved.push_back((conn, next));
            }
            io.close(conn);
        }
        done.store(true, Ordering::Release);
    }

    /// The connection to which calls for `conn` go: another one when its client has moved since they were made.
    #[inline]
    pub(super) fn successor(&self, conn: ConnId) -> ConnId {
        if self.moved.is_empty() { conn } else { self.last_successor(conn) }
    }

    #[cold]
    fn last_successor(&self, conn: ConnId) -> ConnId {
        // In the order in which they moved: one look goes along the whole way.
        self.moved.iter().fold(conn, |conn, (old, next)| if *old == conn { *next } else { conn })
    }
}
