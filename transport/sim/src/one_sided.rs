//! One-sided operations in the world: what is exposed, and what is in flight.

use std::{any::Any, sync::Arc, time::Duration};

use super::{
    bulk::Home,
    config::{FaultKind, Step},
    conn::{Inbound, Life, Side},
    transfers::{Memory, UnderWay},
    world::{Happening, World},
};
use gimmal_transport::{
    AccessError, Offer, Remote,
    mem::{Exposed, OneSided, Words},
    parts::ExposedHome,
};

impl ExposedHome for Home {
    fn withdraw(&self, key: u64) {
        if let Some(shared) = self.0.upgrade() {
            shared.with(|world| world.exposed.remove(&key));
        }
    }
}

impl World {
    pub(super) fn expose(&mut self, conn: u64, side: Side, words: &Arc<Words>) -> u64 {
        let key = self.fresh();
        self.exposed.insert(key, Memory { conn, side, words: Arc::clone(words) });
        key
    }

    /// What `side` exposes under `key` on `conn`.
    fn exposed_by(&self, conn: u64, side: Side, key: u64) -> Option<Arc<Words>> {
        let found = self.exposed.get(&key).filter(|memory| (memory.conn, memory.side) == (conn, side));
        found.map(|memory| Arc::clone(&memory.words))
    }

    pub(super) fn show(&self, conn: u64, side: Side, exposed: &Exposed) -> Result<Remote, AccessError> {
        let key = exposed.key();
        let words = self.exposed_by(conn, side, key).ok_or(AccessError::NotExposed)?;
        Ok(Remote::new(Offer { address: 0, key, len: words.len() }))
    }

    pub(super) fn access(
        &mut self,
        conn: u64,
        side: Side,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let end = self.conns.get_mut(&conn).map(|conn| &mut conn.ends[side]);
        let end = end.filter(|end| end.life == Life::Open);
        let Some((end, negotiated)) = end.and_then(|end| end.negotiated.clone().map(|terms| (end, terms)))
        else {
            return Err((AccessError::Closed, op));
        };
        if negotiated.initiator_depth.granted == 0 {
            return Err((AccessError::Off, op));
        }
        if let Err(error) = op.check(&remote, negotiated.atomics) {
            return Err((error, op));
        }
        end.accesses.push_back(UnderWay { token, remote, op });
        self.log("access", &[conn, side as u64, token]);
        self.come_back(conn, side, Duration::ZERO, Happening::Access { conn, side });
        Ok(())
    }

    /// The connection is over before they were made.
    pub(super) fn end_accesses(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let accesses = std::mem::take(&mut conn.ends[side].accesses);
        for UnderWay { token, op, .. } in accesses {
            self.throw_away(op);
            self.put(id, side, Inbound::Accessed { token, result: Err(AccessError::Closed) });
        }
    }

    /// Nobody holds an end of the connection any more.
    pub(super) fn forget(&mut self, id: u64) {
        let gone = self.conns.remove(&id);
        self.throw_away(gone);
        self.loans.retain(|_, loan| loan.conn != id);
        self.exposed.retain(|_, memory| memory.conn != id);
    }

    /// Drops `thing` when nobody is in the world.
    pub(super) fn throw_away(&mut self, thing: impl Any + Send) {
        self.thrown_away.push(Box::new(thing));
    }

    /// The oldest operation of an end is made.
    pub(super) fn on_access(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.pieces += 1;
        let step = Step::Bulk(conn.pieces);
        if let Some(kind) = self.fault(id, step).filter(|kind| *kind != FaultKind::Flipped) {
            return self.strike(id, kind, side, "one-sided operation");
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(UnderWay { token, remote, op }) = conn.ends[side].accesses.pop_front() else { return };
        let made = match self.exposed_by(id, 1 - side, remote.key()) {
            Some(words) => op.perform(&words),
            None => Err((AccessError::NotExposed, op)),
        };
        let result = made.map_err(|(error, op)| {
            self.throw_away(op);
            error
        });
        if let (Ok(_), Some(conn)) = (&result, self.conns.get_mut(&id)) {
            conn.ends[side].counters.accesses += 1;
        }
        self.put(id, side, Inbound::Accessed { token, result });
    }
}
