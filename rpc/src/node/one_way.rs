//! Requests that are not answered: no slot of a window, no deadline, no cancel.
//!
//! Their handlers go on when the client has gone, so a client that comes again and again could leave any number of them behind.
//! So many may be pending: `serving_max` of a connection, and half of `tasks_max` of all. Requests that are answered always
//! have the other half.

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{ConnId, Port, Time},
};

use super::{
    Node,
    header_cache::Requested,
    tasks::{Polled, Served, discard},
};
use crate::{
    calls::{CallKey, Reply},
    cx::Cx,
    id::CallId,
    method::{Method, MethodKind},
    response::Response,
    service::Entry,
};

impl Node {
    /// A one-way request left: that is all its caller learns.
    #[cold]
    pub(super) fn one_way_left(&mut self, conn: ConnId, method: &'static Method, reply: Reply) -> CallKey {
        self.counters.one_way.increment();
        match reply {
            Reply::Cell(responder) => responder.complete(Response::nothing()),
            reply => {
                if let Some(here) = self.conns.get_mut(conn) {
                    return here.calls.insert_done(method, Response::nothing(), reply);
                }
            }
        }
        CallKey::new(u32::MAX, 0)
    }

    /// A one-way request arrived. What cannot be run is counted, and nobody is told.
    #[cold]
    pub(super) fn one_way_arrived<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        requested: &Requested,
        arguments: &[u8],
        bulk: Option<RemoteBulk>,
    ) {
        self.counters.requests.increment();
        if let Some(bulk) = bulk {
            io.decline(conn, bulk);
        }
        let entry = requested.entry.filter(|entry| {
            entry.method.is_oneway
                && entry.method.kind == MethodKind::Async
                && !self.shared.draining.load(std::sync::atomic::Ordering::Relaxed)
        });
        let is_known = entry.is_some();
        let started = entry.is_some_and(|entry| self.run_one_way(conn, &entry, arguments));
        let peer = self.conns.get_mut(conn).map(|here| &here.peer);
        if started {
            peer.inspect(|peer| peer.one_way_started.increment());
        } else {
            self.counters.refused.increment();
            if is_known {
                self.counters.overloaded.increment();
            }
            peer.inspect(|peer| peer.one_way_refused.increment());
        }
    }

    /// Whether it began.
    fn run_one_way(&mut self, conn: ConnId, entry: &Entry, arguments: &[u8]) -> bool {
        let mark = self.next_mark();
        let Some(here) = self.conns.get_mut(conn) else { return false };
        if here.one_way >= self.limits.serving_max || self.tasks.one_way() >= self.limits.one_way_max() {
            return false;
        }
        let Some(place) = self.tasks.place() else { return false };
        let peer = std::sync::Arc::clone(&here.peer);
        let slot = CallId::NONE.slot;
        let cx = Cx { peer, method: entry.method, slot, mark, deadline: Time::NEVER };
        let Ok((task, polled)) = self.begin_handler(place, entry, cx, arguments, None) else { return false };
        match polled {
            Polled::Ready => self.keep_box(entry, task),
            Polled::Pending => {
                self.tasks.keep(place, task, Served { conn, slot, method: entry.method });
                if let Some(here) = self.conns.get_mut(conn) {
                    here.one_way += 1;
                }
            }
            Polled::Failed(failure) => {
                discard(task);
                self.note_failure(entry.method, failure);
            }
        }
        true
    }
}
