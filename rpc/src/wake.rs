//! Wakers are foreign code: a panic in one ends neither the thread that wakes, nor what else that thread serves.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;

/// Wakes a task. A panic of its waker is logged and goes no further.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("the waker of a task panicked: the task may never be polled again");
    }
}

/// Tasks of other threads whose calls have ended.
///
/// The worker wakes them one by one at the end of a turn. The first one to run wakes the others, on its own thread: that takes no
/// system call for each of them, and they run together.
#[derive(Debug)]
pub(crate) struct Woken(ArrayQueue<Waker>);

impl Default for Woken {
    fn default() -> Self {
        Self(ArrayQueue::new(WOKEN))
    }
}

/// More tasks than this are woken before the end of a turn.
const WOKEN: usize = 256;

impl Woken {
    #[inline]
    pub(crate) fn wake_all(&self) {
        while let Some(waker) = self.0.pop() {
            wake(waker);
        }
    }
}

/// The worker's end of [`Woken`].
#[derive(Debug)]
pub(crate) struct Waking {
    woken: Arc<Woken>,
    any: bool,
}

impl Waking {
    pub(crate) fn new(woken: &Arc<Woken>) -> Self {
        Self { woken: Arc::clone(woken), any: false }
    }

    #[inline]
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.any = true;
            if let Err(waker) = self.woken.0.push(waker) {
                wake(waker);
            }
        }
    }

    /// The turn is over.
    #[inline]
    pub(crate) fn wake_all(&mut self) {
        if std::mem::take(&mut self.any) {
            self.woken.wake_all();
        }
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        self.wake_all();
    }
}

/// Wakes the task that is registered in `waker`, if there is one.
#[inline]
pub(crate) fn rouse(waker: &AtomicWaker) {
    if let Some(waker) = waker.take() {
        wake(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Task {
        woken: AtomicUsize,
        /// What it does when it runs, which is at once.
        runs: Mutex<Option<Arc<Woken>>>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::SeqCst);
            let runs = self.runs.lock().unwrap().take();
            runs.iter().for_each(|woken| woken.wake_all());
        }
    }

    #[test]
    fn the_first_task_wakes_the_others_and_none_is_left() {
        let woken = Arc::new(Woken::default());
        let tasks: Vec<Arc<Task>> = (0..WOKEN + 3).map(|_| Arc::default()).collect();
        let mut waking = Waking::new(&woken);
        *tasks[0].runs.lock().unwrap() = Some(Arc::clone(&woken));
        waking.add(None);
        tasks.iter().for_each(|task| waking.add(Some(Waker::from(Arc::clone(task)))));
        let count = || tasks.iter().map(|task| task.woken.load(Ordering::SeqCst)).sum::<usize>();
        assert_eq!(count(), 3, "what finds no room is woken at once");
        waking.wake_all();
        assert_eq!(count(), tasks.len());
        waking.wake_all();
        assert_eq!(count(), tasks.len());
        // Those of a worker that ends.
        waking.add(Some(Waker::from(Arc::clone(&tasks[0]))));
        drop(waking);
        assert_eq!(count(), tasks.len() + 1);
    }
}
