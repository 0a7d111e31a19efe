//! Calls that wait for a connection (`wait_for_ready`): made again, with short pauses, until one takes them.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    again::{Again, is_unready},
    channel::{CallOptions, Ticket},
    codec::Compose,
    method::Method,
    response::Response,
    status::{Code, Status},
};

/// Pauses between attempts: a new connection takes about as long as the first.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// A call that waits for a connection; once that is established it is like any other.
#[derive(Debug)]
pub struct Ready<T> {
    again: Again,
    ticket: Option<T>,
}

/// What to start.
#[derive(Debug)]
pub struct Attempt<'a> {
    /// Which method.
    pub method: &'static Method,
    /// What is left of its time.
    pub options: &'a CallOptions,
    /// As they were encoded.
    pub arguments: &'a [u8],
}

impl<T: Ticket> Ready<T> {
    /// Keeps a call; `default` is the time-out of one that has none of its own. Returns `None` when its arguments cannot be kept:
    /// it is made once, then.
    #[cold]
    pub fn new<A: Compose + ?Sized>(
        method: &'static Method,
        options: &CallOptions,
        default: Option<Duration>,
        arguments: &A,
    ) -> Option<Self> {
        let again = Again::new(method, options, default, PAUSES, arguments).ok()?;
        Some(Self { again, ticket: None })
    }

    /// Polls for how the call ended: never for want of a connection, but for a deadline. `start` makes an attempt, which does not
    /// wait.
    #[cold]
    pub fn poll(&mut self, context: &mut Context<'_>, start: impl Fn(&Attempt<'_>) -> T) -> Poll<Response> {
        loop {
            if let Some(ticket) = &mut self.ticket {
                match ticket.poll(context) {
                    Poll::Ready(response) if is_unready(&response) => {}
                    other => return other,
                }
                self.ticket = None;
                self.again.pause(context);
            }
            if self.again.poll_rested(context).is_pending() {
                return Poll::Pending;
            }
            if let Err(response) = self.restart(&start) {
                return Poll::Ready(response);
            }
        }
    }

    /// Blocks until the call ended, each attempt as its channel does it.
    #[cold]
    pub fn wait(&mut self, start: impl Fn(&Attempt<'_>) -> T) -> Response {
        loop {
            if let Some(mut ticket) = self.ticket.take() {
                let response = ticket.wait();
                if !is_unready(&response) {
                    return response;
                }
                self.again.rest();
            }
            if let Err(response) = self.restart(&start) {
                return response;
            }
        }
    }

    /// Makes the next attempt, if there is time for it.
    fn restart(&mut self, start: impl Fn(&Attempt<'_>) -> T) -> Result<(), Response> {
        let Some(options) = self.again.options() else {
            let text = "no connection became ready before the deadline";
            return Err(Status::refused(Code::DeadlineExceeded, text).into());
        };
        let Again { method, body, .. } = &self.again;
        self.ticket = Some(start(&Attempt { method, options: &options, arguments: &body[..] }));
        Ok(())
    }
}
