//! Calls of pipelines: how they leave, their answers, and what else they come to.

use gimmal_engine::{
    Head, Io, Message,
    transport::{ConnId, Port},
};

use super::{
    Node,
    request::{Fresh, send_request},
};
use crate::{
    batch::{self, Items},
    calls::{CallKey, Calls, Reply, Tagged},
    error::TransportError,
    frame::{BARE_RESPONSE, Flags, REQUESTS, RESPONSES, RequestHead},
    id::CallId,
    method::Method,
    response::Response,
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
    /// Starts calls, one like the other: small ones together, as many as a message may hold, and each at once, if it can leave.
    /// `started` counts them. Ends with the first that is refused.
    #[inline(always)]
    pub(crate) fn post_tagged<'a, P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        common: &Common,
        asked: &mut impl Iterator<Item = Asked<'a>>,
        started: &mut usize,
    ) -> Result<(), Box<TransportError>> {
        loop {
            let mut some: [Asked<'a>; batch::CALLS] = [(0, &[]); batch::CALLS];
            let mut taken = 0;
            // The iterator is user code and may panic: none of these calls is in flight yet.
            while taken < batch::CALLS
                && let Some(next) = asked.next()
            {
                some[taken] = next;
                taken += 1;
            }
            let mut rest = &some[..taken];
            while let Some((tag, request)) = rest.first() {
                let mut posted = self.post(io, common, rest);
                if posted == 0 {
                    // It waits, or is large.
                    let Common { conn, method, timeout, pipeline } = *common;
                    let reply = Reply::Tagged(Tagged { pipeline, tag: *tag });
                    let source = Fresh::new(*request);
                    self.begin(io, conn, method, timeout, source, (&mut None, None), reply)?;
                    posted = 1;
                }
                *started += posted;
                rest = &rest[posted..];
            }
            if taken < batch::CALLS {
                return Ok(());
            }
        }
    }

    /// Starts the first of `calls`, or several of them in one message. How many: 0 if the first goes another way, which
    /// [`Node::begin`] knows.
    #[inline]
    fn post<P: Port>(&mut self, io: &mut Io<'_, P>, common: &Common, calls: &[Asked<'_>]) -> usize {
        let Common { conn, method, timeout, pipeline } = *common;
        let now = io.now();
        self.look(now);
        self.stale = true;
        let times = (now, timeout.after(now));
        let head = RequestHead::new(method, timeout.us(), 0).words();
        let Some(here) = self.conns.get_mut(conn).filter(|here| !here.calls.is_queued()) else { return 0 };
        let mut posted = 0;
        let small = calls.iter().take_while(|(_, request)| request.len() <= batch::BYTES_MAX).count();
        if here.headers.sent == Some(head)
            && here.calls.next_wire().is_some()
            && let small @ [first, second, ..] = &calls[..small]
        {
            let least = batch::item_bytes(first.1.len()) + batch::item_bytes(second.1.len());
            // Whatever was written is in flight: should the connection be at its end, so are they.
            let _ = io.send(conn, Head { kind: REQUESTS, aux: 0 }, least, |body| {
                let (put, bytes) =
                    here.calls.put_batch((body, here.draft.place()), small, method, times, pipeline);
                posted = put;
                (put > 0).then_some(bytes)
            });
        }
        if posted == 0
            && let Some((tag, request)) = calls.first()
            && let Some(id) = here.calls.next_wire()
        {
            let source = Fresh::new(*request);
            let sent = send_request(
                io,
                conn,
                id,
                (method, Flags::NONE, head),
                &mut here.headers,
                &mut None,
                &source,
            );
            if sent.is_ok() {
                here.calls.insert_tagged(id, method, times, Tagged { pipeline, tag: *tag });
                posted = 1;
            }
        }
        if posted > 0 {
            self.alone = false;
            self.next_deadline = self.next_deadline.min(times.1);
            self.counters.calls.add(posted as u64);
            self.counters.posted.add(posted as u64);
            self.calls_live += posted;
        }
        posted
    }

    /// Shows the answers of calls of `pipeline` to `read`, with the calls' tags, where they landed, if `message` is one or several
    /// and has nothing but bytes: the calls are over then.
    #[inline(always)]
    pub(crate) fn read_tagged<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        pipeline: u32,
        message: &Message<'_>,
        read: &mut impl FnMut(u64, &[u8]),
    ) -> bool {
        if message.bulk.is_some() {
            return false;
        }
        match message.head.kind {
            RESPONSES => {
                self.read_batch(io, conn, pipeline, Items::new(message.body), read);
                true
            }
            BARE_RESPONSE => {
                let id = CallId::from_aux(message.head.aux);
                let is_ours = self.read_one(conn, pipeline, id, message.body, read);
                if is_ours {
                    self.more_requests(io, conn);
                }
                is_ours
            }
            _ => false,
        }
    }

    fn read_batch<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        pipeline: u32,
        mut answers: Items<'_>,
        read: &mut impl FnMut(u64, &[u8]),
    ) {
        while let Some(here) = self.conns.get_mut(conn) {
            let other = here.calls.read_batch(&mut answers, pipeline, |tag, answer| {
                self.counters.answered.increment();
                self.calls_live -= 1;
                read(tag, answer);
            });
            let Some(other) = other else { return self.more_requests(io, conn) };
            // Somebody else's.
            if let Err(violation) = other.and_then(|(id, answer)| self.answered(io, conn, id, answer)) {
                return io.abort(conn, violation.into());
            }
        }
    }

    #[inline(always)]
    fn read_one(
        &mut self,
        conn: ConnId,
        pipeline: u32,
        id: CallId,
        answer: &[u8],
        read: &mut impl FnMut(u64, &[u8]),
    ) -> bool {
        let Some(here) = self.conns.get_mut(conn) else { return false };
        let Some(tag) = here.calls.end_tagged(id, pipeline) else { return false };
        self.counters.answered.increment();
        self.calls_live -= 1;
        read(tag, answer);
        true
    }

    /// Whether any call that this thread made has ended and was not taken; perhaps, if the connection is gone.
    #[inline]
    pub(crate) fn has_done(&mut self, conn: ConnId) -> bool {
        self.conns.get_mut(conn).is_none_or(|here| here.calls.has_done())
    }

    /// Returns the tag of a call of `pipeline` whose answer was not shown where it landed, and how it ended, once; see
    /// `Calls::take_tagged`.
    pub(crate) fn take_tagged(
        &mut self,
        conn: ConnId,
        pipeline: u32,
        spare: &mut Vec<u8>,
    ) -> Option<(u64, Response)> {
        match self.conns.get_mut(conn) {
            Some(here) => here.calls.take_tagged(pipeline, spare),
            None => self.take_closed(conn, |calls| calls.take_tagged(pipeline, spare)),
        }
    }

    #[cfg(test)]
    pub(super) fn key_tagged(&mut self, conn: ConnId, pipeline: u32, tag: u64) -> Option<CallKey> {
        match self.conns.get_mut(conn) {
            Some(here) => here.calls.tagged(pipeline, tag),
            None => self.closed_calls(conn)?.tagged(pipeline, tag),
        }
    }

    fn closed_calls(&self, conn: ConnId) -> Option<&Calls> {
        self.closed.iter().find(|(closed, _)| *closed == conn).map(|(_, calls)| calls)
    }

    /// Nobody waits for the calls of `pipeline` any more.
    #[cold]
    pub(crate) fn cancel_tagged<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, pipeline: u32) {
        let keys: Vec<CallKey> = match self.conns.get_mut(conn) {
            Some(here) => here.calls.all_tagged(pipeline),
            None => self.closed_calls(conn).map_or_else(Vec::new, |calls| calls.all_tagged(pipeline)),
        };
        for key in keys {
            self.cancel(io, conn, key);
        }
    }
}
