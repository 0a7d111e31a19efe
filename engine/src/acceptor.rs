//! A thread that accepts connections and spreads them over workers.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use gimmal_transport::{
    Address, Hello, Incoming, Instant, Listener, Provider, Refusal, RejectReason, thread,
};

use crate::{
    app::App,
    error::OpenError,
    slots::Slots,
    worker::{WorkerHandle, inbox::Adopted},
};

/// Who may connect: sees the hello and the peer's name, and lets it in, or refuses it with a reason and at most 132 bytes
/// of its own. Runs on the accepting thread, so it must not block.
pub type Admit = Box<dyn FnMut(&Hello, &str) -> Result<(), Refusal> + Send>;

/// How long one wait for a request lasts; stopping takes at most this.
const WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    accepted: AtomicU64,
    refused: AtomicU64,
    rejected: AtomicU64,
    last_rejected: Mutex<Option<RejectReason>>,
}

/// The passive side of a server. Dropping it stops listening.
#[derive(Debug)]
pub struct Acceptor {
    address: Address,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Accepts what `listener` hands out, each onto the worker with the fewest connections.
    ///
    /// # Errors
    /// When the thread cannot start.
    pub fn spawn<P: Provider, A: App>(
        listener: P::Listener,
        workers: Vec<WorkerHandle<P, A>>,
    ) -> Result<Self, OpenError> {
        Self::spawn_with(listener, workers, Box::new(|_, _| Ok(())))
    }

    /// As [`Acceptor::spawn`], for those whom `admit` lets in.
    ///
    /// # Errors
    /// As [`Acceptor::spawn`].
    pub fn spawn_with<P: Provider, A: App>(
        listener: P::Listener,
        workers: Vec<WorkerHandle<P, A>>,
        admit: Admit,
    ) -> Result<Self, OpenError> {
        if workers.is_empty() {
            return Err(OpenError::Worker("there is none"));
        }
        let address = listener.address();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn("gimmal-accept", move || accept(listener, &workers, admit, &theirs))
            .map_err(|_| OpenError::Worker("no thread to accept on"))?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Connections accepted.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Requests that were not let in, or whose accept failed: the client went away, or a limit was reached.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Requests with a foreign, old or bad hello.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.shared.rejected.load(Ordering::Relaxed)
    }

    /// Why the last of those was rejected: a wrong key, a user that is not allowed, a foreign client.
    #[must_use]
    pub fn last_rejected(&self) -> Option<RejectReason> {
        *self.shared.last_rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops listening; connections that stand go on.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(2);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn note_rejected(listener: &impl Listener, shared: &Shared) {
    let rejected = listener.rejected();
    if shared.rejected.load(Ordering::Relaxed) != rejected {
        *shared.last_rejected.lock().unwrap_or_else(PoisonError::into_inner) = listener.last_rejected();
        shared.rejected.store(rejected, Ordering::Relaxed);
    }
}

fn accept<P: Provider, A: App>(
    mut listener: P::Listener,
    workers: &[WorkerHandle<P, A>],
    mut admit: Admit,
    shared: &Arc<Shared>,
) {
    let mut turn = 0;
    let slots = Slots::new(workers[0].handshakes_max);
    while !shared.stop.load(Ordering::Relaxed) {
        if let Some(wait) = slots.wait(Instant::now()) {
            // Requests wait in the listener's backlog, which refuses what it cannot hold.
            std::thread::sleep(wait);
            continue;
        }
        let incoming = match listener.accept(WAIT) {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::error!(%error, "the listener is broken");
                return;
            }
        };
        note_rejected(&listener, shared);
        let Some(incoming) = incoming else {
            continue;
        };
        turn += 1;
        let most = workers[0].accepted_max;
        let has: usize = workers.iter().map(|worker| worker.duty.counted()).sum();
        if most > 0 && has >= most {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            tracing::info!(peer = incoming.peer(), most, "refused: as many connections as accepted_max");
            incoming.reject(RejectReason::Overloaded);
            continue;
        }
        let least = (0..workers.len())
            .map(|at| &workers[(at + turn) % workers.len()])
            .min_by_key(|worker| worker.load());
        let Some(worker) = least else {
            incoming.reject(RejectReason::ShuttingDown);
            continue;
        };
        let peer = incoming.peer();
        if let Err(refusal) = admit(incoming.hello(), &peer) {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            tracing::info!(peer, reason = %refusal.reason(), "refused");
            incoming.refuse(refusal);
            continue;
        }
        let adopted = Adopted::accepted(slots.begin(Instant::now()), worker.duty.count());
        let (inbox, shared) = (Arc::clone(&worker.inbox), Arc::clone(shared));
        incoming.accept_then(&worker.gate, move |link| {
            let adopted = link.map_err(|error| error.to_string()).and_then(|link| {
                // Before the worker has it: whoever sees the connection open finds it counted.
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                inbox.adopt(link, adopted).map_err(|error| {
                    shared.accepted.fetch_sub(1, Ordering::Relaxed);
                    error.to_string()
                })
            });
            match adopted {
                Ok(()) => tracing::debug!(peer, "accepted"),
                Err(error) => {
                    shared.refused.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(peer, error, "not accepted");
                }
            }
        });
    }
}
