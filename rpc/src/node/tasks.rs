//! Handlers that are pending on a worker.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::transport::{ConnId, Instant, parts::LogPace, time};

use super::failure::Failure;
use crate::{
    config::Limits,
    id::CallId,
    method::Method,
    reach::{Reach, TaskWake},
    runtime::Runtime,
    stats::Counters,
    task::BoxTask,
};

/// What polling a handler came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Pending,
    Ready,
    Failed(Failure),
}

/// Polls a handler; a panic stays in here.
fn poll(task: &mut BoxTask, waker: &Waker) -> Polled {
    let mut context = Context::from_waker(waker);
    match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context))) {
        Ok(Poll::Ready(())) => Polled::Ready,
        Ok(Poll::Pending) => Polled::Pending,
        Err(panic) => Polled::Failed(Failure::of(&*panic)),
    }
}

/// Drops a handler; a panic stays in here too. Returns whether there was none.
pub(crate) fn discard(task: BoxTask) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(task))).is_ok()
}

struct Place {
    wake: Arc<TaskWake>,
    waker: Waker,
    task: Option<(BoxTask, Served)>,
}

/// Whom a pending handler serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) conn: ConnId,
    pub(crate) slot: u32,
    pub(crate) method: &'static Method,
}

impl Served {
    /// Whether nobody waits for it.
    pub(crate) const fn is_one_way(&self) -> bool {
        self.slot == CallId::NONE.slot
    }
}

/// A slab of pending handlers; places and their wakers are used again.
pub(crate) struct Tasks {
    places: Vec<Place>,
    free: Vec<u32>,
    /// How many of them are of one-way requests.
    one_way: usize,
    max: usize,
    reach: Arc<Reach>,
    runtime: Option<Arc<dyn Runtime>>,
    /// How long a poll may take before it is reported; zero: as long as it likes.
    slow_poll: Duration,
    counters: Arc<Counters>,
    /// Paces the lines about handlers, of which peers cause as many as they like.
    log: LogPace,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tasks({} of {})", self.len(), self.max)
    }
}

impl Tasks {
    pub(crate) fn new(
        limits: &Limits,
        reach: Arc<Reach>,
        runtime: Option<Arc<dyn Runtime>>,
        counters: Arc<Counters>,
    ) -> Self {
        let Limits { tasks_max: max, slow_poll, .. } = *limits;
        // Without a runtime a poll costs no look at the clock.
        let slow_poll = if runtime.is_some() { slow_poll } else { Duration::ZERO };
        Self {
            places: Vec::new(),
            free: Vec::new(),
            one_way: 0,
            max,
            reach,
            runtime,
            slow_poll,
            counters,
            log: LogPace::default(),
        }
    }

    /// To be called before a handler is polled. Returns what is to be given to [`Tasks::polled`].
    #[inline]
    pub(crate) fn before_poll(&self) -> Duration {
        if let Some(runtime) = &self.runtime {
            runtime.before_poll();
        }
        if self.slow_poll.is_zero() { Duration::ZERO } else { time::coarse() }
    }

    /// To be called after a handler was polled. Reports one that blocked its worker.
    #[inline]
    pub(crate) fn polled(&self, began: Duration, method: &Method) {
        if !self.slow_poll.is_zero() {
            let took = time::coarse().saturating_sub(began);
            if took >= self.slow_poll {
                self.was_slow(took, method);
            }
        }
    }

    #[cold]
    fn was_slow(&self, took: Duration, method: &Method) {
        self.counters.slow_polls.increment();
        let ms = took.as_millis();
        if let Some(left_out) = self.log_line() {
            tracing::warn!(%method, ms, left_out, "a handler blocked its worker: await there, or hand the work to another thread");
        }
    }

    /// Returns whether a handler may be logged now, and how many lines were left out since the last one.
    #[cold]
    pub(crate) fn log_line(&self) -> Option<u64> {
        self.log.line(Instant::now())
    }

    /// Handlers of one-way requests among them.
    pub(crate) const fn one_way(&self) -> usize {
        self.one_way
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// A free place; `None` when `tasks_max` are pending. Not taken until [`Tasks::keep`].
    #[inline]
    pub(crate) fn place(&mut self) -> Option<u32> {
        self.free.last().copied().or_else(|| self.grow())
    }

    /// Wakes what is in a place.
    #[inline]
    pub(crate) fn waker(&self, index: u32) -> &Waker {
        &self.places[index as usize].waker
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        if self.places.len() >= self.max {
            return None;
        }
        let index = u32::try_from(self.places.len()).ok()?;
        let wake = TaskWake::new(index, &self.reach);
        let waker = Waker::from(Arc::clone(&wake));
        self.places.push(Place { wake, waker, task: None });
        self.free.push(index);
        Some(index)
    }

    /// Keeps a pending handler in the place that [`Tasks::place`] gave last.
    ///
    /// # Panics
    /// When it gave another one since: two handlers in one place would be worse.
    pub(crate) fn keep(&mut self, index: u32, task: BoxTask, served: Served) {
        assert_eq!(self.free.pop(), Some(index), "nobody takes a place while a handler is polled first");
        self.one_way += usize::from(served.is_one_way());
        self.places[index as usize].task = Some((task, served));
    }

    /// The handler in a place; it is free then.
    pub(crate) fn take(&mut self, index: u32) -> Option<(BoxTask, Served)> {
        let taken = self.places.get_mut(index as usize)?.task.take()?;
        self.free.push(index);
        self.one_way -= usize::from(taken.1.is_one_way());
        Some(taken)
    }

    /// All pending handlers.
    pub(crate) fn take_all(&mut self) -> Vec<(BoxTask, Served)> {
        (0..u32::MAX).take(self.places.len()).filter_map(|index| self.take(index)).collect()
    }

    /// Polls the handler of a place that was woken. When it is not pending any more it is returned with whom it serves.
    pub(crate) fn wake(&mut self, index: u32) -> Option<(BoxTask, Served, Polled)> {
        let began = self.before_poll();
        let place = self.places.get_mut(index as usize)?;
        place.wake.unqueue();
        let (task, served) = place.task.as_mut()?;
        let (polled, method) = (poll(task, &place.waker), served.method);
        self.polled(began, method);
        if polled == Polled::Pending {
            return None;
        }
        self.take(index).map(|(task, served)| (task, served, polled))
    }
}
