//! A worker's place: the worker that is there now, and the next one when that has panicked.

use std::sync::{
    Arc, Mutex, PoisonError, RwLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use gimmal_transport::Provider;

use super::WorkerHandle;
use crate::app::App;

/// Where a worker is found for as long as its thread lives. A [`WorkerHandle`] leads to one worker only; when that has
/// panicked, the station has the handle of its successor. Cheap to clone.
#[derive(Debug)]
pub struct Station<P: Provider, A: App>(Arc<Place<P, A>>);

#[derive(Debug)]
struct Place<P: Provider, A: App> {
    now: RwLock<WorkerHandle<P, A>>,
    stopping: AtomicBool,
    panics: AtomicU64,
    last_panic: Mutex<Option<String>>,
}

impl<P: Provider, A: App> Clone for Station<P, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Provider, A: App> From<WorkerHandle<P, A>> for Station<P, A> {
    /// Of a worker that has no successor, or not yet.
    fn from(handle: WorkerHandle<P, A>) -> Self {
        Self(Arc::new(Place {
            now: RwLock::new(handle),
            stopping: AtomicBool::new(false),
            panics: AtomicU64::new(0),
            last_panic: Mutex::default(),
        }))
    }
}

impl<P: Provider, A: App> Station<P, A> {
    /// The worker that is there now. It [is gone](WorkerHandle::is_gone) between a panic and its successor.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle<P, A> {
        self.0.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Workers that panicked here.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.0.panics.load(Ordering::Relaxed)
    }

    /// What the last of them said.
    #[must_use]
    pub fn last_panic(&self) -> Option<String> {
        self.0.last_panic.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note_panic(&self, words: &str) {
        *self.0.last_panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(words.to_owned());
        self.0.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Installs a successor.
    pub(super) fn succeed(&self, handle: WorkerHandle<P, A>) {
        *self.0.now.write().unwrap_or_else(PoisonError::into_inner) = handle;
    }

    /// Whether the worker has to stop, and none follows it.
    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        // SYNC POINT: station stopped. Pairs with `stop`: what was asked before is in the inbox.
        self.0.stopping.load(Ordering::Acquire)
    }

    /// Stops the worker that is there, however full its inbox is, and has none follow.
    pub(super) fn stop(&self) {
        // SYNC POINT: station stopped.
        self.0.stopping.store(true, Ordering::Release);
        // Seen by the turn that this brings. A worker that comes meanwhile asks before its first.
        self.handle().ring();
    }
}
