//! What ports ask of the world.

use std::collections::{BTreeMap, VecDeque};

use super::{
    config::SimDevice,
    conn::{Inbound, Life, Side, Stage},
    world::{PortState, World},
};
use gimmal_transport::{CloseReason, ConnId, PortConfig, PortCounters, Refused, Time, Waker, parts::Common};

impl World {
    pub(super) fn add_port(&mut self, waker: Waker, config: &PortConfig, device: &SimDevice) -> u64 {
        let id = self.fresh();
        let state = PortState {
            waker,
            config: config.clone(),
            device: device.clone(),
            ready: VecDeque::new(),
            common: Common::of(device.common),
            nudged: false,
            conns: BTreeMap::new(),
        };
        self.ports.insert(id, state);
        id
    }

    /// A port is polled: time goes on.
    pub(super) fn turn(&mut self, port: u64, now: Time) {
        self.advance(now);
        if let Some(port) = self.ports.get_mut(&port) {
            port.nudged = false;
        }
    }

    /// The next event of a port with the connection's counters after it.
    pub(super) fn next_for(&mut self, port: u64) -> Option<(ConnId, Inbound, PortCounters)> {
        let (id, side) = self.choose(port, false)?;
        let before = self.counters(id, side);
        let (conn, inbound) = self.take(port, id, side)?;
        let after = if matches!(inbound, Inbound::Closed(_)) { before } else { PortCounters::default() };
        Some((conn, inbound, after))
    }

    pub(super) fn counters(&self, id: u64, side: Side) -> PortCounters {
        self.conns.get(&id).map_or_else(PortCounters::default, |conn| {
            let end = &conn.ends[side];
            end.account.counted(end.counters)
        })
    }

    /// Chains that are posted and not known to be complete.
    pub(super) fn outstanding(&self, id: u64, side: Side) -> Result<u64, Refused> {
        let end = self.conns.get(&id).map(|conn| &conn.ends[side]);
        end.filter(|end| end.life == Life::Open).map(|end| end.tx.outstanding).ok_or(Refused::Closed)
    }

    pub(super) fn has_work(&self, port: u64) -> bool {
        self.ports.get(&port).is_some_and(|port| port.nudged || !port.ready.is_empty())
    }

    pub(super) fn deadline(&mut self, port: u64) -> Time {
        if self.has_work(port) { self.now } else { self.next_at() }
    }

    /// An attempt or a link was dropped.
    pub(super) fn abandon(&mut self, id: u64, side: Side, reason: CloseReason) {
        if let Some(conn) = self.conns.get_mut(&id) {
            if conn.outcome.is_none() && side == 0 {
                conn.stage = Stage::Failed;
                conn.ends[0].life = Life::Linked;
            }
            self.hang_up(id, side, reason);
            self.leave(id, side);
        }
    }
}
