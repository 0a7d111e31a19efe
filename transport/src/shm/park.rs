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
    pace::{LOOK_PARKED_NS, POLLED_MIN},
    port::ShmPort,
    slot::Stage,
};
use crate::{
    Time,
    sync::wake::{announce, settle, withdraw},
};

/// The parked connections.
#[derive(Debug, Default)]
pub(super) struct Parked {
    pub(super) count: usize,
    look_at: Time,
}

impl Parked {
    /// Whether it is time to look at their sockets.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.count > 0 && now >= self.look_at
    }

    pub(super) fn looked(&mut self, now: Time) {
        self.look_at = Time(now.0.saturating_add(LOOK_PARKED_NS));
    }
}

impl ShmPort {
    /// Parks those active connections on which nothing happened since this was last called.
    pub(super) fn park_idle(&mut self) {
        let mut at = 0;
        while at < self.active.len() {
            let index = self.active[at] as usize;
            let Stage::Live(live) = &mut self.slots[index].stage else {
                at += 1;
                continue;
            };
            if !live.is_idle() || self.active.len() <= POLLED_MIN {
                at += 1;
                continue;
            }
            self.epoch += 1;
            announce(live.armed(), self.epoch);
            settle();
            if live.has_news() {
                withdraw(live.armed());
                at += 1;
                continue;
            }
            live.parked = true;
            self.parked.count += 1;
            self.active.swap_remove(at);
        }
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
            self.parked.count -= 1;
            self.active.push(live.id().index());
        }
    }
}
