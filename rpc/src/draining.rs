//! Word that a server shuts down, for all of its handlers that want it.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use crate::wake;

/// Something that happens once, and the tasks that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    number: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Signal {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Wakes all who wait, and keeps everybody from waiting.
    pub(crate) fn set(&self) {
        let mut waiting = self.waiting();
        self.is_set.store(true, Ordering::Relaxed);
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_values().for_each(wake::wake);
    }

    pub(crate) fn wait(self: &Arc<Self>) -> Draining {
        Draining { signal: Arc::clone(self), number: None }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets a signal when it is dropped.
pub(crate) struct SetOnDrop(pub(crate) Arc<Signal>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The future of [`Cx::draining`](crate::Cx::draining): it is ready when the server begins to shut down. Cancel safe.
#[must_use = "nothing is waited for until this is polled"]
pub struct Draining {
    signal: Arc<Signal>,
    /// Its place among those that wait.
    number: Option<u64>,
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Draining({})", self.signal.is_set())
    }
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut waiting = this.signal.waiting();
        if this.signal.is_set() {
            return Poll::Ready(());
        }
        let number = *this.number.get_or_insert_with(|| {
            waiting.number += 1;
            waiting.number
        });
        let replaced = waiting.wakers.insert(number, context.waker().clone());
        // A waker is the user's code: it is not dropped under the lock.
        drop(waiting);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.signal.waiting().wakers.remove(&number);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_who_wait_are_woken_once_it_is_set_and_nobody_is_left_behind() {
        let signal = Arc::<Signal>::default();
        let woken: [Arc<Woken>; 3] = Default::default();
        let mut waits: Vec<_> = woken.iter().map(|_| signal.wait()).collect();
        for (wait, woken) in waits.iter_mut().zip(&woken) {
            let waker = Waker::from(Arc::clone(woken));
            for _ in 0..2 {
                assert!(Pin::new(&mut *wait).poll(&mut Context::from_waker(&waker)).is_pending());
            }
        }
        drop(waits.remove(0));
        assert_eq!(signal.waiting().wakers.len(), 2);
        signal.set();
        assert_eq!([0, 1, 2].map(|at| woken[at].0.load(Ordering::Relaxed)), [false, true, true]);
        for mut wait in waits {
            assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
        assert!(signal.waiting().wakers.is_empty());
    }
}
