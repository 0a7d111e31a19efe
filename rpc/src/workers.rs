//! Worker threads with the RPC layer on them.

use std::{
    sync::{Arc, OnceLock, mpsc},
    time::Duration,
};

use gimmal_engine::{
    Inline, Plan, StartError, Station, WorkerHandle, Workers,
    transport::{
        ConnId, Exposed, Gate as _, Instant, Loan, LoanError, Negotiated, Provider, UserBytes, UserMemory,
    },
    worker::duty::DutySnapshot,
};

use crate::{
    cell::Pool,
    command::Command,
    config::Limits,
    here,
    late::{Asked, Late},
    node::Node,
    provider::Any,
    reach::{Reach, Worker},
    runtime::enter,
    service::Registry,
    shared::Shared,
    stats::{Counters, Stats},
    wake::Woken,
};

/// The way to one worker.
pub(crate) type Handle = WorkerHandle<Any, Node>;

/// Where a worker is found, and its successor when it has panicked.
pub(crate) type Place = Station<Any, Node>;

/// How long a worker has to answer, at least: its turn may be in a handler that blocks.
const ANSWER: Duration = Duration::from_millis(100);

/// How often, and how far apart, to look for the successor of a worker that has panicked.
const SUCCESSION_LOOKS: u32 = 200;
const SUCCESSION_LOOK: Duration = Duration::from_millis(10);

/// Offers a command to a worker, whose inbox may be full for a while.
#[inline]
pub(crate) fn offer(handle: &Handle, command: Command) -> Result<(), Command> {
    handle.offer(command, Duration::ZERO)
}

impl<P: Provider> Worker for WorkerHandle<P, Node> {
    fn submit(&self, command: Command) -> bool {
        Self::submit(self, command).is_ok()
    }

    fn ring(&self) -> bool {
        Self::ring(self)
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        Self::expose(self, conn, bytes)
    }

    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        Self::allocate(self, conn, bytes)
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        Self::lend(self, conn, bytes)
    }
}

/// A set of workers; dropping it stops them within a bound.
#[derive(Debug)]
pub(crate) struct WorkerSet {
    pub(crate) workers: Workers<Any, Node>,
    pub(crate) counters: Vec<Arc<Counters>>,
    pub(crate) woken: Arc<Woken>,
    /// Of all clients on them: one for each client would be most of what a client at rest keeps. None for a server.
    pool: OnceLock<Pool>,
    pool_size: usize,
    /// For each worker.
    late: Vec<Arc<Late>>,
}

impl WorkerSet {
    pub(crate) fn spawn(
        provider: &Any,
        plan: &Plan,
        limits: Limits,
        registry: Arc<Registry>,
        shared: Arc<Shared>,
    ) -> Result<Self, StartError> {
        let counters: Vec<Arc<Counters>> = (0..plan.config().workers).map(|_| Arc::default()).collect();
        let late: Vec<Arc<Late>> = counters.iter().map(|_| Arc::default()).collect();
        let (counted, asked) = (counters.clone(), late.clone());
        let (runtime, woken) = (shared.runtime.clone(), Arc::clone(&shared.woken));
        let within = move |run: &mut dyn FnMut()| enter(runtime.as_deref(), run);
        let workers = Workers::spawn_with(provider, plan, within, move |index, way: &Handle| {
            here::serve(&shared);
            let reach = Reach::new(limits.tasks_max, Arc::clone(&shared.drains));
            reach.set(way.clone());
            let (counters, late) = (Arc::clone(&counted[index]), Arc::clone(&asked[index]));
            Node::new(limits, Arc::clone(&registry), Arc::clone(&shared), reach, counters, late)
        })?;
        let pool_size = limits.window + limits.waiting_max.min(1024);
        Ok(Self { workers, counters, woken, pool: OnceLock::new(), pool_size, late })
    }

    /// Asks something of the worker of `handle` although its inbox is full. Of one that has panicked nothing is to be asked: its calls
    /// and connections have ended.
    #[cold]
    pub(crate) fn ask_late(&self, handle: &Handle, add: impl FnOnce(&mut Asked)) {
        let mut places = self.workers.stations().iter().zip(&self.late);
        if let Some((_, late)) = places.find(|(place, _)| place.handle().is_same(handle)) {
            late.ask(add);
            handle.ring();
        }
    }

    /// Has the worker of `handle` say goodbye on a connection of ours, however full its inbox is: it may have other clients, and outlive
    /// this one. `None`: there never was one.
    pub(crate) fn close(&self, handle: &Handle, conn: ConnId, negotiated: Option<&Arc<Negotiated>>) {
        if let Some(negotiated) = negotiated
            && handle.close(conn).is_err()
        {
            self.ask_late(handle, |asked| asked.closes.push((conn, Arc::clone(negotiated))));
        }
    }

    /// Places for the answers of handed-off calls.
    pub(crate) fn pool(&self) -> &Pool {
        self.pool.get_or_init(|| Pool::new(self.pool_size))
    }

    /// Where the worker with the fewest connections is. One that has just panicked is waited for, for a moment, if there is no
    /// other.
    pub(crate) fn least(&self) -> Place {
        let places = self.workers.stations();
        let least = || {
            places.iter().min_by_key(|place| (place.handle().is_gone(), place.handle().duty().connections))
        };
        for _ in 0..SUCCESSION_LOOKS {
            if least().is_some_and(|place| !place.handle().is_gone()) {
                break;
            }
            std::thread::sleep(SUCCESSION_LOOK);
        }
        least().unwrap_or(&places[0]).clone()
    }

    /// What the last worker that panicked said.
    pub(crate) fn last_panic(&self) -> Option<String> {
        self.workers.stations().iter().find_map(Place::last_panic)
    }

    /// Has every peer told that this side takes no more calls, and waits for the work that there is: see [`Node::drain`].
    /// Returns whether every worker had done all of it by `deadline`.
    pub(crate) fn drain(&self, deadline: Instant) -> bool {
        let patience = deadline.max(Instant::now() + ANSWER);
        let ask = |handle: &Handle| {
            let (tell, answer) = mpsc::sync_channel(1);
            // A full inbox empties soon, and it is asked again. A peer that is not told is refused, call by call.
            let _ = handle.submit(Command::Drain(tell));
            answer
        };
        loop {
            let asked: Vec<mpsc::Receiver<bool>> = self.workers.handles().iter().map(ask).collect();
            let is_at_rest =
                |answer: &mpsc::Receiver<bool>| answer.recv_timeout(patience.remaining()) == Ok(true);
            if asked.iter().all(is_at_rest) {
                return true;
            }
            if deadline.has_passed() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats::sum(&self.counters)
    }

    pub(crate) fn duty(&self) -> Vec<DutySnapshot> {
        self.workers.handles().into_iter().map(|handle| handle.duty()).collect()
    }

    pub(crate) fn user_memory(&self) -> UserMemory {
        let each = self.workers.handles().into_iter().map(|handle| handle.gate().user_memory());
        each.fold(UserMemory::default(), UserMemory::and)
    }
}

/// Starts the worker on the calling thread.
pub(crate) fn inline(
    provider: &Any,
    plan: &Plan,
    limits: Limits,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
) -> Result<(Inline<Any, Node>, Arc<Counters>), StartError> {
    let reach = Reach::new(limits.tasks_max, Arc::clone(&shared.drains));
    let counters = Arc::<Counters>::default();
    let node = Node::new(limits, registry, shared, Arc::clone(&reach), Arc::clone(&counters), Arc::default());
    let inline = Inline::new(provider, plan, node)?;
    reach.set(inline.handle());
    Ok((inline, counters))
}
