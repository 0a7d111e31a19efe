//! Handlers that are pending on a worker.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::transport::{ConnId, time};

use crate::{
    config::Limits,
    id::CallId,
    method::Method,
    reach::{Reach, TaskWake},
    runtime::{HasEnded, Runtime},
    stats::Counters,
    status::{Code, Fate},
    task::BoxTask,
};

/// What polling a handler came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Pending,
    Ready,
    Failed(Failure),
}

/// Why a handler ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Panicked,
    /// It panicked, because it used tokio in a server without a runtime.
    NoRuntime,
    /// The server's runtime has ended.
    RuntimeEnded,
}

impl Failure {
    /// The failure behind a panic. Tokio reports a missing runtime in no other way.
    pub(crate) fn of(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let words = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        if words.contains("must be called from the context of a Tokio 1.x runtime") {
            Self::NoRuntime
        } else if panic.is::<HasEnded>()
            || words.contains("Tokio 1.x context was found, but it is being shutdown")
        {
            Self::RuntimeEnded
        } else {
            Self::Panicked
        }
    }

    pub(crate) const fn is_panic(self) -> bool {
        !matches!(self, Self::RuntimeEnded)
    }

    /// What the caller is told.
    pub(crate) const fn status(self) -> (Code, Fate, &'static str) {
        match self {
            Self::Panicked => (Code::Internal, Fate::Ran, "the handler panicked"),
            Self::NoRuntime => (
                Code::Internal,
                Fate::Ran,
                "the handler panicked: it uses tokio, and its server has no runtime; give it one with ServerBuilder::runtime",
            ),
            Self::RuntimeEnded => (Code::Unavailable, Fate::MaybeRan, "the runtime of the server has ended"),
        }
    }
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
        Self { places: Vec::new(), free: Vec::new(), one_way: 0, max, reach, runtime, slow_poll, counters }
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
        tracing::warn!(%method, ms, "a handler blocked its worker: await there, or hand the work to another thread");
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
