//! Idle connections leave the set that is polled, so that a turn costs what the busy ones cost.
//!
//! ```text
//!  active ── nothing came or went between two looks ──► parked: its `armed` word has a number of its own
//!    ▲                                                     │
//!    └──── we send, or its peer does: a byte on the socket, read within LOOK_PARKED ────┘
//! ```
//! A parked connection is a sleeper for its peer alone: the same words and the same fences as for a port that sleeps
//! ([`wake`](crate::sync::wake)), so no frame is missed.

use super::{
    pace::POLLED_MIN,
    table::{Stage, Table},
};
use crate::sync::wake::{announce, settle, withdraw};

impl Table {
    /// Parks those active connections on which nothing happened since this was last called.
    pub(super) fn park_idle(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.active.get(at) {
            if self.park(index as usize) {
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Makes the connection of a slot a sleeper for its peer. `false`: it is not idle, or few connections are polled.
    fn park(&mut self, index: usize) -> bool {
        let Stage::Live(live) = &mut self.slots[index].stage else { return false };
        if !live.is_idle() || self.active.len() <= POLLED_MIN {
            return false;
        }
        self.epoch += 1;
        announce(live.armed(), self.epoch);
        settle();
        live.parked = !live.has_news();
        if live.parked {
            self.parked += 1;
        } else {
            withdraw(live.armed());
        }
        live.parked
    }

    /// Whether `conn` is parked.
    #[cfg(all(test, not(loom)))]
    pub(super) fn parked_conn(&self, conn: crate::ConnId) -> bool {
        matches!(&self.slots[conn.index() as usize].stage, Stage::Live(live) if live.parked)
    }

    /// Takes a connection back into the set that is polled.
    #[cold]
    pub(super) fn unpark(&mut self, index: usize) {
        if let Stage::Live(live) = &mut self.slots[index].stage
            && std::mem::take(&mut live.parked)
        {
            withdraw(live.armed());
            self.parked -= 1;
            self.active.push(live.id().index());
        }
    }
}
