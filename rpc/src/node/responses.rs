//! Responses arrive, in every form, and their bulk is brought.

use gimmal_engine::{
    Io, Message, RemoteBulk, SendError,
    transport::{Bulk, BulkError, ConnId, Port, Violation},
};

use super::{Node, answers::status_of};
use crate::{
    batch::Items,
    calls::{CallKey, Calls, State},
    copied,
    error::{CallError, TransportError},
    frame::{BARE_RESPONSE, Flags, ResponseHead},
    id::CallId,
    metadata,
    method::Method,
    response::{Failure, Response},
    status::{Code, Fate, Status},
};

/// An answer that is nothing but bytes: whose, and they.
#[inline(always)]
fn plain_answer<'a>(message: &Message<'a>) -> Option<(CallId, &'a [u8])> {
    let is_plain = message.head.kind == BARE_RESPONSE && message.bulk.is_none();
    is_plain.then_some((CallId::from_aux(message.head.aux), message.body))
}

/// Of a call of `method`, which the server spells as `bytes` say.
fn mismatch(method: Option<&'static Method>, bytes: &[u8]) -> Failure {
    let unknown = TransportError::Worker { why: "a call of no method", fate: Fate::NotRun };
    method.map_or(CallError::Transport(unknown), |method| {
        CallError::Mismatch(Box::new(method.mismatch(&String::from_utf8_lossy(bytes))))
    })
}

/// The status of a call of `method`. A server does not know the names of methods that it does not have.
#[cold]
fn status_for(method: Option<&'static Method>, code: Code, fate: Fate, bytes: &[u8]) -> Status {
    match method {
        Some(method) if (code, fate, bytes) == (Code::Unimplemented, Fate::NotRun, &[]) => {
            Status::refused(code, format!("the server has no method {method}"))
        }
        _ => status_of(code, fate, bytes),
    }
}

