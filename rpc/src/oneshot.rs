//! One value from another thread to a task.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use gimmal_engine::transport::sync::once::take_or_register;

use crate::wake::rouse;

#[derive(Debug)]
struct Slot<T> {
    value: ArrayQueue<T>,
    has_no_sender: AtomicBool,
    waker: AtomicWaker,
}

/// Gives the value. When it is dropped without, the receiver gets `None`.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Slot<T>>);

/// A future of the value. Cancel safe: polled by reference, the value is not lost.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Slot<T>>);

pub(crate) fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let has_no_sender = AtomicBool::new(false);
    let slot = Arc::new(Slot { value: ArrayQueue::new(1), has_no_sender, waker: AtomicWaker::new() });
    (Sender(Arc::clone(&slot)), Receiver(slot))
}

impl<T> Sender<T> {
    /// Gives `value`; only the first one counts.
    pub(crate) fn send(&self, value: T) {
        let _ = self.0.value.push(value);
        rouse(&self.0.waker);
    }

    /// Whether anybody still waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // SYNC POINT: oneshot without sender. A value that was given before is seen.
        self.0.has_no_sender.store(true, Ordering::Release);
        rouse(&self.0.waker);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let slot = &*self.0;
        let take = || {
            // SYNC POINT: oneshot without sender. Read before the value: nothing is given after it.
            let is_last = slot.has_no_sender.load(Ordering::Acquire);
            slot.value.pop().map(Some).or_else(|| is_last.then_some(None))
        };
        take_or_register(take, || slot.waker.register(context.waker())).map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::block;

    fn received<T>(mut receiver: Receiver<T>) -> Option<T> {
        block(|context| Pin::new(&mut receiver).poll(&mut Context::from_waker(context.waker())))
    }

    #[test]
    fn a_value_is_received_or_that_there_is_none() {
        let (sender, receiver) = oneshot();
        let giver = std::thread::spawn(move || sender.send(7));
        assert_eq!(received(receiver), Some(7));
        giver.join().unwrap();
        let (sender, receiver) = oneshot::<u8>();
        assert!(sender.is_wanted());
        let giver = std::thread::spawn(move || drop(sender));
        assert_eq!(received(receiver), None);
        giver.join().unwrap();
        let (sender, receiver) = oneshot::<u8>();
        drop(receiver);
        assert!(!sender.is_wanted());
        sender.send(1);
    }
}
