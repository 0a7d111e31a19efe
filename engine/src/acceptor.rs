//! A thread that accepts connections and spreads them over workers.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use gimmal_transport::{
    AcceptError, Address, Hello, Incoming, Instant, ListenError, Listener, Provider, Refusal, RejectReason,
    parts::{LogPace, Rejected},
    thread,
};

use crate::{
    app::App,
    error::OpenError,
    slots::Slots,
    worker::{Station, WorkerHandle, inbox::Adopted},
};

/// Decides which peers may connect. Sees the hello and the peer's name. Admits the peer, or refuses it with a
/// reason and at most 132 bytes of its own. Runs on the accepting thread, so it must not block.
pub type Admit = Box<dyn FnMut(&Hello, &str) -> Result<(), Refusal> + Send>;

/// Hears once why an acceptor does not listen any more, unless it was stopped. Runs on the accepting thread as it ends.
pub type Lost = Box<dyn FnOnce(&str) + Send>;

/// How long one wait for a request lasts. Stopping takes at most this, and a whole shutdown less than 100 ms.
const WAIT: Duration = Duration::from_millis(50);
/// A listener that says it is broken is asked again so often, 10 ms later at first, and each time twice as late.
const TRIES: u32 = 7;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A request of a provider's listener.
type IncomingOf<P> = <<P as Provider>::Listener as Listener>::Incoming;

