//! The bulk of requests, brought before their handlers run.

use gimmal_engine::{
    Io, SendError,
    transport::{Bulk, BulkError, ConnId, Port, Time},
};

use super::{
    CALLEE, Node,
    answers::clip,
    serving::{Answered, State},
};
use crate::{
    frame::Outcome,
    id::CallId,
    status::{Code, Fate},
};

impl Node {
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
                *offer = Some(bulk);
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
        here.serving.free(id.slot);
        self.counters.serving.decrement();
        self.counters.refused.increment();
        let outcome = Outcome::Status { code: Code::ResourceExhausted, fate: Fate::NotRun };
        let text = format!("the request's bulk was not brought: {why}");
        self.answer(io, conn, id, Time::NEVER, Answered::Bytes(outcome, clip(&text).into()));
    }

    /// The bulk of a request is here, or will not come.
    pub(super) fn request_pulled<P: Port>(
        &mut self,
        io: &mut Io<'_, P>,
        conn: ConnId,
        token: u64,
        result: Result<Bulk, BulkError>,
    ) {
        let index = (token & 0xffff) as u32;
        let Some(here) = self.conns.get_mut(conn) else { return };
        let Some(slot) = here.serving.slot(index) else { return };
        if pull_token(index, slot.mark) != token || !matches!(slot.state, State::Pulling { .. }) {
            return;
        }
        let (id, deadline) = (CallId { slot: index, generation: slot.generation }, slot.deadline);
        let bulk = match result {
            Ok(bulk) => bulk,
            Err(error) => return self.fail_pull(io, conn, id, &error.to_string()),
        };
        let State::Pulling { entry, arguments, is_large, .. } = here.serving.free(index) else { return };
        self.counters.serving.decrement();
        let run = if is_large {
            self.run_large(io, conn, id, &entry, deadline, &bulk)
        } else {
            self.run_async(io, conn, id, &entry, deadline, &arguments, Some(bulk))
        };
        if let Err(violation) = run {
            io.abort(conn, violation.into());
        }
    }
}

fn pull_token(slot: u32, mark: u64) -> u64 {
    u64::from(slot) | (mark << 16 & (CALLEE - 1))
}
