//! Waiting for events of connections.

use std::{os::fd::BorrowedFd, sync::Arc};

use crate::{
    cm::error::{CmError, Rejection, call},
    id::{
        channel::EventChannel,
        event::{CmEvent, EventKind},
    },
    wait::{self, Deadline},
};

/// Our own deadline passed while `step`.
pub(crate) fn timed_out(deadline: &Deadline, step: &'static str) -> CmError {
    CmError::Timeout { step, timeout: deadline.timeout() }
}

/// Waits until one of `fds` is readable, at most until the deadline.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], deadline: &Deadline) -> Result<(), CmError> {
    wait::readable(fds, deadline).map(drop).map_err(call("poll"))
}

/// The next event.
pub(crate) fn next(
    channel: &Arc<EventChannel>,
    limit: &Deadline,
    step: &'static str,
) -> Result<CmEvent, CmError> {
    CmEvent::before(channel, limit)?.ok_or_else(|| timed_out(limit, step))
}

/// Waits for `wanted`; hints are passed over, anything else ends the step.
pub(crate) fn expect(
    channel: &Arc<EventChannel>,
    wanted: EventKind,
    limit: &Deadline,
    step: &'static str,
) -> Result<CmEvent, CmError> {
    loop {
        let event = next(channel, limit, step)?;
        match event.kind {
            kind if kind == wanted => {
                return if event.status == 0 { Ok(event) } else { Err(failed(&event, step)) };
            }
            kind if is_hint(kind) => {
                tracing::debug!(?event, "passed over while {step}");
            }
            _ => return Err(failed(&event, step)),
        }
    }
}

/// Whether an event says nothing about the step that is waited for.
pub(crate) const fn is_hint(kind: EventKind) -> bool {
    use EventKind as E;
    matches!(kind, E::AddrChange | E::TimewaitExit | E::User | E::Internal | E::Other(_))
}

/// What an event says that ends a step.
pub(crate) fn failed(event: &CmEvent, step: &'static str) -> CmError {
    if event.kind == EventKind::Rejected {
        return rejected(event.status, event.private());
    }
    CmError::Event { event: event.kind.name(), status: event.status, step }
}

/// Private data means something only in a reject of the consumer's.
pub(crate) fn rejected(status: i32, private_data: &[u8]) -> CmError {
    let mut rejection = Rejection::new(status, private_data);
    if !rejection.is_by_consumer() {
        rejection.private_data.clear();
    }
    CmError::Rejected { rejection: Box::new(rejection) }
}
