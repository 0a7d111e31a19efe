//! Whether an attempt to connect is made again: only where the CM's word is about the attempt and not about the peer.

use std::time::Duration;

use gimmal_transport::ConnectError;

/// `IB_CM_REJ_STALE_CONN`: the peer still holds a connection of an earlier queue pair with this number, of a process
/// that was there before. A new queue pair has another number.
const STALE_CONNECTION: i32 = 10;

/// Attempts in all.
const ATTEMPTS: u32 = 5;

/// Before the second attempt; doubled before each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The attempts of one connect.
#[derive(Debug)]
pub(crate) struct Again {
    made: u32,
}

impl Again {
    pub(crate) const fn new() -> Self {
        Self { made: 0 }
    }

    /// How long to wait before the next attempt, after one that ended with `error`; `None`: it was the last.
    pub(crate) fn pause(&mut self, error: &ConnectError) -> Option<Duration> {
        let stale = matches!(error, ConnectError::Refused { status: STALE_CONNECTION, .. });
        self.made += 1;
        (stale && self.made < ATTEMPTS).then(|| FIRST_PAUSE.saturating_mul(1 << (self.made - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_stale_is_tried_again_and_not_for_ever() {
        let refused = |status| ConnectError::Refused { address: String::new(), status, meaning: "" };
        let mut again = Again::new();
        let pauses: Vec<_> =
            std::iter::from_fn(|| again.pause(&refused(10))).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80]);
        assert_eq!(Again::new().pause(&refused(8)), None);
        assert_eq!(Again::new().pause(&ConnectError::NobodyListens { address: String::new() }), None);
    }
}