/// Between two looks whether a worker is there again.
const GONE_LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    accepted: AtomicU64,
    rejected: Arc<Rejected>,
    log: LogPace,
    /// Why it does not listen any more.
    lost: Mutex<Option<String>>,
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
        let stations = workers.into_iter().map(Station::from).collect();
        Self::spawn_with(listener, stations, Box::new(|_, _| Ok(())), Box::new(|_| {}))
    }

    /// Accepts the clients that `admit` lets in, each onto the worker with the fewest connections that is there then. One for
    /// which it panics is refused, and the next one is asked about again. `lost` hears when the thread ends for any other reason
    /// than [`Acceptor::stop`].
    ///
    /// # Errors
    /// When the thread cannot start.
    pub fn spawn_with<P: Provider, A: App>(
        listener: P::Listener,
        workers: Vec<Station<P, A>>,
        admit: Admit,
        lost: Lost,
    ) -> Result<Self, OpenError> {
        if workers.is_empty() {
            return Err(OpenError::Worker("there is none"));
        }
        let address = listener.address();
        let rejected = Arc::clone(listener.rejections());
        let shared = Arc::new(Shared { rejected, ..Shared::default() });
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn("gimmal-accept", move || run(listener, &workers, admit, &theirs, lost))
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

    /// Counts the requests that were refused, by cause: by the listener, by `accepted_max`, by the application, or
    /// because a resource was lacking.
    #[must_use]
    pub fn rejections(&self) -> &Rejected {
        &self.shared.rejected
    }

    /// Why it does not listen any more, though nobody stopped it: its listener broke, or its thread panicked.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.shared.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the thread stop listening, without waiting for it: a server with several listeners then waits once for all.
    pub fn signal_stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Stops listening, and waits for the thread. Established connections go on.
    pub fn stop(&mut self) {
        self.signal_stop();
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

/// The thread: accepts until it is stopped, and says why if it ends before.
fn run<P: Provider, A: App>(
    listener: P::Listener,
    stations: &[Station<P, A>],
    mut admit: Admit,
    shared: &Arc<Shared>,
    lost: Lost,
) {
    let ended = catch_unwind(AssertUnwindSafe(|| accept(listener, stations, &mut admit, shared)));
    let why = match ended {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("the accepting thread panicked: {}", said(&*panic)),
    };
    *shared.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
    lost(&why);
    tracing::error!(why, "no clients can connect any more");
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

fn accept<P: Provider, A: App>(
    mut listener: P::Listener,
    stations: &[Station<P, A>],
    admit: &mut Admit,
    shared: &Arc<Shared>,
) -> Result<(), ListenError> {
    let (mut turn, mut failures) = (0, 0);
    let slots = Slots::new(stations[0].handle().handshakes_max);
    while !shared.stop.load(Ordering::Relaxed) {
        if stations.iter().all(|station| station.handle().is_gone()) {
            // They have panicked, and their successors come soon: requests wait in the listener's backlog.
            std::thread::sleep(GONE_LOOK);
            continue;
        }
        if let Some(wait) = slots.wait(Instant::now()) {
            // Requests wait in the listener's backlog, which refuses what it cannot hold.
            std::thread::sleep(wait);
            continue;
        }
        let incoming = match listener.accept(WAIT) {
            Ok(incoming) => incoming,
            Err(error) if failures == TRIES => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the listener failed; trying again");
                std::thread::sleep(FIRST_PAUSE.saturating_mul(2_u32.pow(failures)));
                failures += 1;
                continue;
            }
        };
        failures = 0;
        let workers: Vec<_> =
            stations.iter().map(Station::handle).filter(|worker| !worker.is_gone()).collect();
        if let Some(incoming) = incoming
            && let Some(incoming) = let_in(incoming, &workers, admit, shared)
        {
            turn += 1;
            hand_on(incoming, &workers, turn, &slots, shared);
        }
    }
    Ok(())
}

/// Refuses a request beyond `accepted_max`, or that `admit` does not let in.
fn let_in<P: Provider, A: App>(
    incoming: IncomingOf<P>,
    workers: &[WorkerHandle<P, A>],
    admit: &mut Admit,
    shared: &Shared,
) -> Option<IncomingOf<P>> {
    let Some(most) = workers.first().map(|worker| worker.accepted_max) else {
        // The last one has just panicked.
        incoming.reject(RejectReason::Overloaded);
        return None;
    };
    let has: usize = workers.iter().map(WorkerHandle::counted).sum();
    let peer = incoming.peer();
    if most > 0 && has >= most {
        shared.rejected.note(RejectReason::Overloaded, || format!("{peer}: accepted_max is {most}"));
        incoming.reject(RejectReason::Overloaded);
        return None;
    }
    let refusal = match catch_unwind(AssertUnwindSafe(|| admit(incoming.hello(), &peer))) {
        Ok(Ok(())) => return Some(incoming),
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            if let Some(left_out) = shared.log.line(Instant::now()) {
                let panic = said(&*panic);
                tracing::error!(peer, panic, left_out, "refused: the server's admit function panicked");
            }
            RejectReason::Overloaded.into()
        }
    };
    shared.rejected.note(refusal.reason(), || peer);
    incoming.refuse(refusal);
    None
}

/// Accepts onto the worker with the fewest connections of those that took what they were handed before; among equals in turn.
fn hand_on<P: Provider, A: App>(
    incoming: IncomingOf<P>,
    workers: &[WorkerHandle<P, A>],
    turn: usize,
    slots: &Arc<Slots>,
    shared: &Arc<Shared>,
) {
    let peer = incoming.peer();
    let least = (0..workers.len())
        .map(|at| &workers[(at + turn) % workers.len()])
        .filter(|worker| worker.counted() < worker.connections)
        .min_by_key(|worker| (worker.inbox.is_full(), worker.inbox.untaken(), worker.counted()));
    let Some(worker) = least else {
        shared.rejected.note(RejectReason::Overloaded, || format!("{peer}: all have port.connections"));
        return incoming.reject(RejectReason::Overloaded);
    };
    let adopted = Adopted::accepted(slots.begin(Instant::now()), worker.duty.count());
    let (inbox, shared) = (Arc::clone(&worker.inbox), Arc::clone(shared));
    incoming.accept_then(&worker.gate, move |link| {
        let refused = match &link {
            Err(AcceptError::Rejected(reason)) => *reason,
            _ => RejectReason::Overloaded,
        };
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
                shared.rejected.note(refused, || peer.clone());
                if let Some(left_out) = shared.log.line(Instant::now()) {
                    tracing::warn!(peer, error, left_out, "not accepted");
                }
            }
        }
    });
}
