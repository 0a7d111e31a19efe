//! The worker: what one poll thread owns.

/// Uses the port itself if there is only one, else the multiplexer.
macro_rules! directly {
    ($port:ident => $then:expr) => {
        match $port.direct() {
            Some($port) => $then,
            None => $then,
        }
    };
}

mod beat;
mod beats;
pub mod duty;
pub mod handle;
pub mod idle;
pub mod inbox;
mod receive;
pub(crate) mod runner;
mod seek;
mod station;
pub mod thread;
mod turn;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use gimmal_transport::{Batch, CloseReason, ConnId, Port, Run, Time, parts::LogPace};

use beats::Beats;
pub use duty::Duty;
pub use handle::WorkerHandle;
pub use idle::Idle;
pub use runner::Rest;
pub use station::Station;
pub use thread::Workers;

use crate::{
    app::{Act, App},
    config::{Config, Plan},
    connection::Connection,
    io::Io,
    table::ConnTable,
    worker::inbox::{Adopted, Inbox},
};

/// A port, its connections, and the application on them. Neither `Send` nor shared.
#[derive(Debug)]
pub(crate) struct Worker<P: Port, A: App> {
    pub(crate) port: P,
    pub(crate) app: A,
    pub(crate) conns: ConnTable<Connection>,
    /// Adopted connections that are not open yet, with the receiver of the result.
    pub(crate) opening: Vec<(ConnId, Adopted)>,
    pub(crate) inbox: Arc<Inbox<P::Link, A::Command>>,
    pub(crate) duty: Arc<Duty>,
    /// Away while its events are handled.
    batch: Option<Box<Batch>>,
    /// Frames or events handled in one turn, at most.
    batch_limit: usize,
    config: Config,
    beats: Beats,
    /// The next turn is a whole one: something waits for more than frames.
    pub(crate) restless: bool,
    /// The application acted, and what it sent leaves with the next turn.
    pub(crate) unsent: bool,
    /// Frames of which some were sought out; the others go first.
    sought: Option<Run>,
    /// Paces the lines about connections that end, which peers bring about.
    log: LogPace,
}

impl<P: Port, A: App> Worker<P, A> {
    pub(crate) fn new(
        port: P,
        app: A,
        plan: &Plan,
        inbox: Arc<Inbox<P::Link, A::Command>>,
        duty: Arc<Duty>,
    ) -> Self {
        let config = plan.config();
        Self {
            port,
            app,
            conns: ConnTable::new(),
            opening: Vec::new(),
            inbox,
            duty,
            batch: Some(Box::new(Batch::new(config.batch))),
            batch_limit: config.batch,
            config: config.clone(),
            beats: Beats::new(config.heartbeat_ms),
            restless: true,
            unsent: false,
            log: LogPace::default(),
            sought: None,
        }
    }

    /// Lets the application act outside a turn; what it sends leaves at once.
    pub(crate) fn with<R>(&mut self, now: Time, act: impl FnOnce(&mut A, &mut Io<'_, P>) -> R) -> R {
        let mut io = Io { port: &mut self.port, conns: &mut self.conns, now };
        let result = act(&mut self.app, &mut io);
        self.settle(now);
        result
    }

    /// As [`Worker::with`], but what it sends leaves with the next turn, or the next [`Worker::settle`].
    #[inline(always)]
    pub(crate) fn with_later<T: Act<A>>(&mut self, now: Time, act: T) -> T::Outcome {
        self.unsent = true;
        let Self { port, app, conns, .. } = self;
        directly!(port => act.act(app, &mut Io { port, conns, now }))
    }

    /// Takes a connection over; `adopted` hears how it went.
    pub(crate) fn adopt(&mut self, link: P::Link, adopted: Adopted, now: Time) {
        if let Some(slot) = adopted.slot() {
            slot.take();
            if slot.is_over() {
                self.close_oldest_handshake(now);
            }
        }
        self.restless = true;
        match self.port.adopt(link, now) {
            Ok(conn) => self.opening.push((conn, adopted)),
            Err(error) => {
                let _ = adopted.tell(Err(error.into()));
            }
        }
    }

    /// Whether all connections are in shared memory.
    #[inline]
    pub(crate) fn is_in_memory(&mut self) -> bool {
        const fn is_in_memory<Q: Port>(_: &Q) -> bool {
            Q::IN_MEMORY
        }
        let port = &mut self.port;
        directly!(port => is_in_memory(port))
    }

    /// Whether nothing waits for a whole turn but events. Timers and deaths are not looked at: they are for the turns that read the
    /// clock.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.restless && self.inbox.is_empty()
    }

    /// There are more handshakes than there may be, and the oldest is late: it makes room.
    fn close_oldest_handshake(&mut self, now: Time) {
        let accepted =
            self.opening.iter().filter_map(|(conn, adopted)| Some((adopted.slot()?.number(), *conn)));
        if let Some((_, conn)) = accepted.min() {
            self.port.close(conn, CloseReason::Handshake, now);
            // Its slot is free at once, so that the next one closes another.
            if let Some((_, adopted)) = self.opening.iter_mut().find(|(opening, _)| *opening == conn) {
                *adopted = Adopted::nobody();
            }
        }
    }

    /// Whether a connection wants to be settled again: credit or control that found no room.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        self.conns.active(0).is_some()
    }

    pub(crate) fn connections(&self) -> usize {
        self.conns.len() + self.opening.len()
    }

    /// Something on this thread panicked with these words: every connection ends, and the application hears of each.
    pub(crate) fn abandon(&mut self, words: &str, now: Time) {
        self.inbox.close();
        contained(|| self.app.panicked(words));
        for conn in self.conns.ids() {
            contained(|| self.port.close(conn, CloseReason::WorkerPanicked, now));
            contained(|| self.closed(conn, CloseReason::WorkerPanicked, now));
        }
    }

    /// Says goodbye to every connection.
    pub(crate) fn close_all(&mut self, now: Time) {
        let conns = self.conns.ids();
        self.with(now, |_, io| conns.into_iter().for_each(|conn| io.close(conn)));
    }
}

/// Nobody takes commands any more, however it ended.
impl<P: Port, A: App> Drop for Worker<P, A> {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// Does one step of clearing away after a panic. Another panic in it ends nothing else.
pub(crate) fn contained(step: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(step)).is_err() {
        tracing::error!("another panic while a worker that had panicked was cleared away");
    }
}
