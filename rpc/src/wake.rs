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

/// Tasks of other threads whose calls have ended, and which are still to be woken.
///
/// A task that runs wakes all of them, on its own thread: that takes no system call for each of them, and they run together. While no
/// task runs, the worker wakes them; see [`Waking::end_turn`].
#[derive(Debug)]
pub(crate) struct Woken(ArrayQueue<Waker>);

impl Default for Woken {
    fn default() -> Self {
        Self(ArrayQueue::new(WOKEN))
    }
}

/// More tasks than this are woken at once.
const WOKEN: usize = 256;

/// As many tasks are woken together, at most. More would hardly save time: each has a 64th of a system call.
const TOGETHER: usize = 64; // ledger: woken_together

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
    /// Tasks that were added since the worker last woke them: now, and when the last turn ended.
    held: usize,
    held_before: usize,
    /// As many wait for further turns, at most. On a thread of the caller's, which may take no other turn for long, none does.
    together: usize,
}

impl Waking {
    pub(crate) fn new(woken: &Arc<Woken>, is_worker: bool) -> Self {
        let together = if is_worker { TOGETHER } else { 1 };
        Self { woken: Arc::clone(woken), held: 0, held_before: 0, together }
    }

    #[inline]
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.held += 1;
            if let Err(waker) = self.woken.0.push(waker) {
                wake(waker);
            }
        }
    }

    /// Ends a turn behind which `live` calls are in flight. Returns whether tasks wait for the end of another turn.
    ///
    /// Waking a sleeping thread takes a system call, and two switches of threads where it shares the worker's core. So tasks are woken
    /// together: when a turn ended no call, when no call is in flight any more, or when many wait.
    #[inline]
    pub(crate) fn end_turn(&mut self, live: usize) -> bool {
        let waits = live > 0 && self.held > self.held_before && self.held < self.together;
        if waits {
            self.held_before = self.held;
        } else {
            self.wake_all();
        }
        waits
    }

    #[inline]
    fn wake_all(&mut self) {
        if std::mem::take(&mut self.held) > 0 {
            self.held_before = 0;
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
        let mut waking = Waking::new(&woken, true);
        *tasks[0].runs.lock().unwrap() = Some(Arc::clone(&woken));
        waking.add(None);
        tasks.iter().for_each(|task| waking.add(Some(Waker::from(Arc::clone(task)))));
        let count = || tasks.iter().map(|task| task.woken.load(Ordering::SeqCst)).sum::<usize>();
        assert_eq!(count(), 3, "what finds no room is woken at once");
        assert!(!waking.end_turn(0));
        assert_eq!(count(), tasks.len());
        assert!(!waking.end_turn(0));
        assert_eq!(count(), tasks.len());
        // Those of a worker that ends.
        waking.add(Some(Waker::from(Arc::clone(&tasks[0]))));
        drop(waking);
        assert_eq!(count(), tasks.len() + 1);
    }

    #[test]
    fn tasks_are_woken_together_while_answers_arrive() {
        let mut waking = Waking::new(&Arc::default(), true);
        let task = Arc::<Task>::default();
        let add = |waking: &mut Waking| waking.add(Some(Waker::from(Arc::clone(&task))));
        let woken = || task.woken.load(Ordering::SeqCst);
        add(&mut waking);
        assert!(waking.end_turn(1));
        assert_eq!(woken(), 0, "another answer may follow at once");
        add(&mut waking);
        assert!(!waking.end_turn(0));
        assert_eq!(woken(), 2, "every call has ended");
        add(&mut waking);
        assert!(waking.end_turn(1));
        assert!(!waking.end_turn(1));
        assert_eq!(woken(), 3, "the last turn ended no call");
        let turns = (1..).take_while(|_| {
            add(&mut waking);
            waking.end_turn(1000)
        });
        assert_eq!((turns.count() + 1, woken()), (TOGETHER, 3 + TOGETHER), "no task waits for ever");
    }
}
