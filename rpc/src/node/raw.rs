//! Raw methods, and inline ones: run to their end where the request landed, into where the answer leaves from.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use gimmal_engine::{
    Head, Io, SendError,
    transport::{ConnId, Port, Time},
};

use super::{Node, answers::status_bytes, failure::Failure, serving::Answered};
use crate::{
    batch::{self, ITEM_BYTES, Items, item_bytes},
    cx::{Cx, Peer},
    frame::{BARE_RESPONSE, RESPONSE_BYTES, RESPONSES, ResponseHead},
    id::CallId,
    response_writer::ResponseWriter,
    service::{Entry, Service},
    status::Status,
};

/// A response that is not in place, or what the method panicked of.
type Beside = Result<(ResponseHead, Vec<u8>), Failure>;

/// The length of a value that was written in place, or the response that goes instead.
type Ended = Result<usize, Beside>;

/// A call of a raw method.
#[derive(Clone, Copy)]
struct Raw<'a> {
    service: &'a dyn Service,
    index: usize,
    cx: &'a Cx,
    request: &'a [u8],
}

impl Raw<'_> {
    /// Runs it to its end, with `place` for its answer.
    #[inline(always)]
    fn run(self, place: &mut [u8]) -> Ended {
        let mut answer = ResponseWriter::new(place);
        // A status is large: it is moved only when there is one.
        let mut refusal = None;
        let run = || {
            if let Err(status) = self.service.call_raw(self.index, self.cx, self.request, &mut answer) {
                refusal = Some(status);
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            return Err(Err(Failure::of(&*panic)));
        }
        if let Some(status) = refusal {
            return refused(&status);
        }
        match answer.finish() {
            // Its metadata goes before it, so it waits beside.
            Ok(bytes) if self.cx.peer.answer_notes.any() => {
                Err(Ok((ResponseHead::Ok, place[..bytes].to_vec()))) // metadata
            }
            Ok(bytes) => Ok(bytes),
            Err(beside) => Err(Ok(beside)),
        }
    }

    #[cold]
    fn run_without_place(self) -> Ended {
        self.run(&mut [])
    }
}

#[cold]
fn refused(status: &Status) -> Ended {
    Err(Ok((ResponseHead::of(status), status_bytes(status))))
}

/// The context of the calls that run next, but for their slots and marks.
#[inline]
fn context<'a>(cx: &'a mut Option<Cx>, peer: &Arc<Peer>, entry: &Entry, deadline: Time) -> &'a mut Cx {
    let cx = cx.get_or_insert_with(|| {
        let peer = Arc::clone(peer);
        Cx { peer, method: entry.method, slot: 0, mark: 0, deadline }
    });
    (cx.method, cx.deadline) = (entry.method, deadline);
    cx
}

impl Node {
    /// Runs a raw method to its end, reading in place and writing in place.
    #[inline]
    pub(super) fn run_raw<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        entry: &Entry,
        deadline: Time,
        request: &[u8],
    ) {
        self.counters.started.increment();
        let mark = self.next_mark();
        let Some(here) = self.conns.get_mut(conn) else { return };
        let running = &here.peer.running[id.slot as usize];
        running.store(mark, Ordering::Relaxed);
        let cx = context(&mut here.raw_cx, &here.peer, entry, deadline);
        (cx.slot, cx.mark) = (id.slot, mark);
        let call = Raw { service: self.registry.service(entry), index: entry.index(), cx, request };
        let (mut ran, mut beside) = (false, None);
        let head = Head { kind: BARE_RESPONSE, aux: id.aux() };
        let sent = io.send(conn, head, RESPONSE_BYTES, |body| {
            let (front, place) = ResponseHead::Ok.put(&[], body)?;
            ran = true;
            match call.run(place) {
                Ok(bytes) => Some(front + bytes),
                Err(instead) => {
                    beside = Some(instead);
                    None
                }
            }
        });
        if !ran && sent != Err(SendError::Closed) {
            // No room even for the head: the answer goes beside, and leaves when there is.
            // An empty value is in place without any.
            beside = Some(
                call.run_without_place().map_or_else(|beside| beside, |_| Ok((ResponseHead::Ok, Vec::new()))),
            );
        }
        running.store(0, Ordering::Relaxed);
        match beside {
            None => self.counters.answers.add(u64::from(sent.is_ok())),
            Some(beside) => self.answer_beside(io, conn, id, entry, beside),
        }
    }

    /// Runs a raw method for each of `requests`, one after the other, and all their answers leave in one message. What stays in
    /// `requests` goes another way: whatever is behind an answer that is large or found no place there, or begins with one that may not
    /// run.
    #[inline(never)]
    pub(super) fn run_raws<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        entry: &Entry,
        deadline: Time,
        requests: &mut Items<'_>,
    ) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        if self.shared.draining.load(Ordering::Relaxed) {
            return;
        }
        let (service, index) = (self.registry.service(entry), entry.index());
        let cx = context(&mut here.raw_cx, &here.peer, entry, deadline);
        let (serving, mark, slots) = (&here.serving, &mut self.mark, self.limits.serving_max);
        let (mut ran, mut beside) = (0, None);
        let head = Head { kind: RESPONSES, aux: 0 };
        let draft = here.draft.place();
        let sent = io.send(conn, head, item_bytes(batch::BYTES_MAX), |body| {
            let (mut at, mut first) = (0, 0);
            let most = body.len().min(draft.len());
            // The first goes where it belongs: a large one has no other beside it, and is not copied.
            let mut out = &mut *body;
            while let Some((front, place)) = out.get_mut(at..).and_then(<[u8]>::split_first_chunk_mut)
                && place.len() >= batch::BYTES_MAX
            {
                let mut rest = requests.clone();
                let Some(Ok((id, request))) = rest.next() else { break };
                if id.slot as usize >= slots || serving.is_taken(id.slot) {
                    break;
                }
                *requests = rest;
                *mark += 1;
                ran += 1;
                (cx.slot, cx.mark) = (id.slot, *mark);
                let running = &here.peer.running[id.slot as usize];
                running.store(*mark, Ordering::Relaxed);
                // As much as its head can say, and its padding has place too.
                let room = place.len().min(u16::MAX.into()) / ITEM_BYTES * ITEM_BYTES;
                let ended = Raw { service, index, cx, request }.run(&mut place[..room]);
                running.store(0, Ordering::Relaxed);
                let bytes = match ended {
                    Ok(bytes) => bytes,
                    Err(instead) => {
                        beside = Some((id, instead));
                        break;
                    }
                };
                batch::put_head(front, id, bytes);
                at += item_bytes(bytes);
                if first == 0 {
                    (first, out) = (at, &mut draft[..most]);
                }
                if bytes > batch::BYTES_MAX {
                    break;
                }
            }
            body[first..at].copy_from_slice(&draft[first..at]); // a draft
            (at > 0).then_some(at)
        });
        let in_place = ran - u64::from(beside.is_some());
        self.counters.requests.add(ran);
        self.counters.started.add(ran);
        self.counters.answers.add(if sent.is_ok() { in_place } else { 0 });
        if let Some((id, beside)) = beside {
            self.answer_beside(io, conn, id, entry, beside);
        }
    }

    /// The answer of a raw method that is not in place.
    #[cold]
    fn answer_beside<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        entry: &Entry,
        beside: Beside,
    ) {
        let answered = match beside {
            Ok((head, bytes)) => Answered::Bytes(head, bytes),
            Err(failure) => self.failed(entry.method, failure),
        };
        self.answer(io, conn, id, Time::NEVER, answered);
    }
}
