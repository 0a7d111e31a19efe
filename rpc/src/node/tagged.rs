//! Calls of pipelines: how they leave, their answers, and what else they come to.

use gimmal_engine::{
    Head, Io, Message,
    transport::{ConnId, Port},
};

use super::{
    Node,
    caller::plain_answer,
    request::{Fresh, put_request},
};
use crate::{
    calls::{CallKey, Tagged},
    cell::Outcome,
    frame::{Kind, REQUEST_BYTES, RequestHead},
    method::Method,
    timeout::Timeout,
};

/// What the calls of a pipeline have in common.
pub(crate) struct Common {
    pub(crate) conn: ConnId,
    pub(crate) method: &'static Method,
    pub(crate) timeout: Timeout,
    pub(crate) pipeline: u32,
}

/// One of them: its tag and its request.
pub(crate) type Asked<'a> = (u64, &'a [u8]);

impl Node {
    /// Starts calls, one after the other, as long as each can leave at once; `started` counts them. What they have in common is
    /// looked at once. Returns the first that goes another way, which [`Node::begin`] knows.
    #[inline(always)]
    pub(crate) fn post_tagged<'a, P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        common: &Common,
        asked: &mut impl Iterator<Item = Asked<'a>>,
        started: &mut usize,
    ) -> Option<Asked<'a>> {
        let Common { conn, method, timeout, pipeline } = *common;
        let now = io.now();
        self.look(now);
        self.stale = true;
        let deadline = timeout.after(now);
        let head = RequestHead::new(method, timeout.us(), 0).words();
        let Some(here) = self.conns.get_mut(conn).filter(|here| !here.calls.is_queued()) else {
            return asked.next();
        };
        self.alone = false;
        self.next_deadline = self.next_deadline.min(deadline);
        // Counted one by one: whoever is asked for the next may panic.
        for (tag, request) in asked.by_ref() {
            let Some(id) = here.calls.next_wire() else { return Some((tag, request)) };
            let message = Head { kind: Kind::Request.code(), aux: id.aux() };
            let put = |body: &mut [u8]| put_request(body, head, &Fresh::new(request), &mut None);
            if io.send(conn, message, REQUEST_BYTES, put).is_err() {
                return Some((tag, request));
            }
            here.calls.insert_tagged(id, method, (now, deadline), Tagged { pipeline, tag });
            self.counters.calls.increment();
            self.counters.posted.increment();
            self.calls_live += 1;
            *started += 1;
        }
        None
    }

    /// Shows the answer of a call of `pipeline` to `read`, with the call's tag, where it landed, if `message` is one and has
    /// nothing but bytes: the call is over then.
    #[inline(always)]
    pub(crate) fn read_tagged<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        pipeline: u32,
        message: &Message<'_>,
        read: impl FnOnce(u64, &[u8]),
    ) -> bool {
        let Some((id, payload)) = plain_answer(message) else { return false };
        let Some(here) = self.conns.get_mut(conn) else { return false };
        let Some(tag) = here.calls.end_tagged(id, pipeline) else { return false };
        self.counters.answered.increment();
        self.calls_live -= 1;
        let is_queued = here.calls.is_queued();
        read(tag, payload);
        if is_queued {
            self.send_requests(io, conn);
        }
        true
    }

    /// Whether any call that this thread made has ended and was not taken; perhaps, if the connection is gone.
    #[inline]
    pub(crate) fn has_untaken(&mut self, conn: ConnId) -> bool {
        self.conns.get_mut(conn).is_none_or(|here| here.calls.has_untaken())
    }

    /// What a call of `pipeline` came to that was not shown where it landed, once; see `Calls::take_tagged`.
    pub(crate) fn take_tagged(
        &mut self,
        conn: ConnId,
        pipeline: u32,
        body: &mut Vec<u8>,
    ) -> Option<(u64, Option<Outcome>)> {
        match self.conns.get_mut(conn) {
            Some(here) => here.calls.take_tagged(pipeline, body),
            None => self.take_buried(conn, pipeline, body),
        }
    }

    #[cold]
    fn take_buried(
        &mut self,
        conn: ConnId,
        pipeline: u32,
        body: &mut Vec<u8>,
    ) -> Option<(u64, Option<Outcome>)> {
        let grave = self.grave(conn)?;
        let calls = &mut self.graves[grave].1;
        let taken = calls.take_tagged(pipeline, body);
        if !calls.has_untaken() {
            self.graves.swap_remove(grave);
        }
        taken
    }

    /// Nobody waits for the calls of `pipeline` any more.
    #[cold]
    pub(crate) fn cancel_tagged<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, pipeline: u32) {
        let keys: Vec<CallKey> = match self.conns.get_mut(conn) {
            Some(here) => here.calls.all_tagged(pipeline),
            None => self.grave(conn).map_or_else(Vec::new, |grave| self.graves[grave].1.all_tagged(pipeline)),
        };
        for key in keys {
            self.cancel(io, conn, key);
        }
    }
}
