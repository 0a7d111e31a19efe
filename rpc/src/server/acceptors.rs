//! The listeners of a server, each with its accepting thread.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use gimmal_engine::{
    Acceptor, Admit,
    transport::{Address, Hello, Provider, RejectReason},
};

use crate::{draining::Signal, error::ServeError, provider::Any, shared::Shared, workers::Place};

/// At least one acceptor. Dropping it stops all of them at the same time, so that takes as long as one.
#[derive(Debug)]
pub(super) struct Acceptors(Vec<Acceptor>);

impl Acceptors {
    /// Starts a thread for each listener; all ask the same `admit`. `shared` and `ended` hear when they end unasked.
    pub(super) fn spawn(
        listeners: Vec<<Any as Provider>::Listener>,
        workers: &[Place],
        admit: Admit,
        (shared, ended): (&Arc<Shared>, &Arc<Signal>),
    ) -> Result<Self, ServeError> {
        let admit = Arc::new(Mutex::new(admit));
        let listening = Arc::new(AtomicUsize::new(listeners.len()));
        let mut acceptors = Self(Vec::new());
        for listener in listeners {
            let admit = Arc::clone(&admit);
            let ask = move |hello: &Hello, peer: &str| {
                let mut admit = admit.lock().unwrap_or_else(PoisonError::into_inner);
                admit(hello, peer)
            };
            let (shared, ended, listening) = (Arc::clone(shared), Arc::clone(ended), Arc::clone(&listening));
            let lost = move |_: &str| {
                shared.is_deaf.store(true, Ordering::Relaxed);
                if listening.fetch_sub(1, Ordering::AcqRel) == 1 {
                    ended.set();
                }
            };
            let acceptor = Acceptor::spawn_with(listener, workers.to_vec(), Box::new(ask), Box::new(lost));
            acceptors.0.push(acceptor.map_err(ServeError::Accept)?);
        }
        Ok(acceptors)
    }

    /// Where the first one listens, with the port that was chosen.
    pub(super) fn address(&self) -> &Address {
        self.0[0].address()
    }

    pub(super) fn addresses(&self) -> Vec<Address> {
        self.0.iter().map(|acceptor| acceptor.address().clone()).collect()
    }

    pub(super) fn accepted(&self) -> u64 {
        self.0.iter().map(Acceptor::accepted).sum()
    }

    pub(super) fn rejected(&self) -> u64 {
        self.0.iter().map(|acceptor| acceptor.rejections().count()).sum()
    }

    pub(super) fn rejected_as(&self, reason: RejectReason) -> u64 {
        self.0.iter().map(|acceptor| acceptor.rejections().count_of(reason)).sum()
    }

    pub(super) fn last_rejected(&self) -> Option<RejectReason> {
        self.0.iter().find_map(|acceptor| acceptor.rejections().last())
    }

    /// Where one does not listen any more though nobody stopped it, and why.
    pub(super) fn not_listening(&self) -> Option<String> {
        let lost = |acceptor: &Acceptor| Some(format!("{}: {}", acceptor.address(), acceptor.lost()?));
        self.0.iter().find_map(lost)
    }
}

impl Drop for Acceptors {
    fn drop(&mut self) {
        self.0.iter().for_each(Acceptor::signal_stop);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gimmal_engine::transport::{Instant, ListenOptions};

    use super::*;
    use crate::{client, config::Config, provider::any};

    /// Each waits 50 ms for a client before it looks whether it is to stop.
    #[test]
    fn many_listeners_stop_in_the_time_of_one() {
        const LISTENERS: usize = 16;
        let provider = any();
        let workers = client::spawn(&provider, Config::default()).unwrap();
        let id = std::process::id();
        let stop = |round: usize| {
            let listen = |at| {
                let address = format!("mem://stop-{id}-{round}-{at}").parse().unwrap();
                provider.listen(&address, &ListenOptions::default()).unwrap()
            };
            let listeners = (0..LISTENERS).map(listen).collect();
            let shared = (&Arc::default(), &Arc::default());
            let stations = workers.workers.stations();
            let acceptors = Acceptors::spawn(listeners, stations, Box::new(|_, _| Ok(())), shared).unwrap();
            assert_eq!(acceptors.addresses().len(), LISTENERS);
            let began = Instant::now();
            drop(acceptors);
            began.elapsed()
        };
        // On a busy machine any one may take long; so the shortest counts. One after the other they take 400 ms on average.
        let shortest = (0..5).map(stop).min().unwrap();
        assert!(shortest < Duration::from_millis(200), "{shortest:?}");
    }
}
