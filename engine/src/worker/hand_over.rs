//! Connections that go from one worker to another as they stand, where the provider can: the peer notices nothing.
//!
//! ```text
//!  from:  hand_over ─ at rest? App::pack ─ Port::give_up ─►  Parcel ─ inbox ─►  to:  arrive ─ Port::adopt ─ App::unpack
//!            ▲                                                 │
//!            └───────────── its inbox is full ─────────────────┘
//! ```

use std::sync::Arc;

use gimmal_transport::{ConnId, Port, Time};

use super::{
    Worker,
    inbox::{Command, Inbox},
};
use crate::{
    app::App,
    connection::{Connection, Packed},
    io::Io,
};

/// A connection on its way.
#[derive(Debug)]
pub(crate) struct Parcel<L, C> {
    link: L,
    packed: Packed,
    told: C,
}

impl<P: Port, A: App> Worker<P, A> {
    /// Hands up to `count` connections over; how many went.
    pub(crate) fn hand_over(
        &mut self,
        count: usize,
        to: &Arc<Inbox<P::Link, A::Command>>,
        now: Time,
    ) -> usize {
        if Arc::ptr_eq(to, &self.inbox) {
            return 0;
        }
        let mut went = 0;
        for conn in self.conns.ids() {
            if went == count {
                break;
            }
            went += usize::from(self.hand_over_one(conn, to, now));
        }
        went
    }

    fn hand_over_one(&mut self, conn: ConnId, to: &Inbox<P::Link, A::Command>, now: Time) -> bool {
        let Self { port, app, conns, sought, .. } = self;
        if sought.is_some() || !conns.get(conn).is_some_and(Connection::is_at_rest) {
            return false;
        }
        let Some((link, told)) = port.give_up(conn, || app.pack(conn)) else { return false };
        let Some(connection) = conns.remove(conn) else { return false };
        self.duty.closed();
        let parcel = Parcel { link, packed: connection.pack(), told };
        match to.push(Command::Arrive(Box::new(parcel))) {
            Err(Command::Arrive(parcel)) => {
                self.arrive(*parcel, now);
                false
            }
            _ => true,
        }
    }

    /// Goes on with a connection of another worker.
    pub(crate) fn arrive(&mut self, parcel: Parcel<P::Link, A::Command>, now: Time) {
        let Parcel { link, packed, told } = parcel;
        self.restless = true;
        match self.port.adopt(link, now) {
            Ok(conn) => {
                self.conns.insert(conn, packed.unpack(&self.config, &self.duty, now));
                self.duty.opened();
                self.beats.opened(self.conns.len(), now);
                let Self { port, app, conns, .. } = self;
                app.unpack(&mut Io { port, conns, now }, conn, told);
            }
            Err(error) => tracing::warn!(%error, "a connection that was handed over had to be closed"),
        }
    }
}
