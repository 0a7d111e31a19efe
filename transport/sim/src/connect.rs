//! The active side: attempts, and the links that both sides get.

use std::{sync::Arc, time::Duration};

use super::{conn::Side, world::Shared};
use gimmal_transport::{CloseReason, ConnectError, Connecting, Instant};

/// An attempt; see [`Connecting`]. Polled with a zero timeout it knows virtual time only. A blocking wait has its
/// deadline in real time too.
#[derive(Debug)]
pub struct SimConnecting {
    shared: Arc<Shared>,
    conn: Option<u64>,
    port: u64,
    started: Instant,
}

impl SimConnecting {
    pub(super) fn new(shared: &Arc<Shared>, conn: u64, port: u64) -> Self {
        Self { shared: Arc::clone(shared), conn: Some(conn), port, started: Instant::now() }
    }
}

impl Connecting for SimConnecting {
    type Link = Link;

    fn poll(&mut self, timeout: Duration) -> Option<Result<Link, ConnectError>> {
        let id = self.conn?;
        let (limit, real) = self
            .shared
            .with(|world| Some((world.conns.get(&id)?.connect_timeout, world.config.real_time)))?;
        let left = limit.saturating_sub(self.started.elapsed());
        let outcome = self.shared.wait(timeout.min(left), |world| world.conns.get(&id)?.outcome.clone());
        let outcome = outcome.or_else(|| {
            self.shared.with(|world| {
                if (real || !timeout.is_zero()) && self.started.elapsed() >= limit {
                    world.on_connect_deadline(id);
                }
                world.conns.get(&id)?.outcome.clone()
            })
        })?;
        self.conn = None;
        Some(match outcome {
            Ok(()) => Ok(Link::new(&self.shared, id, 0, self.port)),
            Err(error) => {
                self.shared.with(|world| world.leave(id, 0));
                Err(error)
            }
        })
    }
}

impl Drop for SimConnecting {
    fn drop(&mut self) {
        if let Some(id) = self.conn.take() {
            give_up(&self.shared, id, 0);
        }
    }
}

/// An established connection. Dropped instead of adopted, it is closed.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    conn: Option<u64>,
    side: Side,
    /// The port that it was made for.
    port: u64,
}

impl Link {
    pub(super) fn new(shared: &Arc<Shared>, conn: u64, side: Side, port: u64) -> Self {
        Self { shared: Arc::clone(shared), conn: Some(conn), side, port }
    }

    pub(super) const fn may_go_to(&self, port: u64) -> bool {
        self.port == port
    }

    /// The connection and which side of it this is; dropping the link does nothing any more.
    pub(super) const fn take(&mut self) -> Option<(u64, Side)> {
        match self.conn.take() {
            Some(conn) => Some((conn, self.side)),
            None => None,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(id) = self.conn.take() {
            give_up(&self.shared, id, self.side);
        }
    }
}

fn give_up(shared: &Shared, id: u64, side: Side) {
    shared.with(|world| {
        world.abandon(id, side, CloseReason::Local);
    });
}
