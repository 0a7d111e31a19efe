//! How the end of a call is told.

use crate::{cell::Responder, metadata::Metadata};

/// How the end of a call is told.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To another thread, or another task.
    Cell(Responder),
    /// Kept until the thread of the worker itself takes it.
    Local,
    /// The metadata of the answer came; so it is told as one of these.
    Noted(Box<(Self, Metadata)>),
}

impl Reply {
    /// Leaves a local one in its place.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Local)
    }

    pub(super) fn responder(&self) -> Option<&Responder> {
        match self {
            Self::Cell(responder) => Some(responder),
            Self::Local => None,
            Self::Noted(noted) => noted.0.responder(),
        }
    }

    pub(crate) fn into_responder(self) -> Option<Responder> {
        match self {
            Self::Cell(responder) => Some(responder),
            Self::Local => None,
            Self::Noted(noted) => noted.0.into_responder(),
        }
    }
}
