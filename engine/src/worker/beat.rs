//! The heartbeat of a worker's connections: when to check them, and with what result.

use gimmal_transport::{CloseReason, ConnId, Port, Time};

use super::{Worker, beats::Beats};
use crate::{
    app::App,
    proto::{Beat, State},
};

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
        let due = due.max(now.plus(pace.apart));
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
