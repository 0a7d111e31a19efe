//! What the calling thread serves: a wait on it for one of these would never end, since it would have to end it itself.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    sync::{Arc, Weak},
};

use gimmal_engine::transport::{Address, Negotiated};

use crate::shared::Shared;

#[derive(Default)]
struct Here {
    /// Connections with an end on this thread, by their nonce.
    conns: HashSet<u128>,
    /// What servers' workers on this thread have in common with the others.
    servers: Vec<Weak<Shared>>,
}

thread_local! {
    static HERE: RefCell<Here> = RefCell::default();
    /// Whether there is anything in it: one load for threads that serve nothing.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// What is known of this thread; nothing at its end.
fn here<R: Default>(look: impl FnOnce(&mut Here) -> R) -> R {
    let looked = HERE.try_with(|here| {
        let mut here = here.borrow_mut();
        let looked = look(&mut here);
        SERVES.set(!here.conns.is_empty() || !here.servers.is_empty());
        looked
    });
    looked.unwrap_or_default()
}

/// This thread has an end of a connection.
pub(crate) fn enter(negotiated: &Negotiated) {
    here(|here| here.conns.insert(negotiated.nonce));
}

/// Not any more.
pub(crate) fn leave(negotiated: &Negotiated) {
    here(|here| here.conns.remove(&negotiated.nonce));
}

/// This thread is a worker of a server.
pub(crate) fn serve(shared: &Arc<Shared>) {
    here(|here| {
        here.servers.retain(|server| server.strong_count() > 0);
        here.servers.push(Arc::downgrade(shared));
    });
}

/// Whether this thread serves anything at all.
#[inline]
pub(crate) fn is_serving() -> bool {
    SERVES.get()
}

/// Whether this thread is a worker: it must not park for what another call may have to bring.
pub(crate) fn is_worker() -> bool {
    is_serving() && here(|here| !here.servers.is_empty())
}

/// Whether this thread has an end of that connection.
#[cold]
pub(crate) fn has_end_of(negotiated: &Negotiated) -> bool {
    here(|here| here.conns.contains(&negotiated.nonce))
}

/// Whether this thread is a worker of the server with this `shared`.
pub(crate) fn is_worker_of(shared: &Arc<Shared>) -> bool {
    is_serving() && here(|here| here.servers.iter().any(|server| server.as_ptr() == Arc::as_ptr(shared)))
}

/// Whether this thread is the only worker of the server that listens at `address`.
pub(crate) fn is_alone_at(address: &Address) -> bool {
    is_serving()
        && here(|here| {
            let mut servers = here.servers.iter().filter_map(Weak::upgrade);
            servers.any(|server| server.sole_worker_at.get().is_some_and(|at| at.contains(address)))
        })
}
