//! Wakes one sleeper; costs a fence and a load while it is awake.
//!
//! ```text
//!  sleeper:  armed = 1 ; fence ; look for work ; sleep        waker:  give work ; fence ; armed ? ring
//! ```
//! Of the two fences one comes first: either the sleeper sees the work, or the waker sees `armed`.
//!
//! A sleeper that is a task of an event loop says which: then a ring wakes that task. From the loop's own thread this is no system call.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task,
};

use atomic_waker::AtomicWaker;

use rustix::event::{EventfdFlags, eventfd};

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const AWAKE: u32 = 0;
const ARMED: u32 = 1;
/// A waker has seen [`ARMED`] and writes to the descriptor, now or soon.
const RUNG: u32 = 2;
/// As [`ARMED`], of an owner that sleeps as a task.
const TASK: u32 = 3;

/// Wakes the owner of a port from another thread, without a system call while the owner is awake.
pub type Waker = Arc<Doorbell>;

/// An eventfd that is only written when its owner sleeps.
#[derive(Debug)]
pub struct Doorbell {
    event: OwnedFd,
    armed: AtomicU32,
    /// Rings that the owner knows of and has not read from the descriptor; the owner's alone.
    unread: AtomicU64,
    /// The task as which its owner sleeps.
    task: AtomicWaker,
}

impl Doorbell {
    /// A doorbell whose owner is awake.
    ///
    /// # Errors
    /// When no descriptor can be had.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { event, armed: AtomicU32::new(AWAKE), unread: AtomicU64::new(0), task: AtomicWaker::new() })
    }

    /// Rings, after work was made visible.
    pub fn ring(&self) {
        if must_ring(&self.armed) {
            // EAGAIN means the counter is full: it is readable, which is all we want.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        } else if must_wake(&self.armed) && catch_unwind(AssertUnwindSafe(|| self.task.wake())).is_err() {
            // Foreign code: the panic is not of whoever rings.
            tracing::error!("the waker of a worker's task panicked: the task may never be polled again");
        }
    }

    /// Called by the owner after [`Doorbell::arm`], to sleep as `task`: the next ring wakes that, and the descriptor stays quiet.
    pub fn arm_task(&self, task: &task::Waker) {
        // A late wake of an earlier sleep may take the task out again: it wakes it, too.
        self.task.register(task);
        arm_task(&self.armed);
    }

    /// Called by the owner before it looks for work a last time and sleeps.
    pub fn arm(&self) {
        if arm(&self.armed) {
            // Of a sleep that was not disarmed.
            self.unread.store(self.unread.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Called by the owner after waking: rings are free again, and the descriptor is quiet. Where nobody rang, this is no
    /// system call.
    pub fn disarm(&self) {
        let unread = self.unread.load(Ordering::Relaxed) + u64::from(disarm(&self.armed));
        if unread == 0 {
            return;
        }
        // A ring of this sleep may be written after this read, and ends the next one then; it stays counted until it is read.
        let mut count = [0; 8];
        let read = rustix::io::read(&self.event, &mut count).map_or(0, |_| u64::from_ne_bytes(count));
        self.unread.store(unread.saturating_sub(read), Ordering::Relaxed);
    }
}

/// Whether the descriptor must be written after work was made visible: once for each sleep.
#[inline]
pub(super) fn must_ring(armed: &AtomicU32) -> bool {
    // SYNC POINT: doorbell armed. Pairs with the fence in `arm`.
    fence(Ordering::SeqCst);
    armed.load(Ordering::Relaxed) == ARMED
        && armed.compare_exchange(ARMED, RUNG, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Whether the owner's task must be woken: once for each sleep. Behind [`must_ring`], whose fence is this one's too.
pub(super) fn must_wake(armed: &AtomicU32) -> bool {
    // SYNC POINT: doorbell armed. Pairs with the store in `arm_task`.
    armed.load(Ordering::Relaxed) == TASK
        && armed.compare_exchange(TASK, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Whether a waker rings in an earlier sleep that was not disarmed.
pub(super) fn arm(armed: &AtomicU32) -> bool {
    let before = armed.swap(ARMED, Ordering::Relaxed);
    // SYNC POINT: doorbell armed. Pairs with the fence in `must_ring`.
    fence(Ordering::SeqCst);
    before == RUNG
}

/// From a sleep of the thread to one of the task, which is known. A ring since [`arm`] has written to the descriptor, which ends the
/// sleep, too.
pub(super) fn arm_task(armed: &AtomicU32) {
    // SYNC POINT: doorbell armed. Pairs with `must_wake`, behind which the task is found.
    let _ = armed.compare_exchange(ARMED, TASK, Ordering::Release, Ordering::Relaxed);
}

/// Whether a waker rings in this sleep.
pub(super) fn disarm(armed: &AtomicU32) -> bool {
    armed.swap(AWAKE, Ordering::Relaxed) == RUNG
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn readable(bell: &Doorbell) -> bool {
        let mut fds = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn rings_only_an_armed_owner() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        assert!(!readable(&bell));
        bell.arm();
        bell.ring();
        bell.ring();
        assert!(readable(&bell));
        bell.disarm();
        assert!(!readable(&bell));
    }

    /// A ring that is written after its sleep has ended ends the next one, and none after it.
    #[test]
    fn a_late_ring_ends_one_sleep_only() {
        let bell = Doorbell::new().unwrap();
        bell.arm();
        assert!(must_ring(&bell.armed));
        bell.disarm();
        rustix::io::write(&bell.event, &1u64.to_ne_bytes()).unwrap();
        bell.arm();
        assert!(readable(&bell));
        bell.ring();
        bell.disarm();
        assert!(!readable(&bell), "both rings are read");
        assert_eq!(bell.unread.load(Ordering::Relaxed), 0);
    }

    /// An owner that arms again without a disarm between still reads every ring.
    #[test]
    fn no_ring_of_a_sleep_that_was_not_disarmed_stays() {
        let bell = Doorbell::new().unwrap();
        for _ in 0..2 {
            bell.arm();
            bell.ring();
        }
        bell.disarm();
        assert!(!readable(&bell), "both rings are read");
        assert_eq!(bell.unread.load(Ordering::Relaxed), 0);
    }

    #[derive(Default)]
    struct Task(AtomicU32);

    impl task::Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A sleep as a task ends by that task, once; the next one may be another kind of sleep.
    #[test]
    fn a_task_is_woken_in_place_of_the_descriptor() {
        let (bell, task) = (Doorbell::new().unwrap(), Arc::<Task>::default());
        let (waker, woken) = (task::Waker::from(Arc::clone(&task)), || task.0.load(Ordering::Relaxed));
        for sleeps in 1..3 {
            bell.arm();
            bell.arm_task(&waker);
            bell.ring();
            bell.ring();
            assert!(woken() == sleeps && !readable(&bell));
            bell.disarm();
        }
        bell.ring();
        assert_eq!(woken(), 2, "an owner that is awake is left alone");
        bell.arm();
        bell.ring();
        bell.arm_task(&waker);
        assert!(woken() == 2 && readable(&bell), "what rang before the task was known ends the sleep too");
        bell.disarm();
        bell.arm();
        bell.ring();
        assert!(woken() == 2 && readable(&bell), "a sleep of the thread");
    }
}
