//! Calls that wait for a connection (`wait_for_ready`): made again, with short pauses, until one takes them.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    again::{Again, is_unready},
    channel::CallOptions,
    codec::{Compose, EncodeError},
    method::Method,
    response::Response,
    status::{Code, Status},
};

/// Pauses between attempts: a new connection takes about as long as the first.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// A call that waits for a connection; once that is established it is like any other.
#[derive(Debug)]
pub(crate) struct Waiting {
    again: Again,
    /// An attempt failed, and the next one follows a pause.
    rests: bool,
}

/// What becomes of a call that waits.
pub(crate) enum Step {
    Pending,
    Ended(Response),
    /// It is to be made again, with these options.
    Again(CallOptions),
}

impl Waiting {
    /// Keeps a call; `default` is the deadline of one that is given none.
    #[cold]
    pub(crate) fn new<A: Compose + ?Sized>(
        method: &'static Method,
        options: &CallOptions,
        default: Option<Duration>,
        arguments: &A,
    ) -> Result<Self, EncodeError> {
        Ok(Self { again: Again::new(method, options, default, PAUSES, arguments)?, rests: false })
    }

    pub(crate) const fn method(&self) -> &'static Method {
        self.again.method
    }

    pub(crate) fn arguments(&self) -> &[u8] {
        &self.again.body
    }

    /// One step; `attempt` polls the last attempt. It ends never for want of a connection, but for a deadline.
    pub(crate) fn step(
        &mut self,
        context: &Context<'_>,
        attempt: impl FnOnce(&Context<'_>) -> Poll<Response>,
    ) -> Step {
        if !self.rests {
            match attempt(context) {
                Poll::Pending => return Step::Pending,
                Poll::Ready(response) if is_unready(&response) => {}
                Poll::Ready(response) => return Step::Ended(response),
            }
            self.again.pause(context);
            self.rests = true;
        }
        if self.again.poll_rested(context).is_pending() {
            return Step::Pending;
        }
        self.rests = false;
        self.again.options().map_or_else(
            || {
                let text = "no connection became ready before the deadline";
                Step::Ended(Status::refused(Code::DeadlineExceeded, text).into())
            },
            Step::Again,
        )
    }
}
