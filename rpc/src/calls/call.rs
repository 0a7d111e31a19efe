//! One call of the table.

use std::task::Waker;

use gimmal_engine::{
    RemoteBulk,
    transport::{Loan, Time},
};

use super::{CallKey, Reply};
use crate::{
    frame::Flags,
    method::Method,
    response::Response,
    stream::{Begun, Lanes, Streams},
};

/// Where a call is. What belongs to a state stands beside it in the call: so telling them apart moves a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    /// In the queue, composed.
    Waiting,
    /// The request left in this slot of the window.
    Posted(u32),
    /// The answer is here, its bulk on the way. There is an offer while the device has no room for the pull.
    Pulling,
    /// Ended, for the worker's own thread to take.
    Done,
}

/// In the order in which a call is looked at: one that is posted, answered and taken uses the first line, and a bit of the second.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Call {
    pub(super) generation: u32,
    pub(crate) state: State,
    pub(crate) deadline: Time,
    /// The reading of the clock that the deadline counts from, when it may have been an old one.
    pub(crate) started: Time,
    pub(crate) method: Option<&'static Method>,
    /// [`Reply::Local`] while nobody is in it.
    pub(crate) reply: Reply,
    pub(crate) loan: Option<Loan>,
    pub(crate) lanes: Option<Box<Lanes>>,
    /// The composed request while it waits; the answer's bytes later. Its memory stays with the slot.
    pub(crate) body: Vec<u8>,
    /// The body is the method's error.
    pub(crate) is_error: bool,
    /// The bulk that is pulled is its answer.
    pub(crate) is_large: bool,
    /// Of its request, while it waits.
    pub(crate) flags: Flags,
    /// How a local call ended; `None` with `Done`: with the bytes in `body`.
    pub(super) response: Option<Response>,
    pub(crate) offer: Option<RemoteBulk>,
    /// What may come at first by the stream down that is made when something does; 0: none is.
    pub(crate) window: u32,
    /// That stream, for the worker's own thread to take.
    pub(super) begun: Option<Box<Begun>>,
}

// Whatever a call without a loan, streams and waiting touches is in one line, but for whether it has any.
const _: () = assert!(std::mem::offset_of!(Call, loan) == 64);

impl Call {
    pub(super) fn new() -> Self {
        Self {
            generation: 0,
            state: State::Free,
            deadline: Time::NEVER,
            started: Time::NEVER,
            method: None,
            reply: Reply::Local,
            loan: None,
            lanes: None,
            body: Vec::new(),
            is_error: false,
            is_large: false,
            flags: Flags::NONE,
            response: None,
            offer: None,
            window: 0,
            begun: None,
        }
    }

    /// `reply` hears of its end, under `key`. A local one is there already.
    pub(crate) fn tell(&mut self, key: CallKey, reply: Reply) {
        if let Some(responder) = reply.responder() {
            responder.set_key(key.bits());
        }
        self.reply = reply;
    }

    /// Puts `reply` in the place of one that owns nothing: dropping one of any kind would be a call.
    #[inline(always)]
    pub(crate) const fn reply_by(&mut self, reply: Reply) {
        std::mem::forget(std::mem::replace(&mut self.reply, reply));
    }

    /// Takes its streams; whether they are there already. `window` as in [`Call::expect_begin`].
    #[inline]
    pub(crate) fn stream_by(&mut self, streams: Streams, window: u32) -> bool {
        match streams {
            Streams::Made(lanes) => self.lanes = Some(lanes),
            Streams::Later => self.expect_begin(window),
        }
        self.lanes.is_some()
    }

    /// Its stream down is made when something comes, of which there may be so much at first.
    pub(crate) fn expect_begin(&mut self, window: u32) {
        (self.window, self.begun) = (window, None);
    }

    /// Begins its stream down and tells the caller. Returns the waker of the caller's task, if one waits; `None`: the caller is gone.
    pub(crate) fn begin(&mut self, lanes: Lanes, begun: Begun) -> Option<Option<Waker>> {
        self.lanes = Some(Box::new(lanes));
        match self.reply.responder() {
            Some(responder) => responder.begin(begun.into()),
            None => {
                self.begun = Some(Box::new(begun));
                self.reply.wake();
                Some(None)
            }
        }
    }

    /// Whether something went beside its request.
    #[inline]
    pub(super) const fn has_beside(&self) -> bool {
        self.loan.is_some() || self.lanes.is_some()
    }

    /// It is over: drops what went beside its request, and gives out its streams, to be ended behind its response.
    #[cold]
    pub(super) fn let_go(&mut self) -> Option<Box<Lanes>> {
        self.loan = None;
        self.lanes.take()
    }

    /// Whether it has not ended.
    pub(super) const fn lives(&self) -> bool {
        !matches!(self.state, State::Free | State::Done)
    }

    /// A key of it finds nothing from here on.
    #[inline]
    pub(super) const fn free(&mut self) {
        self.generation = CallKey::next_generation(self.generation);
        self.state = State::Free;
    }
}
