//! What sits on the engine: an [`App`] is told what happened and acts through [`Io`].

use gimmal_transport::{
    AccessError, Accessed, Bulk, BulkError, CloseReason, ConnId, Instant, Negotiated, Port, Time,
};

use crate::{Io, message::Message};

/// A layer above the engine. One instance lives on each worker, on its thread; nothing here may block.
///
/// ```text
///   opened ─► (message | pulled | accessed | writable | loan_done)* ─► closed   for each connection
///   began ─► (command | tick)*                                                   for the worker
/// ```
pub trait App: std::fmt::Debug + 'static {
    /// What other threads may ask of it, through the worker's inbox.
    type Command: std::fmt::Debug + Send + 'static;

    /// Says when time 0 was: at `at`. Comes once, before all else.
    fn began(&mut self, at: Instant) {
        let _ = at;
    }

    /// A connection may carry messages.
    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, negotiated: &Negotiated) {
        let _ = (io, conn, negotiated);
    }

    /// A message arrived. Its bytes are lent for this call only; [`Io::hold`] keeps them longer.
    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>);

    /// A pull that was started with [`Io::pull`] ended. `token` is what was given there.
    fn pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Bulk, BulkError>,
    ) {
        let _ = (io, conn, token, result);
    }

    /// A one-sided operation that was started with [`Io::access`] ended. `token` is what was given there.
    fn accessed<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Accessed, AccessError>,
    ) {
        let _ = (io, conn, token, result);
    }

    /// After [`SendError::Blocked`](crate::SendError::Blocked) there is room again.
    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        let _ = (io, conn);
    }

    /// The peer is done with the loan that went with the message `aux`; its memory is free again.
    fn loan_done<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, aux: u64) {
        let _ = (io, conn, aux);
    }

    /// The connection is gone; comes exactly once for each that opened. Unsent loans are dropped.
    fn closed<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        let _ = (io, conn, reason);
    }

    /// Another thread asked for something. By default nothing comes of it.
    fn command<P: Port>(&mut self, io: &mut Io<'_, P>, command: Self::Command) {
        let _ = (io, command);
    }

    /// Another thread asked for something, and the worker is gone. Runs on any thread.
    fn refused(command: Self::Command) {
        drop(command);
    }

    /// Something on the worker's thread panicked with these words. [`App::closed`] follows for every connection, then this
    /// is dropped; another takes its place.
    fn panicked(&mut self, words: &str) {
        let _ = words;
    }

    /// Called in every turn that finds something, and in one of 64 others, over a device in one of 1,024; returns when it wants to be
    /// called although nothing happens ([`Time::NEVER`]: not at all).
    fn tick<P: Port>(&mut self, io: &mut Io<'_, P>) -> Time {
        let _ = io;
        Time::NEVER
    }
}

/// What an application does outside its own methods, for [`Inline::with_later`](crate::Inline::with_later). A trait, since it
/// is to do it on whichever port is the shortest way.
pub trait Act<A> {
    /// What comes of it.
    type Outcome;

    /// Does it.
    fn act<P: Port>(self, app: &mut A, io: &mut Io<'_, P>) -> Self::Outcome;
}

/// Takes messages before the application: one with [`Inline::seek`](crate::Inline::seek), several with
/// [`Inline::sift`](crate::Inline::sift).
pub trait Pick<A> {
    /// Whether `message` is it; then it is taken, and the application does not see it.
    fn pick<P: Port>(&mut self, app: &mut A, io: &mut Io<'_, P>, conn: ConnId, message: &Message<'_>)
    -> bool;
}

/// Picks nothing: every message is the application's.
#[derive(Debug)]
pub(crate) struct Nothing;

impl<A> Pick<A> for Nothing {
    #[inline(always)]
    fn pick<P: Port>(&mut self, _: &mut A, _: &mut Io<'_, P>, _: ConnId, _: &Message<'_>) -> bool {
        false
    }
}
