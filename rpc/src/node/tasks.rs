//! Handlers that are pending on a worker.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use gimmal_engine::transport::ConnId;

use super::reach::{Reach, TaskWake};
use crate::task::BoxTask;

/// What polling a handler came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Pending,
    Ready,
    Panicked,
}

/// Polls a handler; a panic stays in here.
pub(crate) fn poll(task: &mut BoxTask, waker: &Waker) -> Polled {
    let mut context = Context::from_waker(waker);
    match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context))) {
        Ok(Poll::Ready(())) => Polled::Ready,
        Ok(Poll::Pending) => Polled::Pending,
        Err(_) => Polled::Panicked,
    }
}

/// Drops a handler; a panic stays in here too. Returns whether there was none.
pub(crate) fn discard(task: BoxTask) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(task))).is_ok()
}

struct Place {
    wake: Arc<TaskWake>,
    waker: Waker,
    task: Option<BoxTask>,
    conn: ConnId,
    slot: u32,
}

/// A slab of pending handlers; places and their wakers are used again.
pub(crate) struct Tasks {
    places: Vec<Place>,
    free: Vec<u32>,
    max: usize,
    reach: Arc<Reach>,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tasks({} of {})", self.len(), self.max)
    }
}

impl Tasks {
    pub(crate) fn new(max: usize, reach: Arc<Reach>) -> Self {
        Self { places: Vec::new(), free: Vec::new(), max, reach }
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
        self.places.push(Place { wake, waker, task: None, conn: ConnId::new(0, 0), slot: 0 });
        self.free.push(index);
        Some(index)
    }

    /// Keeps a pending handler in the place that [`Tasks::place`] gave last.
    ///
    /// # Panics
    /// When it gave another one since: two handlers in one place would be worse.
    pub(crate) fn keep(&mut self, index: u32, task: BoxTask, conn: ConnId, slot: u32) {
        assert_eq!(self.free.pop(), Some(index), "nobody takes a place while a handler is polled first");
        let place = &mut self.places[index as usize];
        place.task = Some(task);
        place.conn = conn;
        place.slot = slot;
    }

    /// The handler in a place; it is free then.
    pub(crate) fn take(&mut self, index: u32) -> Option<BoxTask> {
        let task = self.places.get_mut(index as usize)?.task.take()?;
        self.free.push(index);
        Some(task)
    }

    /// Polls the handler of a place that was woken. When it is not pending any more it is returned with whom it serves.
    pub(crate) fn wake(&mut self, index: u32) -> Option<(ConnId, u32, BoxTask, Polled)> {
        let place = self.places.get_mut(index as usize)?;
        place.wake.unqueue();
        let polled = poll(place.task.as_mut()?, &place.waker);
        if polled == Polled::Pending {
            return None;
        }
        let (conn, slot) = (place.conn, place.slot);
        self.take(index).map(|task| (conn, slot, task, polled))
    }
}
