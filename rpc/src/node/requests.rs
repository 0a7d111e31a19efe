//! Requests arrive, with a header or like the one before: what they ask for, and whether they may run.

use std::sync::atomic::Ordering;

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{
        ConnId, Port, Violation,
        pack::{high_half, low_half},
    },
};

use super::{Node, header_cache::Requested, schemas::FRONT_BYTES};
use crate::{
    batch::Items,
    copied,
    frame::{Flags, RequestHead, ResponseHead},
    id::CallId,
    metadata,
    method::{Method, MethodKind},
    service::Entry,
    shape::Form,
    status::{Code, Fate},
};

impl Node {
    /// A message with [`Kind::Request`](crate::frame::Kind::Request) arrived.
    pub(super) fn request_arrived<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (flags, id): (Flags, CallId),
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        if flags.has(Flags::BATCH) {
            return self.requested_batch(io, conn, body);
        }
        if flags.has(Flags::NO_HEAD) {
            return self.requested_again(io, conn, id, body);
        }
        let (head, arguments) = RequestHead::parse(body)?;
        let found = self.registry.find(head.method);
        let entry = found
            .filter(|entry| entry.method.signature_hash == head.signature || self.types_fit(conn, &head));
        let requested = Requested { head, entry };
        if flags.has(Flags::ONE_WAY) {
            self.one_way_arrived(io, conn, &requested, arguments, bulk);
            return Ok(());
        }
        if flags.has(Flags::LARGE) {
            return self.requested_large(io, conn, (flags, id), &requested, arguments, bulk);
        }
        if flags.has(Flags::METADATA) {
            let (metadata, arguments) = metadata::split(arguments)?;
            return self.requested_noted(io, conn, id, &requested, (metadata, arguments), bulk);
        }
        if let Some(here) = self.conns.get_mut(conn) {
            here.headers.received = Some(requested);
        }
        self.serve(io, conn, id, &requested, arguments, bulk)
    }

    /// A message with [`Kind::Schema`](crate::frame::Kind::Schema) arrived.
    #[cold]
    pub(super) fn schema_arrived(&mut self, conn: ConnId, body: &[u8]) -> Result<(), Violation> {
        let (called, types) = body
            .split_first_chunk::<FRONT_BYTES>()
            .ok_or(Violation::Malformed { what: "schema of a method" })?;
        let called = u64::from_le_bytes(*called);
        let found = self.registry.find(low_half(called)).map(|entry| entry.method);
        let differs =
            |method: &Method| method.form == Form::Named && method.signature_hash != high_half(called);
        match (found, self.conns.get_mut(conn)) {
            (Some(method), Some(here)) if differs(method) => {
                here.headers.schemas.judge(called, method, types)
            }
            _ => Ok(()),
        }
    }

    /// Whether a caller's types, which differ from ours, were found to fit.
    #[cold]
    fn types_fit(&mut self, conn: ConnId, head: &RequestHead) -> bool {
        self.conns.get_mut(conn).is_some_and(|here| here.headers.schemas.fit(head))
    }

    /// A request without a header arrived.
    #[inline]
    pub(super) fn requested_again<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        arguments: &[u8],
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let requested = here.headers.received()?;
        self.serve(io, conn, id, &requested, arguments, None)
    }

    /// Requests without headers arrived in one message.
    pub(super) fn requested_batch<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        body: &[u8],
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let requested = here.headers.received()?;
        let mut requests = Items::new(body);
        if let Some(entry) = requested.entry.filter(|entry| entry.method.kind == MethodKind::Raw) {
            self.run_raws(io, conn, &entry, requested.head.deadline_at(io.now()), &mut requests);
        }
        for request in requests {
            let (id, arguments) = request?;
            self.serve(io, conn, id, &requested, arguments, None)?;
        }
        Ok(())
    }

    /// Runs what was asked for, or says why not.
    #[inline]
    pub(super) fn serve<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        requested: &Requested,
        arguments: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        self.counters.requests.increment();
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        if here.serving.is_taken(id.slot) {
            // Its call was neither answered nor cancelled: a doubled request, or a liar.
            return Err(Violation::Malformed { what: "call id: it is in use" });
        }
        let Some(entry) = self.admit(id, requested) else {
            if let Some(bulk) = bulk {
                io.decline(conn, bulk);
            }
            let (why, text) = self.why_not(id, requested);
            return self.refuse_request(io, conn, id, why, text);
        };
        let deadline = requested.head.deadline_at(io.now());
        match bulk {
            Some(bulk) if entry.method.takes_bulk => {
                copied::count(arguments, &self.counters.copied_requests);
                return self.judge_and_pull(io, conn, id, (entry, Flags::NONE, deadline), (arguments, bulk));
            }
            Some(bulk) => io.decline(conn, bulk),
            None => {}
        }
        match entry.method.kind {
            MethodKind::Raw => {
                self.run_raw(io, conn, id, &entry, deadline, arguments);
                Ok(())
            }
            MethodKind::Async if entry.method.streams_up || entry.method.streams_down => {
                self.run_streams(io, conn, id, &entry, (deadline, requested.head.window), arguments)
            }
            MethodKind::Async => self.run_async(io, conn, id, &entry, deadline, arguments, None),
        }
    }

    /// The method that was asked for, if it may run.
    #[inline]
    pub(super) fn admit(&self, id: CallId, requested: &Requested) -> Option<Entry> {
        requested.entry.filter(|entry| {
            (id.slot as usize) < self.limits.serving_max
                && !self.shared.draining.load(Ordering::Relaxed)
                && (entry.method.kind == MethodKind::Raw || self.tasks.len() < self.limits.tasks_max)
        })
    }

    /// Why a request is refused.
    #[cold]
    pub(super) fn why_not(&self, id: CallId, requested: &Requested) -> (ResponseHead, String) {
        let refused = |code, text: String| (ResponseHead::Status { code, fate: Fate::NotRun }, text);
        let limit = self.limits.serving_max;
        if id.slot as usize >= limit {
            let text = format!("more than {limit} calls under way on this connection");
            return refused(Code::ResourceExhausted, text);
        }
        if self.shared.draining.load(Ordering::Relaxed) {
            return refused(Code::Unavailable, "the server is shutting down".to_owned());
        }
        let Some(entry) = self.registry.find(requested.head.method) else {
            // The caller knows its name.
            return refused(Code::Unimplemented, String::new());
        };
        if requested.entry.is_none() {
            return (ResponseHead::Mismatch, entry.method.declared());
        }
        let text = format!("{} handlers are pending on this worker, its limit", self.tasks.len());
        refused(Code::ResourceExhausted, text)
    }
}
