//! What a listener turned away by itself: how many, for which causes, and why the last.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::{Instant, RejectReason, hello::reject_code, log_pace::LogPace};

/// Causes that are told apart; codes of later versions count as one.
const CAUSES: usize = 24;

/// What a listener turned away by itself: how many, for which causes, and why the last. One side notes, another reads.
#[derive(Debug, Default)]
pub struct Rejected {
    causes: [AtomicU64; CAUSES],
    last: Mutex<Option<RejectReason>>,
    log: LogPace,
}

impl Rejected {
    /// Counts one more, and tells the log of `peer` if there may be a line.
    pub fn note(&self, reason: RejectReason, peer: impl FnOnce() -> String) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        let count = self.causes[cause(reason)].fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(left_out) = self.log.line(Instant::now()) {
            let peer = peer();
            tracing::info!(peer, %reason, count, left_out, "refused a connect request");
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.causes.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// How many there were for the cause of `reason`, whatever its values.
    pub fn count_of(&self, reason: RejectReason) -> u64 {
        self.causes[cause(reason)].load(Ordering::Relaxed)
    }

    /// Why the last was turned away.
    pub fn last(&self) -> Option<RejectReason> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a cause.
fn cause(reason: RejectReason) -> usize {
    usize::from(reject_code(reason)).min(CAUSES - 1)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn refusals_are_counted_by_cause_and_logged_ten_a_second() {
        let (rejected, logged) = (Rejected::default(), Cell::new(0));
        let start = Instant::now();
        for uid in 0..100 {
            let peer = || {
                logged.set(logged.get() + 1);
                String::new()
            };
            rejected.note(RejectReason::NotAllowed { uid }, peer);
            rejected.note(RejectReason::Overloaded, peer);
        }
        let seconds = start.elapsed().as_secs() + 1;
        assert!(logged.get() <= 10 * seconds, "{} lines in {seconds} s", logged.get());
        assert_eq!(rejected.count_of(RejectReason::NotAllowed { uid: 0 }), 100);
        assert_eq!(rejected.count_of(RejectReason::NotOurs), 0);
        assert_eq!((rejected.count(), rejected.last()), (200, Some(RejectReason::Overloaded)));
        rejected.note(RejectReason::Other { code: 200 }, String::new);
        assert_eq!(rejected.count_of(RejectReason::Other { code: 99 }), 1);
    }
}
