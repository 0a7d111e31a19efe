//! Arguments and answers that a message does not hold, for both roles: offered as bulk, pulled, then read in place.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use gimmal_engine::{
    Io, RemoteBulk,
    transport::{Bulk, ConnId, Port, Time, Violation},
};

use super::{
    Node,
    answers::{drop_answered, status_answer, too_large},
    bringing::may_offer,
    header_cache::Requested,
    request::{Enclosed, Source},
    serving::Answered,
};
use crate::{
    calls::{self, CallKey, Reply},
    codec::{Encode, EncodeError, Raw},
    error::TransportError,
    frame::{Flags, ResponseHead},
    id::CallId,
    large::{Unlent, lend, no_reads, put_metadata},
    metadata::{self, Metadata},
    method::{Method, MethodKind},
    reach::Reach,
    service::Entry,
    stats::Counters,
    status::{Code, Fate, Status},
};

/// The metadata of a large request, which came before its arguments: layers judge by it. It lies before the arguments too.
fn metadata_of_large(flags: Flags, body: &[u8]) -> Result<Option<Metadata>, Violation> {
    if body.is_empty() {
        return Ok(None);
    }
    match flags.has(Flags::METADATA).then(|| metadata::split(body)).transpose()? {
        Some((metadata, [])) => Ok(Some(metadata)),
        _ => Err(malformed("large request with arguments")),
    }
}

const fn malformed(what: &'static str) -> Violation {
    Violation::Malformed { what }
}

impl Node {
    /// Starts a call whose arguments are above `limit`, what a message holds. `plain`: nothing else goes with it.
    #[expect(clippy::too_many_arguments, reason = "a call's parts, each needed once")]
    #[cold]
    pub(super) fn start_large<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        method: &'static Method,
        timeout: Option<Duration>,
        source: &impl Source,
        (plain, limit): (bool, usize),
        reply: Reply,
    ) -> Result<CallKey, Box<TransportError>> {
        let max = self.limits.message_bytes_max;
        if !plain || method.is_oneway || max <= limit {
            return self.refuse(reply, TransportError::TooLarge { limit });
        }
        if !may_offer(io, conn) {
            return self.refuse(reply, no_reads());
        }
        let reach = &self.reach;
        let allocate = |bytes| reach.allocate(conn, bytes);
        match lend(source.composed_bytes(), (limit, max), |out| source.compose(out), allocate) {
            Ok(loan) => {
                // It is counted once.
                self.counters.calls.decrement();
                self.counters.large.increment();
                let flags = source.flags();
                let mut block = Vec::new();
                put_metadata(&mut block, flags, &loan, limit);
                let enclosed = Enclosed(flags.and(Flags::LARGE), block);
                self.start(io, conn, method, timeout, enclosed, (Some(loan), None), reply)
            }
            Err(error) => self.refuse(reply, error.of_request(max)),
        }
    }

    /// A request arrived whose arguments are the bulk beside it.
    #[cold]
    pub(super) fn requested_large<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        (flags, id): (Flags, CallId),
        requested: &Requested,
        arguments: &[u8],
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        let bulk = bulk.ok_or(malformed("large request without bulk"))?;
        let metadata = metadata_of_large(flags, arguments)?;
        self.counters.requests.increment();
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        if here.serving.is_taken(id.slot) {
            return Err(malformed("call id: it is in use"));
        }
        match self.admit_large(id, requested, bulk.len()) {
            Ok(entry) if entry.method.streams_up || entry.method.streams_down => {
                Err(malformed("large request of a method with streams"))
            }
            Ok(entry) => {
                let is_noted = metadata.is_some();
                if let Some(metadata) = metadata {
                    self.note(conn, id.slot, metadata);
                }
                let deadline = requested.head.deadline_at(io.now());
                self.judge_and_pull(io, conn, id, (entry, flags, deadline), (&[], bulk))?;
                if is_noted {
                    self.forget_notes_of_refused(conn, id);
                }
                Ok(())
            }
            Err((why, text)) => {
                io.decline(conn, bulk);
                self.refuse_request(io, conn, id, why, text)
            }
        }
    }

    fn admit_large(
        &self,
        id: CallId,
        requested: &Requested,
        bytes: u64,
    ) -> Result<Entry, (ResponseHead, String)> {
        let entry = self.admit(id, requested).ok_or_else(|| self.why_not(id, requested))?;
        let max = self.limits.message_bytes_max;
        if bytes <= max as u64 {
            return Ok(entry);
        }
        let text =
            format!("the request of {bytes} bytes is above the server's message_bytes_max, {max} bytes");
        Err((ResponseHead::Status { code: Code::ResourceExhausted, fate: Fate::NotRun }, text))
    }

    /// The arguments of a request are here: it runs now, and reads them where they are.
    pub(super) fn run_large<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        (entry, flags): (&Entry, Flags),
        deadline: Time,
        bulk: &Bulk,
    ) -> Result<(), Violation> {
        let mut arguments = &bulk[..];
        if flags.has(Flags::METADATA) {
            let (metadata, behind) = metadata::split(bulk)?;
            // What its layers saw stands.
            if !self.is_noted(conn, id.slot) {
                self.note(conn, id.slot, metadata);
            }
            arguments = behind;
        }
        match entry.method.kind {
            MethodKind::Raw => {
                self.run_raw(io, conn, id, entry, deadline, arguments);
                Ok(())
            }
            MethodKind::Async => self.run_async(io, conn, id, entry, deadline, arguments, None),
        }
    }

    /// An answer arrived that is the bulk beside it.
    #[cold]
    pub(super) fn answered_large<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        response: (ResponseHead, &[u8]),
        bulk: Option<RemoteBulk>,
    ) -> Result<(), Violation> {
        let is_error = match response {
            (ResponseHead::Ok, []) => false,
            (ResponseHead::App, []) => true,
            _ => return Err(malformed("large answer")),
        };
        let bulk = bulk.ok_or(malformed("large answer without bulk"))?;
        let Some(here) = self.conns.get_mut(conn) else { return Ok(()) };
        let Some(index) = here.calls.answered(id) else {
            self.counters.late_answers.increment();
            io.decline(conn, bulk);
            return Ok(());
        };
        let (bytes, limit) = (bulk.len(), self.limits.message_bytes_max);
        if bytes > limit as u64 {
            io.decline(conn, bulk);
            let error = TransportError::AnswerAboveMax { bytes, limit };
            self.finish(conn, index, error);
        } else {
            let call = here.calls.call(index);
            (call.state, call.is_error, call.is_large) = (calls::State::Pulling, is_error, true);
            call.offer = Some(bulk);
            self.pull(io, conn, index);
        }
        self.more_requests(io, conn);
        Ok(())
    }

    /// Turns an answer that a message, whose limit is `limit`, does not hold into one that goes as bulk; or into a
    /// status, if it cannot.
    #[cold]
    pub(super) fn enclose_answer<P: Port>(
        &self,
        io: &Io<'_, P>,
        conn: ConnId,
        limit: usize,
        answered: &mut Answered,
    ) {
        enclose(&self.reach, &self.counters, self.limits.message_bytes_max, io, conn, limit, answered);
    }
}

