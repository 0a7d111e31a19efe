//! Calls that wait for a connection (`wait_for_ready`): made again, with short pauses, until one takes them.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    again::{Again, is_unready},
    cell::block,
    channel::CallOptions,
    client::{Client, WorkerCall},
    codec::Compose,
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
    rests: bool,
}

/// Starts a call that waits; `None` when its arguments cannot be kept, and it is made once.
#[cold]
pub(crate) fn start<A: Compose + ?Sized>(
    client: &Client,
    default: Option<Duration>,
    method: &'static Method,
    options: &CallOptions,
    arguments: &A,
) -> Option<WorkerCall> {
    let again = Again::new(method, options, default, PAUSES, arguments).ok()?;
    let mut handed = client.hand(method, options, (None, None), &again.body[..]);
    handed.waiting = Some(Box::new(Waiting { again, rests: false }));
    Some(handed)
}

/// Polls for how it ended: never for want of a connection, but for a deadline.
#[cold]
pub(crate) fn poll(handed: &mut WorkerCall, context: &Context<'_>) -> Poll<Response> {
    loop {
        if handed.waiting.as_ref().is_some_and(|waiting| !waiting.rests) {
            match handed.poll_once(context) {
                Poll::Ready(response) if is_unready(&response) => {}
                other => return other,
            }
        }
        let Some(mut waiting) = handed.waiting.take() else { return handed.poll_once(context) };
        if !waiting.rests {
            waiting.again.pause(context);
            waiting.rests = true;
        }
        if waiting.again.poll_rested(context).is_pending() {
            handed.waiting = Some(waiting);
            return Poll::Pending;
        }
        let Some(options) = waiting.again.options() else {
            let text = "no connection became ready before the deadline";
            return Poll::Ready(Status::refused(Code::DeadlineExceeded, text).into());
        };
        *handed = handed.client().hand(waiting.again.method, &options, (None, None), &waiting.again.body[..]);
        waiting.rests = false;
        handed.waiting = Some(waiting);
    }
}

/// Blocks until it ended: never for want of a connection, but for a deadline.
#[cold]
pub(crate) fn wait(handed: &mut WorkerCall) -> Response {
    block(|context| poll(handed, context))
}
