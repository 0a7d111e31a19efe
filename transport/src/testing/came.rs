//! What came to a port, for tests: the frames of its runs and the events of its polls in one list.

use std::sync::Arc;

use crate::{
    AccessError, Batch, BulkError, CloseReason, ConnId, Event, Limit, Look, Negotiated, Port, Time,
    mem::{Accessed, Bulk, RxFrame},
};

/// A frame, kept from its run, or an [`Event`].
#[derive(Debug)]
pub enum Came {
    /// [`Event::Opened`].
    Opened { conn: ConnId, negotiated: Arc<Negotiated> },
    /// A frame of a run.
    Frame { conn: ConnId, frame: RxFrame },
    /// [`Event::Pulled`].
    Pulled { conn: ConnId, token: u64, result: Result<Bulk, BulkError> },
    /// [`Event::Accessed`].
    Accessed { conn: ConnId, token: u64, result: Result<Accessed, AccessError> },
    /// [`Event::Suspect`].
    Suspect { conn: ConnId },
    /// [`Event::Closed`].
    Closed { conn: ConnId, reason: CloseReason },
}

impl From<Event> for Came {
    fn from(event: Event) -> Self {
        match event {
            Event::Opened { conn, negotiated } => Self::Opened { conn, negotiated },
            Event::Pulled { conn, token, result } => Self::Pulled { conn, token, result },
            Event::Accessed { conn, token, result } => Self::Accessed { conn, token, result },
            Event::Suspect { conn } => Self::Suspect { conn },
            Event::Closed { conn, reason } => Self::Closed { conn, reason },
        }
    }
}

impl Came {
    /// Whose it is.
    pub const fn conn(&self) -> ConnId {
        match self {
            Self::Opened { conn, .. }
            | Self::Frame { conn, .. }
            | Self::Pulled { conn, .. }
            | Self::Accessed { conn, .. }
            | Self::Suspect { conn }
            | Self::Closed { conn, .. } => *conn,
        }
    }
}

/// The frames of the next run, at most `most`; `None` if the next look finds no run.
pub fn next_frames(port: &mut impl Port, most: usize) -> Option<Vec<Came>> {
    let Look::Run(mut run) = port.next_run(Limit::Frames(most)) else { return None };
    let (conn, mut frames) = (run.conn(), Vec::new());
    while let Some(lent) = run.next_frame() {
        frames.extend(lent.keep().map(|frame| Came::Frame { conn, frame }));
    }
    port.end_run(&mut run, false);
    Some(frames)
}

/// The frames that lie open; the events of a poll, if there are none. At most as many as `batch` has room for.
pub fn poll(port: &mut impl Port, now: Time, batch: &mut Batch) -> Vec<Came> {
    let (room, mut came) = (batch.room(), Vec::new());
    while came.len() < room
        && let Some(frames) = next_frames(port, room - came.len())
    {
        came.extend(frames);
    }
    if came.is_empty() {
        port.poll(now, batch);
        came.extend(batch.drain().map(Came::from));
    }
    came
}
