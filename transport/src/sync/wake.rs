//! Waking a sleeper in another process: one message for each sleep, none while it is awake.
//!
//! ```text
//!  sleeper:  armed = epoch ; fence ; look for work ; sleep      waker:  give work ; fence ; armed new? ring
//! ```
//! Of the two fences one comes first: either the sleeper sees the work, or the waker sees the epoch. An epoch is
//! never used twice and 0 is awake, so a waker that remembers the last one rings once for each sleep.

use super::{
    atomic::{Ordering, fence},
    word::Word,
};

/// The sleeper's word when it is awake.
const AWAKE: u64 = 0;

/// Announces sleep number `epoch`, from 1 on. [`settle`] comes next, then a last look for work.
#[inline]
pub(crate) fn announce(armed: &impl Word, epoch: u64) {
    // A sleeper that looks awake is never rung.
    armed.store(epoch.max(AWAKE + 1), Ordering::Relaxed);
}

/// The fence of both sides: after announcing or giving work, before looking for the other's.
#[inline]
pub(crate) fn settle() {
    // SYNC POINT: sleep announced. Pairs with the same fence of the other side.
    fence(Ordering::SeqCst);
}

/// Back awake.
#[inline]
pub(crate) fn withdraw(armed: &impl Word) {
    armed.store(AWAKE, Ordering::Relaxed);
}

/// The waker's memory of one sleeper.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    rung: u64,
}

impl Ringer {
    /// Whether the sleeper must be rung; call [`settle`] after giving work and before this. A peer that writes
    /// nonsense into its word costs at most one ring a call.
    #[inline]
    pub(crate) fn must_ring(&mut self, armed: &impl Word) -> bool {
        // SYNC POINT: sleep announced. `settle` came before, as it does between `announce` and the sleeper's last look.
        let epoch = armed.load(Ordering::Relaxed);
        if epoch == AWAKE || epoch == self.rung {
            return false;
        }
        self.rung = epoch;
        true
    }

    /// The ring that [`Ringer::must_ring`] asked for could not be sent: it asks again.
    #[cold]
    pub(crate) fn forget(&mut self) {
        self.rung = AWAKE;
    }
}
