//! What all workers of a server share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use gimmal_engine::transport::{Address, Instant, Negotiated};

use crate::{draining::Signal, runtime::Runtime, wake::Woken};

/// What all workers of a server share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Set once when the server shuts down: new requests are refused.
    pub(crate) draining: AtomicBool,
    /// Set with it: what handlers wait for.
    pub(crate) drains: Arc<Signal>,
    /// A listener of the server ended, though nobody stopped it.
    pub(crate) is_deaf: AtomicBool,
    /// Where a server with one worker listens.
    pub(crate) sole_worker_at: OnceLock<Vec<Address>>,
    /// The connected peers, by a number of their own, and since when. For reflection.
    pub(crate) connections: Mutex<BTreeMap<u64, (Arc<Negotiated>, Instant)>>,
    next: AtomicU64,
    /// Services whose program said that they are unwell.
    pub(crate) unwell: Mutex<BTreeSet<String>>,
    /// Tasks whose calls have ended, of clients.
    pub(crate) woken: Arc<Woken>,
    /// What handlers may use.
    pub(crate) runtime: Option<Arc<dyn Runtime>>,
}

/// A connection's place among those of its server; given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Enrolled {
    shared: Arc<Shared>,
    number: u64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(runtime: Option<Arc<dyn Runtime>>) -> Arc<Self> {
        Arc::new(Self { runtime, ..Self::default() })
    }

    /// New requests are refused from now on, and handlers that wait for it are woken.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.drains.set();
    }

    pub(crate) fn enroll(self: &Arc<Self>, negotiated: &Arc<Negotiated>) -> Enrolled {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.connections).insert(number, (Arc::clone(negotiated), Instant::now()));
        Enrolled { shared: Arc::clone(self), number }
    }

    pub(crate) fn set_health(&self, service: &str, is_well: bool) {
        let mut unwell = lock(&self.unwell);
        if is_well {
            unwell.remove(service);
        } else {
            unwell.insert(service.to_owned());
        }
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        lock(&self.shared.connections).remove(&self.number);
    }
}
