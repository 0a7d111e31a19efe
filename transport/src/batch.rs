//! What a port brings: runs of frames, and events.

use std::sync::Arc;

use crate::{
    AccessError, BulkError, CloseReason, ConnId, Negotiated,
    mem::{Accessed, Bulk, Run},
};

/// How many frames the caller of [`Port::next_run`](crate::Port::next_run) takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// At most this many.
    Frames(usize),
    /// One now and then: the caller waits for what it sends in between, so its frames are shown at once.
    One,
}

/// What a look at the connections of a port found.
#[derive(Debug)]
pub enum Look {
    /// Frames of one connection.
    Run(Run),
    /// No frames that come first: a [poll](crate::Port::poll) may bring events.
    Events,
    /// Nothing. A poll is needed only now and then, for deaths and handshakes.
    Nothing,
}

/// What came of a pull: the bytes, or why not.
pub type Pulled = Result<Bulk, BulkError>;

/// One thing that happened on a [`Port`](crate::Port).
#[derive(Debug)]
pub enum Event {
    /// The connection may carry frames: the peer's grant has arrived. Comes once, before any frame.
    Opened {
        /// Which connection.
        conn: ConnId,
        /// What the two sides agreed on.
        negotiated: Arc<Negotiated>,
    },
    /// A pull ended.
    Pulled {
        /// Which connection.
        conn: ConnId,
        /// The token given to [`Transfer::pull`](crate::Transfer::pull).
        token: u64,
        /// What came of it.
        result: Pulled,
    },
    /// A one-sided operation ended.
    Accessed {
        /// Which connection.
        conn: ConnId,
        /// The token given to [`Transfer::access`](crate::Transfer::access).
        token: u64,
        /// What it came to.
        result: Result<Accessed, AccessError>,
    },
    /// Something casts doubt on the peer of an open connection (a CM hint, a port that went down): ask it.
    Suspect {
        /// Which connection.
        conn: ConnId,
    },
    /// The connection is gone. Comes exactly once, after everything else of this connection.
    Closed {
        /// Which connection.
        conn: ConnId,
        /// The first cause.
        reason: CloseReason,
    },
}

/// Events of one poll; its size is fixed when it is made and nothing is allocated later.
#[derive(Debug)]
pub struct Batch {
    events: Vec<Event>,
    limit: usize,
}

impl Batch {
    /// A batch of at most `limit` events (at least 1).
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(1);
        Self { events: Vec::with_capacity(limit), limit }
    }

    /// A batch without room and without memory: a placeholder while the real one is in use.
    #[must_use]
    pub const fn empty() -> Self {
        Self { events: Vec::new(), limit: 0 }
    }

    /// Room that is left.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.events.len())
    }

    /// Adds an event; providers check [`Batch::room`] first. One more than there is room for makes it grow.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// How many events are in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events from number `first` on, to be changed in place.
    #[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
    pub(crate) fn events_from(&mut self, first: usize) -> &mut [Event] {
        self.events.get_mut(first..).unwrap_or_default()
    }

    /// Takes all events, in order; the batch is empty afterwards and keeps its memory.
    #[inline]
    pub fn drain(&mut self) -> std::vec::Drain<'_, Event> {
        self.events.drain(..)
    }
}
