//! Items of streams that the peer has in memory of its own: brought in the order of their offers, whatever becomes of their calls.

use std::{sync::Arc, time::Duration};

use gimmal_engine::{
    Io, RemoteBulk, SendError,
    transport::{Bulk, BulkError, ConnId, Port, Time},
};

use super::{CALLEE, ITEM, Node, bringing::Item};
use crate::stream::Lane;

/// From one look for memory to the next.
const AGAIN: Duration = Duration::from_millis(1);

/// Tells the peer that its bulk is not wanted, if there is any.
pub(super) fn decline<P: Port>(io: &mut Io<'_, P>, conn: ConnId, bulk: Option<RemoteBulk>) {
    if let Some(bulk) = bulk {
        io.decline(conn, bulk);
    }
}

impl Node {
    /// Brings the bulk beside an item for the lane that wants it.
    pub(super) fn bring<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        wanted: Option<(Arc<Lane>, u64)>,
        bulk: Option<RemoteBulk>,
    ) {
        let (Some((lane, number)), Some(here)) = (wanted, self.conns.get_mut(conn)) else {
            return decline(io, conn, bulk);
        };
        let Some(bulk) = bulk else { return };
        let at = here.bringing.insert(Item { lane: Some(lane), number });
        here.bringing.waiting.push_back((at, bulk));
        match here.bringing.waiting.len() {
            1 => self.bring_waiting(io, conn),
            waiting if waiting > here.bringing.waiting_max => {
                here.bringing.take_unread().into_iter().for_each(|bulk| io.decline(conn, bulk));
            }
            _ => {}
        }
    }

    /// Brings the items that wait, as far as there is room.
    pub(super) fn bring_waiting<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        let bringing = &mut here.bringing;
        bringing.again_at = Time::NEVER;
        while let Some((at, bulk)) = bringing.waiting.pop_front() {
            if bringing.is_unread(at) {
                drop(bringing.take(at));
                io.decline(conn, bulk);
                continue;
            }
            match io.pull_if_room(conn, bulk, CALLEE | ITEM | at as u64) {
                Ok(()) => {}
                Err((SendError::Blocked, bulk)) => {
                    bringing.waiting.push_front((at, bulk));
                    bringing.again_at = io.now().plus(AGAIN);
                    self.next_deadline = self.next_deadline.min(bringing.again_at);
                    return;
                }
                Err((error, bulk)) => {
                    tracing::debug!(?conn, %error, "an item of a stream was not brought");
                    drop(bringing.take(at));
                    io.decline(conn, bulk);
                }
            }
        }
    }

    /// Looks for room where nobody tells of it.
    pub(super) fn bring_again<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        if self.conns.get_mut(conn).is_some_and(|here| here.bringing.again_at <= io.now()) {
            self.bring_waiting(io, conn);
        }
    }

    /// An item is here, or will not come.
    pub(super) fn item_pulled(&mut self, conn: ConnId, at: u64, result: Result<Bulk, BulkError>) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(mut item) = usize::try_from(at).ok().and_then(|at| here.bringing.take(at)) else { return };
        match (result, item.lane.take()) {
            (Ok(bulk), Some(lane)) => lane.came(item.number, bulk),
            (Err(error), lane) => {
                tracing::debug!(?conn, %error, "an item of a stream was not brought");
                item.lane = lane;
            }
            (Ok(_), None) => {}
        }
    }
}
