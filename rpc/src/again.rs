//! A call that may be made again: its arguments, kept, and the waits between.

use std::{
    hash::{BuildHasher, Hasher},
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::Instant;

use crate::{
    channel::{CallOptions, Deadline},
    codec::{Compose, EncodeError, compose_into},
    error::{CallError, TransportError},
    method::Method,
    response::Response,
    status::{Code, Fate},
    timer::Alarm,
};

/// Arguments above this are not kept: such a call is made once.
const KEEP_BYTES: usize = 16 << 20;

/// A call that may be made again: its request, and what is left of its deadline.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) method: &'static Method,
    pub(crate) body: Vec<u8>,
    options: CallOptions,
    /// When its caller stops waiting, over all attempts.
    until: Instant,
    wait: Duration,
    wait_max: Duration,
    alarm: Option<Alarm>,
}

impl Again {
    /// Keeps a call; `default` is what a call without a time-out of its own has, if it is known here.
    pub(crate) fn new<A: Compose + ?Sized>(
        method: &'static Method,
        options: &CallOptions,
        default: Option<Duration>,
        (wait, wait_max): (Duration, Duration),
        arguments: &A,
    ) -> Result<Self, EncodeError> {
        let mut body = Vec::new();
        compose_into(&mut body, KEEP_BYTES, arguments)?;
        let until = Instant::now() + options.resolve(default).unwrap_or(Duration::MAX);
        let wait = wait.min(wait_max);
        Ok(Self { method, body, options: options.clone(), until, wait, wait_max, alarm: None })
    }

    /// The options of the next attempt: what is left of its time. `None`: nothing is.
    pub(crate) fn options(&self) -> Option<CallOptions> {
        let deadline = match self.until.remaining() {
            Duration::ZERO => return None,
            // As it was.
            Duration::MAX => self.options.deadline,
            left => Deadline::In(left),
        };
        let mut options = self.options.clone();
        options.deadline = deadline;
        Some(options)
    }

    /// Begins a wait. The polling task is woken at its end.
    pub(crate) fn pause(&mut self, context: &Context<'_>) {
        let at = self.next_rest();
        self.alarm = Some(Alarm::new(at, context.waker()));
    }

    /// The end of the next wait, which is twice as long as the last one.
    fn next_rest(&mut self) -> Instant {
        let at = self.until.min(Instant::now() + jittered(self.wait, random()));
        self.wait = self.wait.saturating_mul(2).min(self.wait_max);
        at
    }

    /// Blocks until the wait is over that a poll began, or for the next one.
    pub(crate) fn rest(&mut self) {
        let at = self.alarm.take().map_or_else(|| self.next_rest(), |alarm| alarm.at());
        std::thread::sleep(at.remaining());
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

/// Between half of `wait` and all of it, drawn by `random`, so that many callers do not come at once.
pub(crate) fn jittered(wait: Duration, random: u32) -> Duration {
    let share = 0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0;
    Duration::try_from_secs_f64(wait.as_secs_f64() * share).unwrap_or(wait)
}

/// Not a secret.
pub(crate) fn random() -> u32 {
    let bits = std::hash::RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).unwrap_or(0)
}

/// Returns the fate of a call that did not end with an answer, if another attempt could end otherwise.
pub(crate) fn repeatable(response: &Response) -> Option<Fate> {
    match response.failure()? {
        CallError::Status(status) => {
            matches!(status.code(), Code::Unavailable | Code::ResourceExhausted).then_some(status.fate())
        }
        CallError::Transport(
            error @ (TransportError::Closed { .. }
            | TransportError::Full { .. }
            | TransportError::Worker { .. }),
        ) => Some(error.fate()),
        _ => None,
    }
}

/// Whether a call that ended is [not ready](CallError::is_unready).
pub(crate) fn is_unready(response: &Response) -> bool {
    response.failure().is_some_and(CallError::is_unready)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn what_another_attempt_cannot_change_is_not_repeated() {
        let status = |code, fate| Response::from(Status::new(code, "").with_fate(fate));
        assert_eq!(repeatable(&status(Code::Unavailable, Fate::NotRun)), Some(Fate::NotRun));
        assert_eq!(repeatable(&status(Code::Unavailable, Fate::MaybeRan)), Some(Fate::MaybeRan));
        for code in [Code::Unimplemented, Code::InvalidArgument, Code::DeadlineExceeded, Code::Internal] {
            assert_eq!(repeatable(&status(code, Fate::NotRun)), None);
        }
        let closed = |fate| {
            let reason = gimmal_engine::transport::CloseReason::Peer;
            Response::from(TransportError::Closed { reason, fate })
        };
        assert_eq!(repeatable(&closed(Fate::MaybeRan)), Some(Fate::MaybeRan));
        let worker = |fate| Response::from(TransportError::Worker { why: "it is full", fate });
        for unready in [closed, worker] {
            assert!(is_unready(&unready(Fate::NotRun)) && !is_unready(&unready(Fate::MaybeRan)));
        }
        assert!(is_unready(&status(Code::Unavailable, Fate::NotRun)));
        assert!(!is_unready(&status(Code::Unavailable, Fate::Ran)));
        assert!(!is_unready(&TransportError::Full { waiting: 1 }.into()));
        assert_eq!(repeatable(&TransportError::TooLarge { limit: 1 }.into()), None);
        assert_eq!(repeatable(&Response::nothing()), None);
    }
}
