//! Wakes one sleeper; costs a fence and a load while it is awake.
//!
//! ```text
//!  sleeper:  armed = 1 ; fence ; look for work ; sleep        waker:  give work ; fence ; armed ? ring
//! ```
//! Of the two fences one comes first: either the sleeper sees the work, or the waker sees `armed`.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::event::{EventfdFlags, eventfd};

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const AWAKE: u32 = 0;
const ARMED: u32 = 1;
/// A waker has seen [`ARMED`] and writes to the descriptor, now or soon.
const RUNG: u32 = 2;

/// Wakes the owner of a port from another thread, without a system call while the owner is awake.
pub type Waker = Arc<Doorbell>;

/// An eventfd that is only written when its owner sleeps.
#[derive(Debug)]
pub struct Doorbell {
    event: OwnedFd,
    armed: AtomicU32,
    /// Rings that the owner knows of and has not read from the descriptor; the owner's alone.
    unread: AtomicU64,
}

impl Doorbell {
    /// A doorbell whose owner is awake.
    ///
    /// # Errors
    /// When no descriptor can be had.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { event, armed: AtomicU32::new(AWAKE), unread: AtomicU64::new(0) })
    }

    /// Rings, after work was made visible.
    pub fn ring(&self) {
        if must_ring(&self.armed) {
            // EAGAIN means the counter is full: it is readable, which is all we want.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Called by the owner before it looks for work a last time and sleeps.
    pub fn arm(&self) {
        arm(&self.armed);
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

pub(super) fn arm(armed: &AtomicU32) {
    armed.store(ARMED, Ordering::Relaxed);
    // SYNC POINT: doorbell armed. Pairs with the fence in `must_ring`.
    fence(Ordering::SeqCst);
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
}
