//! Time-outs that another thread, or a turn of ours, should keep.

use std::time::Duration;

use gimmal_transport::Instant;

use crate::error::OpenError;

/// How long it may be late.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Takes steps until one has an outcome; each is told how long it may wait. The grace begins when the time-out is seen to be
/// over, so that an absence of the whole process (stopped, frozen) does not use it up.
///
/// # Errors
/// [`OpenError::Overdue`] when even the grace is over.
pub(crate) fn within<T>(
    field: &'static str,
    timeout: Duration,
    mut step: impl FnMut(Duration) -> Option<T>,
) -> Result<T, OpenError> {
    for limit in [timeout, GRACE] {
        let until = Instant::now() + limit;
        loop {
            if let Some(outcome) = step(until.remaining()) {
                return Ok(outcome);
            }
            if until.has_passed() {
                break;
            }
        }
    }
    Err(OpenError::Overdue { field, timeout })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the whole process was stopped before its time-out was seen to be over, the thread that should have kept
    /// it gets the grace.
    #[test]
    fn a_grace_begins_when_the_timeout_is_seen_to_be_over() {
        for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(5)] {
            let mut waits = Vec::new();
            let outcome = within("timeout", timeout, |left| {
                waits.push(left);
                // Longer than the time-out: as a stopped process does.
                std::thread::sleep(Duration::from_millis(10));
                (left > timeout).then_some(7)
            });
            assert_eq!(outcome, Ok(7));
            assert!(waits.last().unwrap() > &Duration::from_secs(9), "{waits:?}");
        }
        assert_eq!(within("timeout", Duration::MAX, Some), Ok(Duration::MAX));
    }
}
