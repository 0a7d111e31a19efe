//! The caller's ends of a call's streams: made with the call, or the one down when its first item comes.

use super::{Begun, Lane, Sink, Stream, Streams, Tie, Woken, lanes};
use crate::{
    channel::Beside,
    codec::{Decode, Encode},
};

/// The caller's ends of the streams of a call that was started by hand.
#[derive(Debug)]
pub struct CallerEnds<U, D> {
    /// Where the caller's items go in, if it sends any.
    pub up: Option<Sink<U>>,
    /// Where the handler's items come out.
    pub down: Stream<D>,
    /// Cancels the call when it is dropped before the call ended.
    pub tie: Tie,
}

/// Makes streams for a call that is started by hand, without a generated client: what goes with the call, and the caller's ends.
/// Codec `K` writes and reads their items.
///
/// Something else than the ends must move the call: the worker of a [`Client`](crate::Client), or a [`Driver`](crate::Driver).
/// So they are `Send`, whatever the channel is.
#[must_use]
pub fn caller_ends<K, U, D>(is_up: bool) -> (Beside, CallerEnds<U, D>)
where
    K: Encode<U> + for<'a> Decode<'a, D>,
{
    let lanes = lanes(is_up, true);
    let up = lanes.tx.clone().map(|lane| Sink::new::<K>(lane, Woken));
    let down = lanes.rx.clone().unwrap_or_else(Lane::new);
    let ends = CallerEnds { up, down: Stream::new::<K>(down, Woken), tie: lanes.tie() };
    (Beside { loan: None, streams: Some(Streams::Made(lanes.boxed())) }, ends)
}

impl Beside {
    /// What goes with a call whose answer is expected to be all that comes: its stream down is made when an item comes first. The
    /// call's ticket is to be asked by [`poll_first`](crate::channel::Ticket::poll_first).
    #[must_use]
    pub const fn down_later() -> Self {
        Self { loan: None, streams: Some(Streams::Later) }
    }
}

impl Begun {
    /// Returns the caller's ends. Codec `K` reads the items.
    #[must_use]
    pub fn ends<K: for<'a> Decode<'a, D>, D>(self) -> (Stream<D>, Tie) {
        (Stream::new::<K>(self.down, Woken), self.tie)
    }
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Stream<u8>>();
    is_send::<Sink<u8>>();
};
