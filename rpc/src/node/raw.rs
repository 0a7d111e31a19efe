//! Raw methods, and inline ones: run to their end where the request landed, into where the answer leaves from.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use gimmal_engine::{
    Io, SendError,
    transport::{ConnId, Port, Time},
};

use super::{
    Node,
    answers::{response, status_bytes},
    serving::Answered,
};
use crate::{
    answer::Answer,
    cx::Cx,
    frame::{Outcome, RESPONSE_BYTES},
    id::CallId,
    service::{Entry, Service},
    status::Status,
};

/// How a call ended.
enum Ended {
    /// With an answer of this length in place.
    InPlace(usize),
    /// With one that is not, or a status.
    Beside(Outcome, Vec<u8>),
    Panicked,
}

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
        let mut answer = Answer::new(place);
        // A status is large: it is moved only when there is one.
        let mut refusal = None;
        let run = || {
            if let Err(status) = self.service.call_raw(self.index, self.cx, self.request, &mut answer) {
                refusal = Some(status);
            }
        };
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            return Ended::Panicked;
        }
        if let Some(status) = refusal {
            return refused(&status);
        }
        match answer.finish() {
            // Its metadata goes before it, so it waits beside.
            Ok(bytes) if self.cx.peer.answer_notes.any() => {
                Ended::Beside(Outcome::Ok, place[..bytes].to_vec()) // metadata
            }
            Ok(bytes) => Ended::InPlace(bytes),
            Err((outcome, bytes)) => Ended::Beside(outcome, bytes),
        }
    }

    #[cold]
    fn run_without_place(self) -> Ended {
        self.run(&mut [])
    }
}

#[cold]
fn refused(status: &Status) -> Ended {
    Ended::Beside(Outcome::Status { code: status.code(), fate: status.fate() }, status_bytes(status))
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
        let cx = here.raw_cx.get_or_insert_with(|| Cx {
            peer: Arc::clone(&here.peer),
            method: entry.method,
            slot: id.slot,
            mark,
            deadline,
        });
        (cx.method, cx.slot, cx.mark, cx.deadline) = (entry.method, id.slot, mark, deadline);
        let call = Raw { service: self.registry.service(entry), index: entry.index(), cx, request };
        // Unless it is in place.
        let (mut ran, mut ended) = (false, None);
        let sent = io.send(conn, response(id), RESPONSE_BYTES, |body| {
            ran = true;
            let (front, place) = body.split_first_chunk_mut()?;
            match call.run(place) {
                Ended::InPlace(bytes) => {
                    *front = Outcome::Ok.encode();
                    Some(RESPONSE_BYTES + bytes)
                }
                otherwise => {
                    ended = Some(otherwise);
                    None
                }
            }
        });
        if !ran && sent != Err(SendError::Closed) {
            // No room even for the head: the answer goes beside, and leaves when there is.
            ended = Some(call.run_without_place());
        }
        running.store(0, Ordering::Relaxed);
        match ended {
            None => self.counters.answers.add(u64::from(sent.is_ok())),
            Some(ended) => self.answer_beside(io, conn, id, entry, ended),
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
        ended: Ended,
    ) {
        let answered = match ended {
            // There was no place, and nothing to put there.
            Ended::InPlace(_) => Answered::Bytes(Outcome::Ok, Vec::new()),
            Ended::Beside(outcome, bytes) => Answered::Bytes(outcome, bytes),
            Ended::Panicked => self.panicked(entry.method),
        };
        self.answer(io, conn, id, Time::NEVER, answered);
    }
}
