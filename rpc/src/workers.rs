//! Worker threads with the RPC layer on them.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use gimmal_engine::{
    Act, Inline, Plan, StartError, WorkerHandle, Workers,
    transport::{Gate as _, Instant, UserMemory},
};

use crate::{
    config::Limits,
    node::{Command, Node, Reach, Shared},
    provider::Any,
    service::Registry,
    stats::{Counters, Stats},
};

/// One worker's handle, as a client or server keeps it.
pub(crate) type Handle = WorkerHandle<Any, Node>;

/// How long a worker has to answer, at least: its turn may be in a handler that blocks.
const ANSWER: Duration = Duration::from_millis(100);

/// A set of workers; dropping it stops them within a bound.
#[derive(Debug)]
pub(crate) struct WorkerSet {
    pub(crate) workers: Workers<Any, Node>,
    pub(crate) counters: Vec<Arc<Counters>>,
}

/// What one worker is made of.
fn parts(limits: &Limits, count: usize) -> (Vec<Arc<Reach>>, Vec<Arc<Counters>>) {
    let reaches = (0..count).map(|_| Reach::new(limits.tasks_max)).collect();
    (reaches, (0..count).map(|_| Arc::default()).collect())
}

impl WorkerSet {
    pub(crate) fn spawn(
        provider: &Any,
        plan: &Plan,
        limits: Limits,
        registry: Arc<Registry>,
        shared: Arc<Shared>,
    ) -> Result<Self, StartError> {
        let (reaches, counters) = parts(&limits, plan.config().workers);
        let (theirs, counted) = (reaches.clone(), counters.clone());
        let workers = Workers::spawn(provider, plan, move |index| {
            let (reach, counters) = (Arc::clone(&theirs[index]), Arc::clone(&counted[index]));
            Node::new(limits, Arc::clone(&registry), Arc::clone(&shared), reach, counters)
        })?;
        for (reach, handle) in reaches.iter().zip(workers.handles()) {
            reach.set(handle.clone());
        }
        Ok(Self { workers, counters })
    }

    /// The worker with the fewest connections.
    pub(crate) fn least(&self) -> &Handle {
        let handles = self.workers.handles();
        handles.iter().min_by_key(|handle| handle.load()).unwrap_or(&handles[0])
    }

    /// Has every peer told that this side takes no more calls, and waits for the work that there is: see [`Node::drain`].
    /// Returns whether every worker had done all of it by `deadline`.
    pub(crate) fn drain(&self, deadline: Instant) -> bool {
        let patience = deadline.max(Instant::now() + ANSWER);
        let ask = |handle: &Handle| {
            let (tell, told) = mpsc::sync_channel(1);
            // A full inbox empties soon, and it is asked again. A peer that is not told is refused, call by call.
            let _ = handle.submit(Command::Drain(tell));
            told
        };
        loop {
            let asked: Vec<mpsc::Receiver<bool>> = self.workers.handles().iter().map(ask).collect();
            let is_at_rest =
                |told: &mpsc::Receiver<bool>| told.recv_timeout(patience.remaining()) == Ok(true);
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
        sum(&self.counters)
    }

    pub(crate) fn user_memory(&self) -> UserMemory {
        let each = self.workers.handles().iter().map(|handle| handle.gate().user_memory());
        each.fold(UserMemory::default(), UserMemory::and)
    }
}

pub(crate) fn sum(counters: &[Arc<Counters>]) -> Stats {
    let mut stats = Stats::default();
    for counters in counters {
        counters.add_to(&mut stats);
    }
    stats
}

/// The same on the calling thread.
pub(crate) fn inline(
    provider: &Any,
    plan: &Plan,
    limits: Limits,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
) -> Result<(Inline<Any, Node>, Arc<Counters>), StartError> {
    let (reach, counters) = (Reach::new(limits.tasks_max), Arc::<Counters>::default());
    let node = Node::new(limits, registry, shared, Arc::clone(&reach), Arc::clone(&counters));
    let inline = Inline::new(provider, plan, node)?;
    reach.set(inline.handle());
    Ok((inline, counters))
}

/// Starts a call. One that is alone on its connection leaves at once, another one with the next turn, together with others.
#[inline]
pub(crate) fn start<T: Act<Node>>(inline: &mut Inline<Any, Node>, call: T) -> T::Outcome {
    let started = inline.with_later(call);
    if inline.app().is_alone() {
        inline.flush();
    }
    started
}
