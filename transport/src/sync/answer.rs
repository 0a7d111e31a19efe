//! The place of one answer that another thread gives, and of a part that may precede it.
//!
//! ```text
//!  worker:  put_first? ; take_waker ; put ; take_waker        caller:  poll: pop ; register ; pop again ; sleep
//! ```
//! One worker gives, and one caller at a time takes. A place whose answer was taken can be used for the next one, and has the memory of
//! the last one for it.

#[cfg(all(test, loom))]
mod loom_calls;
#[cfg(all(test, loom))]
mod loom_parts;

use std::{
    fmt,
    task::{Context, Poll, Waker},
};

#[cfg(not(all(test, loom)))]
use atomic_waker::AtomicWaker;
#[cfg(not(all(test, loom)))]
use crossbeam::atomic::AtomicCell;

#[cfg(all(test, loom))]
use self::loom_parts::{AtomicCell, AtomicWaker};
use super::{
    atomic::{AtomicBool, Ordering},
    once::take_or_register,
};

/// The place of one answer.
pub struct Answer<T> {
    /// Something may be there: a look at an empty place is a load.
    is_filled: AtomicBool,
    answer: AtomicCell<Option<Box<Option<T>>>>,
    /// The memory of the answer before, for the next one.
    spare: AtomicCell<Option<Box<Option<T>>>>,
    /// What comes before the answer, of the few that have that.
    first: AtomicCell<Option<Box<T>>>,
    waker: AtomicWaker,
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("is_filled", &self.is_filled).finish_non_exhaustive()
    }
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        let (is_filled, waker) = (AtomicBool::new(false), AtomicWaker::new());
        let (answer, spare, first) = (AtomicCell::new(None), AtomicCell::new(None), AtomicCell::new(None));
        Self { is_filled, answer, spare, first, waker }
    }
}

// Always inlined but for `pop`: each has one caller on the way of a call, which is a function of its own.
impl<T> Answer<T> {
    /// Puts the answer there. Its taker is woken with [`take_waker`](Self::take_waker) then.
    #[inline(always)]
    pub fn put(&self, answer: T) {
        let mut place = self.spare.take().unwrap_or_default();
        *place = Some(answer);
        self.answer.store(Some(place));
        // SYNC POINT: answer filled. Pairs with `pop`.
        self.is_filled.store(true, Ordering::Release);
    }

    /// Puts something there that precedes the answer, at most once. Its taker is woken as after [`put`](Self::put).
    #[inline(always)]
    pub fn put_first(&self, first: T) {
        self.first.store(Some(Box::new(first)));
        // SYNC POINT: answer filled. Pairs with `pop`.
        self.is_filled.store(true, Ordering::Release);
    }

    /// Takes the answer, if it is there; what precedes it is taken before.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        // SYNC POINT: answer filled. Pairs with the puts: this swap sees what was put before the flag, and what is put later says so again.
        if !self.is_filled.load(Ordering::Relaxed) || !self.is_filled.swap(false, Ordering::AcqRel) {
            return None;
        }
        if let Some(first) = self.first.take() {
            // The answer may be here, too. A store might take the place of the flag of an answer that is put now, and the next swap
            // would not see that: this one does.
            self.is_filled.swap(true, Ordering::AcqRel);
            return Some(*first);
        }
        let mut place = self.answer.take()?;
        let answer = place.take();
        self.spare.store(Some(place));
        answer
    }

    /// Takes what [`pop`](Self::pop) takes, or has the task woken when something is put there. The last task that asked is woken.
    #[inline(always)]
    pub fn poll(&self, context: &Context<'_>) -> Poll<T> {
        take_or_register(|| self.pop(), || self.waker.register(context.waker()))
            .map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the task that waits, to be woken, after something was put there.
    #[inline(always)]
    #[must_use = "somebody may wait for it"]
    pub fn take_waker(&self) -> Option<Waker> {
        self.waker.take()
    }
}
