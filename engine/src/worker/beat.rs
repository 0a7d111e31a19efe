//! The heartbeat of a worker's connections: when to check them, and with what result.

use gimmal_transport::{CloseReason, ConnId, Port, Time};

use super::Worker;
use crate::{
    app::App,
    proto::{Beat, Pace, State},
};

/// When to look next. One comparison a turn.
#[derive(Debug)]
pub(crate) struct Beats {
    pace: Option<Pace>,
    /// A turn at or after this looks.
    at: Time,
    /// A sleeping worker wakes for this.
    due: Time,
    /// Something arrived since the last look, so the next must not be later than `at`.
    unlooked: bool,
    /// Its memory is used again.
    ids: Vec<ConnId>,
}

impl Beats {
    pub(crate) fn new(bound_ms: u32) -> Self {
        Self {
            pace: Pace::new(bound_ms),
            at: Time::NEVER,
            due: Time::NEVER,
            unlooked: false,
            ids: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_due(&mut self, now: Time, worked: bool) -> bool {
        self.unlooked |= worked;
        now >= self.at
    }

    /// A turn that does not ask [`Beats::is_due`] found something.
    #[inline]
    pub(crate) const fn worked(&mut self) {
        self.unlooked = true;
    }

    pub(crate) fn deadline(&self) -> Time {
        if self.unlooked { self.at } else { self.due }
    }

    /// A connection opened; there are so many now.
    pub(crate) fn opened(&mut self, connections: usize, now: Time) {
        self.ids.reserve(connections);
        if let Some(pace) = &self.pace {
            self.due = self.due.min(now.plus(pace.ask));
            self.at = self.at.min(now.plus(pace.look));
        }
    }
}

impl<P: Port, A: App> Worker<P, A> {
    /// Looks at every open connection.
    #[cold]
    pub(super) fn beat(&mut self, now: Time) {
        let Some(pace) = self.beats.pace else {
            self.beats.at = Time::NEVER;
            return;
        };
        let mut ids = std::mem::take(&mut self.beats.ids);
        self.conns.list(&mut ids);
        let mut due = Time::NEVER;
        for &conn in &ids {
            let Some(connection) = self.conns.peek(conn) else { continue };
            // A goodbye has a time limit of its own.
            if connection.state() != State::Open {
                continue;
            }
            let pulse = || self.port.pulse(conn, now);
            let beat = connection.heart.poll(now, connection.ledger.mark(), pulse, &pace);
            let unused = connection.give_up_unused();
            due = due.min(connection.heart.due(&pace));
            if unused {
                // Touched: what it says leaves before the turn ends.
                self.conns.touch(conn);
            }
            match beat {
                Beat::Fine => {}
                Beat::Ask => self.ask(conn, now),
                Beat::Busy => tracing::info!(
                    ?conn,
                    bound_ms = pace.bound_ms,
                    "the peer's worker is busy: it answers nothing, and its process lives"
                ),
                Beat::Silent => {
                    let reason = CloseReason::PeerSilent { bound_ms: pace.bound_ms };
                    self.port.close(conn, reason, now);
                }
            }
        }
        let open = !ids.is_empty();
        ids.clear();
        let at = if open { now.plus(pace.look).min(due) } else { Time::NEVER };
        self.beats = Beats { pace: Some(pace), at, due, unlooked: false, ids };
    }

    /// Something casts doubt on `conn`: asks it now, without waiting for a third of the bound.
    pub(super) fn doubt(&mut self, conn: ConnId, now: Time) {
        let Some(connection) = self.conns.peek(conn) else { return };
        let pulse = || self.port.pulse(conn, now);
        if connection.state() == State::Open && connection.heart.handle_doubt(now, pulse) {
            if let Some(pace) = &self.beats.pace {
                self.beats.due = self.beats.due.min(connection.heart.due(pace));
                self.beats.at = self.beats.at.min(self.beats.due);
            }
            self.ask(conn, now);
        }
    }

    fn ask(&mut self, conn: ConnId, now: Time) {
        // Touched: it is settled before the turn ends, and the ping leaves with its flush.
        if let Some(connection) = self.conns.touch(conn) {
            connection.ping(now);
        }
    }
}
