//! What loom knows in place of `crossbeam` and `atomic-waker`: no stronger than what those promise.

use std::{ptr, task::Waker};

use loom::sync::{
    Mutex,
    atomic::{AtomicPtr, Ordering},
};

/// Stands for crossbeam's, which is one word here.
pub(super) struct AtomicCell<T>(T::Word)
where
    T: Boxed;

pub(super) trait Boxed {
    type Word;
}

impl<T> Boxed for Option<Box<T>> {
    type Word = Word<T>;
}

pub(super) struct Word<T>(AtomicPtr<T>);

/// Whether the model has failed: loom's parts are not to be used any more.
pub(super) fn thread_panics() -> bool {
    std::thread::panicking()
}

fn boxed<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: each pointer in a word comes from a box, and leaves the word, once, to be one again.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

impl<T> AtomicCell<Option<Box<T>>> {
    pub(super) fn new(value: Option<Box<T>>) -> Self {
        Self(Word(AtomicPtr::new(value.map_or(ptr::null_mut(), Box::into_raw))))
    }

    fn swap(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        boxed((self.0).0.swap(value.map_or(ptr::null_mut(), Box::into_raw), Ordering::AcqRel))
    }

    pub(super) fn store(&self, value: Option<Box<T>>) {
        drop(self.swap(value));
    }

    pub(super) fn take(&self) -> Option<Box<T>> {
        // A swap always sees the last store in loom. A processor may have it before a store that nothing orders before it.
        if (self.0).0.load(Ordering::Relaxed).is_null() { None } else { self.swap(None) }
    }
}

impl<T> Drop for Word<T> {
    fn drop(&mut self) {
        // A model that has failed is over.
        if !thread_panics() {
            drop(boxed(self.0.with_mut(|pointer| *pointer)));
        }
    }
}

/// Stands for `atomic_waker`'s: what was registered last is taken out, once.
pub(super) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(super) fn register(&self, waker: &Waker) {
        let last = self.0.lock().unwrap().replace(waker.clone());
        drop(last);
    }

    pub(super) fn take(&self) -> Option<Waker> {
        self.0.lock().unwrap().take()
    }
}
