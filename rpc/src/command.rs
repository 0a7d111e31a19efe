//! What other threads ask of a worker.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool, mpsc},
    time::Duration,
};

use gimmal_engine::transport::{CloseReason, ConnId, Exposed, Loan};

use crate::{
    cell::{CallCell, Responder},
    frame::Flags,
    memory::{Handed, Shown},
    method::Method,
    stream::Lanes,
};

/// What other threads ask of a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// Make a call.
    Call {
        conn: ConnId,
        method: &'static Method,
        timeout: Option<Duration>,
        body: Vec<u8>,
        loan: Option<Loan>,
        flags: Flags,
        lanes: Option<Box<Lanes>>,
        /// See [`Streams::Later`](crate::stream::Streams::Later).
        is_later: bool,
        responder: Responder,
    },
    /// Nobody waits for the call of this cell any more.
    Cancel(ConnId, Arc<CallCell>),
    /// Tell this one when the connection ends.
    Watch(ConnId, Arc<dyn Watcher>),
    /// Close the connection if none of our calls is on it any more, and say so. What comes late goes to the next, if it is named.
    Retire(ConnId, Option<ConnId>, Arc<AtomicBool>),
    /// See [`Node::drain`](crate::node::Node::drain), which says whether all is done; asked again and again.
    Drain(mpsc::SyncSender<bool>),
    /// The server's runtime has ended, and with it every handler.
    RuntimeEnded,
    /// Ask so many clients to come again, to another worker.
    Shed(usize),
    /// Access memory of the peer.
    Access(ConnId, Box<Handed>),
    /// Tell the peer where memory of ours is.
    Show(ConnId, Arc<Exposed>, Responder<Shown>),
}

/// Hears that a connection ended, or that its peer takes no more calls. Runs on the worker's thread: must not block.
pub(crate) trait Watcher: fmt::Debug + Send + Sync {
    /// The connection ended; it is not told twice.
    fn ended(&self, reason: &CloseReason);

    /// The peer takes no more calls; the connection stands as long as those that run.
    fn leaving(&self);

    /// Whether it still works on what it heard. The worker asks again and again, so that work whose thread could not start,
    /// or has ended, begins again here.
    fn is_moving(&self) -> bool;
}
