//! A connection that one port gives up and another adopts: where it is modelled on shared memory, which can do so.

use std::sync::Arc;

use super::{
    connect::Link,
    port::SimPort,
    world::{Inbound, Life, Side, World},
};
use crate::{ConnId, Negotiated, Port as _, Time};

/// Where a connection stands that its port gave up.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) position: u64,
}

impl World {
    /// Whether all that waits for this end is frames, and nobody has any in hand.
    fn is_whole(&self, id: u64, side: Side) -> bool {
        let end = self.conns.get(&id).map(|conn| &conn.ends[side]);
        end.is_some_and(|end| {
            end.life == Life::Open
                && end.rx.nothing_is_lent()
                && end.pulls.is_empty()
                && end.accesses.is_empty()
                && end.inbox.iter().all(|inbound| matches!(inbound, Inbound::Frame { .. }))
        })
    }

    /// No port has this end from now on: what comes waits.
    fn let_go(&mut self, id: u64, side: Side, conn: ConnId, port: u64) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.conns.remove(&conn);
            port.ready.retain(|entry| *entry != (id, side));
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            let end = &mut conn.ends[side];
            (end.port, end.id, end.queued) = (None, None, false);
        }
    }

    /// A port has it again.
    pub(super) fn took_over(&mut self, id: u64, side: Side, conn: ConnId, port: u64) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.conns.insert(conn, (id, side));
        }
        if let Some(here) = self.conns.get_mut(&id) {
            (here.ends[side].port, here.ends[side].id) = (Some(port), Some(conn));
        }
        self.offer_inbox(id, side);
    }
}

impl SimPort {
    /// The steps of [`Port::give_up`](crate::Port::give_up).
    pub(super) fn let_go<T>(&mut self, conn: ConnId, may: impl FnOnce() -> Option<T>) -> Option<(Link, T)> {
        if self.begun.is_some() || self.dirty.contains(&conn) {
            return None;
        }
        let (id, side, standing) = self.stands(conn)?;
        if !self.shared.with(|world| world.is_whole(id, side)) {
            return None;
        }
        let told = may()?;
        let port = self.id;
        self.owing.retain(|owing| *owing != (id, side));
        self.vacate(conn, self.counters(conn));
        self.shared.with(|world| world.let_go(id, side, conn, port));
        Some((Link::moved(&self.shared, id, side, standing), told))
    }

    /// The other half of [`Port::adopt`](crate::Port::adopt).
    pub(super) fn take_over(&mut self, id: u64, side: Side, conn: ConnId, standing: Standing, now: Time) {
        self.resume(conn, standing);
        let port = self.id;
        self.shared.with(|world| {
            world.advance(now);
            world.took_over(id, side, conn, port);
        });
    }
}
