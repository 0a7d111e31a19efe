//! A call that may be made again: its arguments, kept, and the waits between.

use std::{
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{
    cell::Outcome,
    channel::{CallOptions, Deadline},
    codec::{Compose, EncodeError, compose_into},
    error::TransportError,
    method::Method,
    status::{Code, Fate},
    timer::Alarm,
};

/// Arguments above this are not kept: such a call is made once.
const KEEP_BYTES: usize = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) method: &'static Method,
    pub(crate) body: Vec<u8>,
    options: CallOptions,
    /// When its caller stops waiting, over all attempts.
    until: Option<Instant>,
    wait: Duration,
    wait_max: Duration,
    alarm: Option<Alarm>,
}

impl Again {
    /// Keeps a call; `default` is what [`Deadline::Default`] means, if it is known here.
    pub(crate) fn new<A: Compose + ?Sized>(
        method: &'static Method,
        options: &CallOptions,
        default: Option<Duration>,
        (wait, wait_max): (Duration, Duration),
        arguments: &A,
    ) -> Result<Self, EncodeError> {
        let mut body = Vec::new();
        compose_into(&mut body, KEEP_BYTES, arguments)?;
        let until = options.resolve(default).and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(Self { method, body, options: options.clone(), until, wait, wait_max, alarm: None })
    }

    /// The options of the next attempt: what is left of its time. `None`: nothing is.
    pub(crate) fn options(&self) -> Option<CallOptions> {
        let Some(until) = self.until else { return Some(self.options.clone()) };
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some(CallOptions { deadline: Deadline::In(left), ..self.options.clone() })
    }

    /// Begins a wait, twice as long as the last one; whoever polled is woken at its end.
    pub(crate) fn pause(&mut self, context: &Context<'_>) {
        let now = Instant::now();
        let at = now.checked_add(jittered(self.wait)).unwrap_or(now);
        let at = self.until.map_or(at, |until| at.min(until));
        self.wait = (self.wait * 2).min(self.wait_max);
        self.alarm = Some(Alarm::new(at, context.waker()));
    }

    /// Whether the wait is over, if there is one.
    pub(crate) fn poll_rested(&mut self, context: &Context<'_>) -> Poll<()> {
        let Some(alarm) = &self.alarm else { return Poll::Ready(()) };
        if alarm.is_over() {
            self.alarm = None;
            return Poll::Ready(());
        }
        // Perhaps another task polls now.
        self.alarm = Some(alarm.again(context.waker()));
        Poll::Pending
    }
}

/// Between half of `wait` and all of it, so that many callers do not come at once.
fn jittered(wait: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher};
    let bits = std::hash::RandomState::new().build_hasher().finish();
    let half = wait / 2;
    half + half.mul_f64(f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / f64::from(u32::MAX))
}

/// How a call that did not end with an answer stands: its fate, and whether another attempt could end otherwise.
pub(crate) fn repeatable(outcome: &Outcome) -> Option<Fate> {
    match outcome.plain() {
        Outcome::Status(status) => {
            matches!(status.code(), Code::Unavailable | Code::ResourceExhausted).then_some(status.fate())
        }
        Outcome::Failed(
            error @ (TransportError::Closed { .. }
            | TransportError::Full { .. }
            | TransportError::Worker { .. }),
        ) => Some(error.fate()),
        _ => None,
    }
}

/// Whether a call failed for want of a connection, or at a server that is going away, and did not run.
pub(crate) fn is_unready(outcome: &Outcome) -> bool {
    match outcome.plain() {
        Outcome::Status(status) => status.code() == Code::Unavailable && status.fate() == Fate::NotRun,
        Outcome::Failed(TransportError::Closed { fate, .. }) => *fate == Fate::NotRun,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn what_another_attempt_cannot_change_is_not_repeated() {
        let status = |code, fate| Outcome::Status(Status::new(code, "").with_fate(fate));
        assert_eq!(repeatable(&status(Code::Unavailable, Fate::NotRun)), Some(Fate::NotRun));
        assert_eq!(repeatable(&status(Code::Unavailable, Fate::MaybeRan)), Some(Fate::MaybeRan));
        for code in [Code::Unimplemented, Code::InvalidArgument, Code::DeadlineExceeded, Code::Internal] {
            assert_eq!(repeatable(&status(code, Fate::NotRun)), None);
        }
        let closed = |fate| {
            let reason = gimmal_engine::transport::CloseReason::Peer;
            Outcome::Failed(TransportError::Closed { reason, fate })
        };
        assert_eq!(repeatable(&closed(Fate::MaybeRan)), Some(Fate::MaybeRan));
        assert!(is_unready(&closed(Fate::NotRun)) && !is_unready(&closed(Fate::MaybeRan)));
        assert_eq!(repeatable(&Outcome::Failed(TransportError::TooLarge { limit: 1 })), None);
        assert_eq!(repeatable(&Outcome::nothing()), None);
    }
}