impl Node {
    /// Brings the bulk of an answer. Returns whether there is room for more.
    pub(super) fn pull<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, index: u32) -> bool {
        let Some(here) = self.conns.get_mut(conn) else { return false };
        match pull(io, conn, &mut here.calls, index) {
            Pull::Started => true,
            Pull::Blocked => false,
            Pull::Refused => {
                let why = "the answer's bulk cannot be brought: negotiated away, or above bulk_bytes_max";
                let error = TransportError::NoBulk { why, fate: Fate::Ran };
                self.finish(conn, index, error);
                true
            }
        }
    }

    /// An answer arrived that is nothing but its payload.
    #[inline]
    pub(super) fn answered<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let Some(index) = here.calls.answered(id) else {
            self.counters.late_answers.increment();
            return Ok(());
        };
        self.counters.answered.increment();
        self.calls_live -= 1;
        self.waking.add(here.calls.finish_bytes(index, false, payload, &self.counters.copied_answers));
        if here.calls.is_queued() {
            self.send_requests(io, conn);
        }
        Ok(())
    }

    /// Answers arrived in one message.
    pub(super) fn answered_batch<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        body: &[u8],
    ) -> Result<(), Violation> {
        Items::new(body).try_for_each(|answer| {
            let (id, payload) = answer?;
            self.answered(io, conn, id, payload)
        })
    }

    /// Shows the answer of `key` to `read` where it landed, if `message` is it and has nothing but bytes: the call is over then.
    #[inline(always)]
    pub(crate) fn read_answer<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        key: CallKey,
        message: &Message<'_>,
        read: impl FnOnce(&[u8]),
    ) -> bool {
        let Some((id, payload)) = plain_answer(message) else { return false };
        let Some(here) = self.conns.get_mut(conn) else { return false };
        if !here.calls.end_by(key, id, || read(payload)) {
            return false;
        }
        self.counters.answered.increment();
        self.calls_live -= 1;
        if here.calls.is_queued() {
            self.send_requests(io, conn);
        }
        true
    }

    /// A message with [`Kind::Response`] arrived.
    pub(super) fn response_arrived<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (flags, id): (Flags, CallId),
        body: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        if flags.has(Flags::BATCH) {
            return self.answered_batch(io, conn, body);
        }
        if flags.has(Flags::NO_HEAD) {
            return self.answered(io, conn, id, body);
        }
        let (head, mut payload) = ResponseHead::parse(body)?;
        if flags.has(Flags::METADATA) {
            let (metadata, behind) = metadata::split(payload)?;
            self.answer_noted(conn, id, metadata);
            payload = behind;
        }
        if flags.has(Flags::LARGE) {
            self.answered_large(io, conn, id, (head, payload), bulk)
        } else {
            self.answered_otherwise(io, conn, id, (head, payload), bulk)
        }
    }

    /// A response arrived: an error, a status, or an answer that may have bulk.
    #[cold]
    fn answered_otherwise<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        (head, payload): (ResponseHead, &[u8]),
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let Some(index) = here.calls.answered(id) else {
            self.counters.late_answers.increment();
            if let Some(bulk) = bulk {
                io.decline(conn, bulk);
            }
            return Ok(());
        };
        let call = here.calls.call(index);
        let method = call.method;
        let wanted = method.is_some_and(|method| method.gives_bulk);
        let is_error = head == ResponseHead::App;
        match (head, bulk) {
            (ResponseHead::Ok, Some(bulk)) if wanted => {
                copied::into_buffer(&mut call.body, payload, &self.counters.copied_answers);
                (call.state, call.is_error, call.is_large) = (State::Pulling, is_error, false);
                call.offer = Some(bulk);
                self.pull(io, conn, index);
            }
            (head, bulk) => {
                if let Some(bulk) = bulk {
                    io.decline(conn, bulk);
                }
                match head {
                    ResponseHead::Ok | ResponseHead::App => {
                        self.counters.answered.increment();
                        self.calls_live -= 1;
                        let copies = &self.counters.copied_answers;
                        self.waking.add(here.calls.finish_bytes(index, is_error, payload, copies));
                    }
                    ResponseHead::Status { code, fate } => {
                        self.finish(conn, index, status_for(method, code, fate, payload));
                    }
                    ResponseHead::Mismatch => self.finish(conn, index, mismatch(method, payload)),
                }
            }
        }
        self.more_requests(io, conn);
        Ok(())
    }

    /// The bulk of an answer is here, or will not come.
    pub(super) fn answer_pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        key: CallKey,
        result: Result<Bulk, BulkError>,
    ) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        // A call that ended meanwhile: its bulk goes back by being dropped.
        let Some(index) = here.calls.find(key) else { return };
        let call = here.calls.call(index);
        if call.state != State::Pulling || call.offer.is_some() {
            return;
        }
        let (is_error, is_large) = (call.is_error, call.is_large);
        let body = if is_large { Vec::new() } else { std::mem::take(&mut call.body) };
        let response = match result {
            Ok(bulk) if is_large => Response::bulk(is_error, bulk),
            Ok(bulk) => Response { lent: Some(Box::new(bulk)), ..Response::owned(is_error, body) },
            Err(error) => TransportError::Bulk { error, fate: Fate::Ran }.into(),
        };
        self.finish(conn, index, response);
        if self.conns.get_mut(conn).is_some_and(|here| here.calls.first_unpulled().is_some()) {
            self.send_requests(io, conn);
        }
    }
}

/// What became of a pull.
enum Pull {
    Started,
    Blocked,
    Refused,
}

/// Starts to bring the bulk of an answer.
fn pull<P: Port>(io: &mut Io<'_, P>, conn: ConnId, calls: &mut Calls, index: u32) -> Pull {
    let token = calls.key(index).bits();
    let Some(bulk) = calls.call(index).offer.take() else { return Pull::Started };
    match io.pull(conn, bulk, token) {
        Ok(()) => Pull::Started,
        Err((SendError::Blocked, bulk)) => {
            calls.pull_later(index, bulk);
            Pull::Blocked
        }
        Err((_, bulk)) => {
            io.decline(conn, bulk);
            Pull::Refused
        }
    }
}
