//! What both halves of a stream keep: its call.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use atomic_waker::AtomicWaker;
use gimmal_rpc::{
    Client,
    channel::{Channel, Ticket as _},
    response::Response,
    stream::Tie,
};

/// What both halves of a stream keep.
pub(crate) struct Held {
    side: Side,
    /// The reader was dropped and had not read everything that was there.
    has_unread: AtomicBool,
}

/// The call of a stream.
pub(crate) enum Side {
    /// The caller's. Without it once it is over.
    Opened(Mutex<Option<Called>>),
    /// The caller's, which a [`Carrying`](crate::Carrying) has.
    Carried(Arc<Carried>),
    /// The handler's, which waits until both halves are over.
    Accepted(Accepted),
}

pub(crate) struct Called {
    pub(crate) ticket: <Client as Channel>::Ticket,
    pub(crate) tie: Tie,
    /// Why it ended, once that is known.
    pub(crate) failure: Option<String>,
    /// The task that waits for that.
    pub(crate) reader: Option<Waker>,
}

impl Called {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.failure.is_none() {
            let response = ready!(self.ticket.poll(context));
            self.failure = Some(reason(&response));
        }
        Poll::Ready(())
    }

    /// Why it ended, if that is known now. The reader that waits for it goes on waiting.
    fn failure(&mut self) -> Option<String> {
        let reader = self.reader.clone();
        let _ = self.poll(&mut Context::from_waker(reader.as_ref().unwrap_or(Waker::noop())));
        self.failure.clone()
    }
}

/// Why a call ended that another task has.
#[derive(Default)]
pub(crate) struct Carried {
    failure: OnceLock<String>,
    reader: AtomicWaker,
}

impl Carried {
    /// It ended; only the first reason counts.
    pub(crate) fn ended(&self, why: String) {
        let _ = self.failure.set(why);
        self.reader.wake();
    }
}

/// Why the call of a response is over.
pub(crate) fn reason(response: &Response) -> String {
    let failure = response.failure().map(ToString::to_string);
    failure.unwrap_or_else(|| "the other side ended the stream".to_owned())
}

#[derive(Default)]
pub(crate) struct Accepted {
    halves_over: AtomicUsize,
    waker: AtomicWaker,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.side {
            Side::Opened(_) => "Opened",
            Side::Carried(_) => "Carried",
            Side::Accepted(_) => "Accepted",
        })
    }
}

impl Held {
    pub(crate) fn new(side: Side) -> Arc<Self> {
        Arc::new(Self { side, has_unread: AtomicBool::new(false) })
    }

    /// The reader is dropped and has not read everything that is there.
    pub(crate) fn left_unread(&self) {
        self.has_unread.store(true, Ordering::Release);
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread.load(Ordering::Acquire)
    }

    /// A half has come to its end: said once by each.
    pub(crate) fn half_over(&self) {
        if let Side::Accepted(accepted) = &self.side {
            accepted.halves_over.fetch_add(1, Ordering::AcqRel);
            accepted.waker.wake();
        }
    }

    /// Waits until both halves of an accepted stream have come to their ends.
    pub(crate) fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        let Side::Accepted(accepted) = &self.side else { return Poll::Ready(()) };
        accepted.waker.register(context.waker());
        if accepted.halves_over.load(Ordering::Acquire) < 2 { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Waits until it is known why the call of an opened stream is over. One task waits at a time: the reader.
    pub(crate) fn poll_failure(&self, context: &mut Context<'_>) -> Poll<()> {
        let called = match &self.side {
            Side::Opened(called) => called,
            Side::Carried(carried) => {
                carried.reader.register(context.waker());
                return if carried.failure.get().is_some() { Poll::Ready(()) } else { Poll::Pending };
            }
            Side::Accepted(_) => return Poll::Ready(()),
        };
        let mut called = called.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(called) = called.as_mut() else { return Poll::Ready(()) };
        called.reader = Some(context.waker().clone());
        called.poll(context)
    }

    /// Why a half cannot go on whose call is over, though this side said no end of it; without a reason where that is not known yet.
    pub(crate) fn error(&self) -> io::Error {
        let reason = match &self.side {
            Side::Opened(called) => {
                let mut called = called.lock().unwrap_or_else(PoisonError::into_inner);
                called.as_mut().and_then(Called::failure)
            }
            Side::Carried(carried) => carried.failure.get().cloned(),
            Side::Accepted(_) => Some("the caller dropped the stream, or the connection ended".to_owned()),
        };
        let kind = io::ErrorKind::ConnectionReset;
        reason.map_or_else(|| kind.into(), |reason| io::Error::new(kind, reason))
    }
}

/// Both halves said how they end: the call goes on to that without anybody here.
impl Drop for Held {
    fn drop(&mut self) {
        if let Side::Opened(called) = &mut self.side
            && let Some(Called { mut ticket, mut tie, .. }) =
                called.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            ticket.detach();
            tie.loosen();
        }
    }
}
