//! Wakers are foreign code: a panic in one ends neither the thread that wakes, nor what else that thread serves.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use atomic_waker::AtomicWaker;

/// Wakes a task. A panic of its waker is logged and goes no further.
pub(crate) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("the waker of a task panicked: the task may never be polled again");
    }
}

/// Wakes the task that is registered in `waker`, if there is one.
#[inline]
pub(crate) fn rouse(waker: &AtomicWaker) {
    if let Some(waker) = waker.take() {
        wake(waker);
    }
}
