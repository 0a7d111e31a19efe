//! What goes wrong on one side only: set-up calls that find no memory, completion queues that overrun.

use std::time::Duration;

use super::{
    conn::Side,
    world::{Happening, World},
};
use gimmal_transport::{CloseReason, PortError, Time};

/// ENOMEM.
const NO_MEMORY: i32 = 12;

impl World {
    /// One call that sets something up; the one that [`SimConfig::failing_setup`](super::SimConfig::failing_setup) names
    /// fails.
    pub(super) fn setup(&mut self, step: &'static str) -> Result<(), PortError> {
        self.findings.setups += 1;
        if self.findings.setups != self.config.failing_setup {
            return Ok(());
        }
        self.log("setup", &[self.findings.setups]);
        self.findings.failed_setup = Some(step);
        Err(PortError::System { step, errno: NO_MEMORY })
    }

    /// The port of an end lost a completion, and nobody knows of which connection: all of them end.
    pub(super) fn overrun(&mut self, conn: u64, side: Side) {
        let port = self.conns.get(&conn).and_then(|conn| conn.ends[side].port);
        let Some(port) = port.and_then(|port| self.ports.get(&port)) else { return };
        let all: Vec<(u64, Side)> = port.conns.values().copied().collect();
        for (conn, side) in all {
            self.close_end(conn, side, CloseReason::Event { event: "CQ_ERR", status: 0 });
            if let Some(conn) = self.conns.get_mut(&conn) {
                conn.ends[side].failed = true;
            }
            self.travel(conn, side, Duration::ZERO, Happening::Goodbye { conn, from: side });
        }
    }
}

impl World {
    /// Processes run whatever their workers do, where the world says so; by the real clock all ends are of one. Of a silent
    /// peer nothing is seen.
    pub(super) fn beat(&self, conn: u64) -> Option<u64> {
        let is_seen = self.conns.get(&conn).is_some_and(|conn| !conn.silent);
        match (is_seen, self.config.real_time, self.config.pulses) {
            (true, true, _) => Some(Time::now().0),
            (true, false, true) => Some(self.now.0),
            _ => None,
        }
    }
}