/// See [`Node::enclose_answer`].
pub(super) fn enclose<P: Port>(
    reach: &Reach,
    counters: &Counters,
    max: usize,
    io: &Io<'_, P>,
    conn: ConnId,
    limit: usize,
    answered: &mut Answered,
) {
    if let Answered::Bytes(ResponseHead::Status { .. }, bytes) = answered {
        // A status is no value: it goes without its details.
        let message = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        return bytes.truncate(message);
    }
    let enclosed = if matches!(answered, Answered::Task(_, Some(_))) || max <= limit {
        // One message carries one loan.
        Err(too_large(limit))
    } else if !may_offer(io, conn) {
        let text = format!(
            "the answer is above a message's {limit} bytes, and cannot go as bulk: READs were negotiated away (depth 0)"
        );
        Err(Status::new(Code::FailedPrecondition, text))
    } else {
        write(answered, (limit, max), reach, conn, counters)
    };
    let instead = enclosed.unwrap_or_else(|status| status_answer(&status));
    drop_answered(std::mem::replace(answered, instead));
}

/// Writes an answer into registered memory.
fn write(
    answered: &mut Answered,
    limits: (usize, usize),
    reach: &Reach,
    conn: ConnId,
    counters: &Counters,
) -> Result<Answered, Status> {
    let allocate = |bytes| reach.allocate(conn, bytes);
    let (head, lent) = match answered {
        Answered::Bytes(head, bytes) => {
            counters.large_copied_bytes.add(bytes.len() as u64);
            (*head, lend(Some(bytes.len()), limits, |out| Raw::encode(&bytes[..], out), allocate))
        }
        Answered::Task(task, _) => {
            let head = if task.as_mut().is_error() { ResponseHead::App } else { ResponseHead::Ok };
            let panicked = |_| Err(EncodeError::Value("encoding it panicked".to_owned()));
            let bytes = catch_unwind(AssertUnwindSafe(|| task.as_mut().encoded_bytes())).ok().flatten();
            let compose = |out: &mut [u8]| {
                catch_unwind(AssertUnwindSafe(|| task.as_mut().encode(out))).unwrap_or_else(panicked)
            };
            (head, lend(bytes, limits, compose, allocate))
        }
        Answered::Large(..) => return Err(too_large(limits.0)),
    };
    match lent {
        Ok(loan) => {
            counters.large.increment();
            Ok(Answered::Large(head, Some(loan)))
        }
        Err(Unlent::AboveMax) => {
            let max = limits.1;
            let text = format!("the answer is above message_bytes_max, {max} bytes; return it as a loan");
            Err(Status::new(Code::ResourceExhausted, text))
        }
        Err(Unlent::Encode(error)) => Err(Status::new(Code::Internal, format!("the answer: {error}"))),
        Err(Unlent::Memory(error)) => {
            let text = format!("the answer needs registered memory: {error}");
            Err(Status::new(Code::ResourceExhausted, text))
        }
    }
}
