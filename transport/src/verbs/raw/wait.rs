//! Waiting for events, with an end.

use std::{os::fd::BorrowedFd, sync::Arc, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Instant;
use crate::verbs::{
    cm::{CmEvent, EventChannel, EventKind},
    raw::error::{CmError, Rejection},
};

/// A deadline that remembers how long it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    timeout: Duration,
    until: Instant,
}

impl Limit {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, until: Instant::now() + timeout }
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.remaining()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn error(&self, step: &'static str) -> CmError {
        CmError::Timeout { step, timeout: self.timeout }
    }
}

/// Waits until one of `fds` is readable, or the limit.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], limit: &Limit) -> Result<(), CmError> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    // Rounded up, so that the limit is over when nothing came.
    let left = limit.left().saturating_add(Duration::from_micros(999));
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(CmError::Call { step: "poll", errno: errno.raw_os_error() }),
    }
}

/// The next event.
pub(crate) fn next(
    channel: &Arc<EventChannel>,
    limit: &Limit,
    step: &'static str,
) -> Result<CmEvent, CmError> {
    loop {
        let event = channel.next().map_err(|errno| CmError::Call { step: "rdma_get_cm_event", errno })?;
        if let Some(event) = event {
            return Ok(event);
        }
        if limit.is_over() {
            return Err(limit.error(step));
        }
        readable(&[channel.fd()], limit)?;
    }
}

/// Waits for `wanted`; hints are passed over, anything else ends the step.
pub(crate) fn expect(
    channel: &Arc<EventChannel>,
    wanted: EventKind,
    limit: &Limit,
    step: &'static str,
) -> Result<CmEvent, CmError> {
    loop {
        let event = next(channel, limit, step)?;
        match event.kind {
            kind if kind == wanted => {
                return if event.status == 0 { Ok(event) } else { Err(failed(&event, step)) };
            }
            EventKind::AddrChange | EventKind::TimewaitExit | EventKind::Other(_) => {
                tracing::debug!(?event, "passed over while {step}");
            }
            _ => return Err(failed(&event, step)),
        }
    }
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
