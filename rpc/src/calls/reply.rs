//! How the end of a call is told.

use std::task::Waker;

use crate::{cell::Responder, metadata::Metadata, wake::wake};

/// Whose call it is, of the pipelines of the worker's own thread, and what it is called there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tagged {
    pub(crate) pipeline: u32,
    pub(crate) tag: u64,
}

/// How the end of a call is told.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To another thread, or another task.
    Cell(Responder),
    /// Kept until the thread of the worker itself takes it.
    Local,
    /// Kept for the worker's own thread, whose task is woken.
    Task(Waker),
    /// Kept for the worker's own thread, and found by its pipeline.
    Tagged(Tagged),
    /// The metadata of the answer came; so it is told as one of these.
    Noted(Box<(Self, Metadata)>),
}

impl Reply {
    /// Of which pipeline its call is, and what it is called there.
    pub(super) fn tagged(&self) -> Option<Tagged> {
        match self {
            Self::Tagged(tagged) => Some(*tagged),
            Self::Noted(noted) => noted.0.tagged(),
            Self::Cell(_) | Self::Local | Self::Task(_) => None,
        }
    }

    /// Whether the worker's own thread takes what its call comes to.
    #[inline]
    pub(crate) const fn is_taken(&self) -> bool {
        matches!(self, Self::Local | Self::Task(_) | Self::Tagged(_))
    }

    /// Leaves a local one in its place.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Local)
    }

    pub(super) fn responder(&self) -> Option<&Responder> {
        match self {
            Self::Cell(responder) => Some(responder),
            Self::Local | Self::Task(_) | Self::Tagged(_) => None,
            Self::Noted(noted) => noted.0.responder(),
        }
    }

    pub(crate) fn into_responder(self) -> Option<Responder> {
        match self {
            Self::Cell(responder) => Some(responder),
            Self::Local | Self::Task(_) | Self::Tagged(_) => None,
            Self::Noted(noted) => noted.0.into_responder(),
        }
    }

    /// Of a local call: from now on this task is woken.
    pub(super) fn watch(&mut self, waker: &Waker) {
        match self {
            Self::Task(task) if task.will_wake(waker) => {}
            Self::Local | Self::Task(_) => *self = Self::Task(waker.clone()),
            Self::Noted(noted) => noted.0.watch(waker),
            Self::Cell(_) | Self::Tagged(_) => {}
        }
    }

    /// Of a local call: its task, if there is one, is woken for the last time.
    #[inline]
    pub(super) fn wake(&mut self) {
        if let Self::Task(_) = self
            && let Self::Task(task) = self.take()
        {
            wake(task);
        }
    }
}
