//! A service that remembers which calls ran, so that fates can be checked against the truth.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gimmal::Cx;

/// Remembers numbers.
#[gimmal::service]
pub(crate) trait Tally {
    /// Adds `number`, and returns it.
    async fn add(&self, cx: &Cx, number: u64) -> u64;
    /// Which of the numbers `from..to` were added.
    async fn seen(&self, cx: &Cx, from: u64, to: u64) -> Vec<u64>;
    /// Which of them were added more than once.
    async fn twice(&self, cx: &Cx, from: u64, to: u64) -> Vec<u64>;
    /// Which process this is.
    async fn process(&self, cx: &Cx) -> u32;
}

/// The service.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    once: BTreeSet<u64>,
    twice: BTreeSet<u64>,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally for Book {
    async fn add(&self, _: &Cx, number: u64) -> u64 {
        let mut seen = self.lock();
        if !seen.once.insert(number) {
            seen.twice.insert(number);
        }
        number
    }

    async fn seen(&self, _: &Cx, from: u64, to: u64) -> Vec<u64> {
        self.lock().once.range(from..to).copied().collect()
    }

    async fn twice(&self, _: &Cx, from: u64, to: u64) -> Vec<u64> {
        self.lock().twice.range(from..to).copied().collect()
    }

    async fn process(&self, _: &Cx) -> u32 {
        std::process::id()
    }
}
