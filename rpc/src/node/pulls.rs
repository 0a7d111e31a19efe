//! The bulk of requests, brought before their handlers run.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use gimmal_engine::{
    Io, RemoteBulk, SendError,
    transport::{Bulk, BulkError, ConnId, Port, Time, Violation, pack::Field},
};

use super::{
    CALLEE, ITEM, Node,
    answers::clip,
    serving::{Answered, State},
};
use crate::{
    admission::Admitted,
    config::WINDOW_MAX,
    cx::Cx,
    frame::{Flags, ResponseHead},
    id::CallId,
    service::Entry,
    status::{Code, Fate, Status},
};

impl Node {
    /// Takes the slot of a request whose service lets it in, and starts to bring its bulk. Layers judge it first, so that one that is
    /// refused brings nothing.
    #[cold]
    pub(super) fn judge_and_pull<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        id: CallId,
        (entry, flags, deadline): (Entry, Flags, Time),
        (arguments, bulk): (&[u8], RemoteBulk),
    ) -> Result<(), Violation> {
        match self.judge(conn, id, &entry, deadline) {
            Ok(admitted) => {
                let (arguments, offer) = (arguments.to_vec(), Some(bulk)); // counted
                let state = State::Pulling { entry, arguments, offer, flags, admitted };
                self.occupy(conn, id, (io.now(), deadline), state);
                self.pull_request(io, conn, id.slot);
                Ok(())
            }
            Err(status) => {
                io.decline(conn, bulk);
                self.not_started(io, conn, id, &status)
            }
        }
    }

    /// What the service of a request makes of it.
    fn judge(
        &mut self,
        conn: ConnId,
        id: CallId,
        entry: &Entry,
        deadline: Time,
    ) -> Result<Option<Admitted>, Status> {
        // Of the use of the slot that follows.
        let mark = self.mark + 1;
        let Some(here) = self.conns.get_mut(conn) else { return Ok(None) };
        here.peer.running[id.slot as usize].store(mark, Ordering::Relaxed);
        let cx = Cx { peer: Arc::clone(&here.peer), method: entry.method, slot: id.slot, mark, deadline };
        let service = self.registry.service(entry);
        catch_unwind(AssertUnwindSafe(|| service.admit(entry.index(), &cx))).unwrap_or_else(|_| {
            self.counters.panics.increment();
            if let Some(left_out) = self.tasks.log_line() {
                tracing::error!(method = %entry.method, left_out, "a layer of the service panicked");
            }
            Err(Status::refused(Code::Internal, "a layer of the service panicked"))
        })
    }

    /// Starts to bring the bulk of a request. Returns whether there is room for more.
    pub(super) fn pull_request<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, index: u32) -> bool {
        let Some(here) = self.conns.get_mut(conn) else { return false };
        let Some(slot) = here.serving.slot(index) else { return true };
        let id = CallId { slot: index, generation: slot.generation };
        let token = pull_token(index, slot.mark);
        let State::Pulling { offer, .. } = &mut slot.state else { return true };
        let Some(bulk) = offer.take() else { return true };
        match io.pull(conn, bulk, CALLEE | token) {
            Ok(()) => true,
            Err((SendError::Blocked, bulk)) => {
                here.serving.pull_later(index, bulk);
                false
            }
            Err((error, bulk)) => {
                io.decline(conn, bulk);
                self.fail_pull(io, conn, id, &error.to_string());
                true
            }
        }
    }

    fn fail_pull<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, id: CallId, why: &str) {
        let Some(here) = self.conns.get_mut(conn) else { return };
        here.peer.running[id.slot as usize].store(0, Ordering::Relaxed);
        let state = here.serving.free(id.slot);
        // Its offer is gone.
        let _ = self.drop_state(state);
        self.counters.serving.decrement();
        let head = ResponseHead::Status { code: Code::ResourceExhausted, fate: Fate::NotRun };
        self.count_refused(head);
        let text = format!("the request's bulk was not brought: {why}");
        self.answer(io, conn, id, Time::NEVER, Answered::Bytes(head, clip(&text).into()));
    }

    /// The bulk of a request is here, or will not come.
    pub(super) fn request_pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Bulk, BulkError>,
    ) {
        let index = SlotBits::get_u32(token);
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(slot) = here.serving.slot(index) else { return };
        if pull_token(index, slot.mark) != token || !matches!(slot.state, State::Pulling { .. }) {
            return;
        }
        let (id, deadline, mark) =
            (CallId { slot: index, generation: slot.generation }, slot.deadline, slot.mark);
        let bulk = match result {
            Ok(bulk) => bulk,
            Err(error) => return self.fail_pull(io, conn, id, &error.to_string()),
        };
        let peer = Arc::clone(&here.peer);
        let State::Pulling { entry, arguments, flags, admitted, .. } = here.serving.free(index) else {
            return;
        };
        self.counters.serving.decrement();
        self.note_again(conn, index, mark);
        if let Some(admitted) = admitted {
            peer.admission.put(self.mark + 1, admitted);
        }
        let run = if flags.has(Flags::LARGE) {
            self.run_large(io, conn, id, (&entry, flags), deadline, &bulk)
        } else {
            self.run_async(io, conn, id, &entry, deadline, &arguments, Some(bulk))
        };
        drop_admitted(peer.admission.clear());
        if let Err(violation) = run {
            io.abort(conn, violation.into());
        }
    }
}

/// Drops what nobody took; a panic of a layer stays in here.
pub(super) fn drop_admitted(admitted: Option<Admitted>) {
    if catch_unwind(AssertUnwindSafe(|| drop(admitted))).is_err() {
        tracing::error!("a layer of a service panicked when its call was given up");
    }
}

/// What a pull of a request is known by: its slot, and the mark of that use of the slot, which goes round after 2^46 requests.
/// [`CALLEE`] is above them.
type SlotBits = Field<0, 16>;
type MarkBits = Field<{ SlotBits::END }, 46>;
const _: () = assert!(WINDOW_MAX as u64 <= SlotBits::MAX + 1 && ITEM == 1 << MarkBits::END);

fn pull_token(slot: u32, mark: u64) -> u64 {
    SlotBits::turn(slot.into()) | MarkBits::turn(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_pulls_tell_slots_and_marks_apart() {
        let last = u32::try_from(WINDOW_MAX).unwrap() - 1;
        for (slot, mark) in [(0, 1), (last, 1), (last, (1 << 46) - 1), (0, u64::MAX)] {
            let token = pull_token(slot, mark);
            assert_eq!(SlotBits::get_u32(token), slot);
            assert_eq!(token & (CALLEE | ITEM), 0, "another pull");
            assert_ne!(pull_token(slot, mark.wrapping_add(1)), token);
            assert_ne!(pull_token(slot ^ 1, mark), token);
        }
        assert_eq!(pull_token(3, 1 << 46), pull_token(3, 0), "marks go round");
    }
}
