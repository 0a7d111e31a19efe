//! How other threads reach a worker without knowing its provider: handlers that wake, loans, commands.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Wake,
};

use crossbeam::queue::{ArrayQueue, SegQueue};
use gimmal_engine::transport::{ConnId, Exposed, Loan, LoanError, UserBytes};

use crate::{
    cell::{CallCell, Responder},
    command::Command,
    draining::Signal,
    error::TransportError,
    memory::Shown,
    status::Fate,
    stream::{Lane, Mover},
};

/// Lanes that wait for their worker without an allocation.
const LANES: usize = 1024;

/// A worker's handle without its provider.
pub(crate) trait Worker: Send + Sync {
    /// Returns whether the inbox had room.
    fn submit(&self, command: Command) -> bool;
    /// Has it take a turn; whether it was there.
    fn ring(&self) -> bool;
    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError>;
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError>;
    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError>;
}

/// One worker, from wherever a handler runs.
pub(crate) struct Reach {
    /// Handlers that were woken; each is in it at most once, so it is never full.
    ready: ArrayQueue<u32>,
    /// Lanes whose users did something; each is in it at most once.
    lanes: ArrayQueue<Arc<Lane>>,
    /// Those that found no room in it: a place there costs no allocation.
    more_lanes: SegQueue<Arc<Lane>>,
    worker: OnceLock<Box<dyn Worker>>,
    draining: Arc<Signal>,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}

impl Reach {
    pub(crate) fn new(tasks_max: usize, draining: Arc<Signal>) -> Arc<Self> {
        let (ready, lanes) = (ArrayQueue::new(tasks_max), ArrayQueue::new(LANES));
        Arc::new(Self { ready, lanes, more_lanes: SegQueue::new(), worker: OnceLock::new(), draining })
    }

    /// Tells where the worker is; once, right after it started.
    pub(crate) fn set(&self, worker: impl Worker + 'static) {
        let _ = self.worker.set(Box::new(worker));
    }

    pub(crate) fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        let worker = self.worker.get().ok_or(LoanError::Closed)?;
        // A provider may not lend nothing; one byte of which none is used is the same.
        let loan = worker.allocate(conn, bytes.max(1))?;
        Ok(loan.truncate(bytes))
    }

    pub(crate) fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        let worker = self.worker.get().ok_or(LoanError::Closed)?;
        worker.lend(conn, bytes)
    }

    pub(crate) fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        self.worker.get().ok_or(LoanError::Closed)?.expose(conn, bytes)
    }

    /// Tells the peer of `conn` where `exposed` is; the cell ends with what the peer needs to use it.
    pub(crate) fn show(
        &self,
        conn: ConnId,
        exposed: &Arc<Exposed>,
    ) -> Result<Arc<CallCell<Shown>>, TransportError> {
        let cell = Arc::new(CallCell::new());
        let command = Command::Show(conn, Arc::clone(exposed), Responder::new(&cell));
        match self.worker.get() {
            Some(worker) if worker.submit(command) => Ok(cell),
            _ => Err(TransportError::Worker { why: "its inbox is full", fate: Fate::NotRun }),
        }
    }

    /// Has the worker look at what was woken; whether it was there.
    fn ring(&self) -> bool {
        self.worker.get().is_none_or(|worker| worker.ring())
    }

    /// Forgets lanes that no worker will look at: each leads to this, and would keep it.
    pub(crate) fn forget_lanes(&self) {
        while self.pop_lane().is_some() {}
    }

    pub(crate) fn pop_ready(&self) -> Option<u32> {
        self.ready.pop()
    }

    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.lanes.is_empty()
    }

    pub(crate) fn pop_lane(&self) -> Option<Arc<Lane>> {
        let lane = self.lanes.pop().or_else(|| self.more_lanes.pop())?;
        // One for one: while some wait in the second queue, the first is not empty, which is what `has_ready` looks at.
        if let Some(next) = self.more_lanes.pop() {
            self.put_lane(next);
        }
        Some(lane)
    }

    fn put_lane(&self, mut lane: Arc<Lane>) {
        while let Err(left) = self.lanes.push(lane) {
            self.more_lanes.push(left);
            // The worker may have emptied the first queue since, and then looks at none: the push and this look against its pop there
            // and its look here.
            if !self.lanes.is_empty() {
                return;
            }
            let Some(next) = self.more_lanes.pop() else { return };
            lane = next;
        }
    }
}

impl Mover for Reach {
    fn look_at(&self, lane: Arc<Lane>) {
        self.put_lane(lane);
        if !self.ring() {
            self.forget_lanes();
        }
    }

    fn loan(&self, conn: ConnId, bytes: usize) -> Option<Loan> {
        self.allocate(conn, bytes).ok()
    }

    fn draining(&self) -> &Arc<Signal> {
        &self.draining
    }
}

/// The waker of a place for handlers. It outlives the handlers that use it: a late wake only makes the worker look.
#[derive(Debug)]
pub(crate) struct TaskWake {
    index: u32,
    queued: AtomicBool,
    reach: Arc<Reach>,
}

impl TaskWake {
    pub(crate) fn new(index: u32, reach: &Arc<Reach>) -> Arc<Self> {
        Arc::new(Self { index, queued: AtomicBool::new(false), reach: Arc::clone(reach) })
    }

    /// After the place was taken out of the queue, before its handler is polled: wakes from now on count again.
    pub(crate) fn unqueue(&self) {
        // SYNC POINT: handler woken. What was done before the wake is seen by the poll after this.
        self.queued.swap(false, Ordering::AcqRel);
    }
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SYNC POINT: handler woken. Pairs with `unqueue`.
        if !self.queued.swap(true, Ordering::AcqRel) {
            let _ = self.reach.ready.push(self.index);
            self.reach.ring();
        }
    }
}
