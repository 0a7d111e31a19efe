//! Calls that are found by their pipeline and not by their key: an answer brings the tag of its call.

use std::mem;

use gimmal_engine::transport::{Time, Violation};

use super::{Calls, Reply, State, Tagged};
use crate::{
    batch::{self, Items},
    calls::CallKey,
    id::CallId,
    method::Method,
    response::Response,
};

impl Calls {
    /// Writes calls of a pipeline one after the other into a message's `body`, by a [draft](batch::Draft), as far as there
    /// is room and the window has slots. They are in flight then. Returns how many, and the bytes that they take. `times`
    /// are those of [`Calls::insert`].
    #[inline(never)]
    pub(crate) fn put_batch(
        &mut self,
        (body, draft): (&mut [u8], &mut [u8]),
        calls: &[(u64, &[u8])],
        method: &'static Method,
        times: (Time, Time),
        pipeline: u32,
    ) -> (usize, usize) {
        let (mut put, mut at) = (0, 0);
        let room = body.len().min(draft.len());
        for (tag, request) in calls {
            let Some(id) = self.next_wire() else { break };
            let Some(taken) = draft.get_mut(at..room).and_then(|place| batch::put(place, id, request)) else {
                break;
            };
            self.insert_tagged(id, method, times, Tagged { pipeline, tag: *tag });
            at += taken;
            put += 1;
        }
        body[..at].copy_from_slice(&draft[..at]);
        (put, at)
    }

    /// Shows `read` the answers of calls of `pipeline`, which are over then, up to the first that is of another, or is none: that
    /// is returned.
    #[inline(never)]
    pub(crate) fn read_batch<'a>(
        &mut self,
        answers: &mut Items<'a>,
        pipeline: u32,
        mut read: impl FnMut(u64, &[u8]),
    ) -> Option<Result<(CallId, &'a [u8]), Violation>> {
        for answer in answers {
            let Ok((id, payload)) = answer else { return Some(answer) };
            let Some(tag) = self.end_tagged(id, pipeline) else { return Some(answer) };
            read(tag, payload);
        }
        None
    }

    /// Adds one that is posted as `id`; `times` as [`Calls::insert`] has them.
    #[inline(always)]
    pub(crate) fn insert_tagged(
        &mut self,
        id: CallId,
        method: &'static Method,
        times: (Time, Time),
        tagged: Tagged,
    ) {
        let (_, call) = self.insert(id, method, times);
        call.reply_by(Reply::Tagged(tagged));
    }

    /// Ends the call that left as `id`, if it is one of `pipeline` and waits for nothing but bytes. Its tag.
    #[inline(always)]
    pub(crate) fn end_tagged(&mut self, id: CallId, pipeline: u32) -> Option<u64> {
        let index = self.wires.call(id)?;
        let call = self.slots.get_mut(index as usize)?;
        let Reply::Tagged(tagged) = call.reply else { return None };
        if tagged.pipeline != pipeline || call.loan.is_some() {
            return None;
        }
        call.reply_by(Reply::Local);
        self.wires.free(id.slot);
        self.release(index);
        Some(tagged.tag)
    }

    /// Returns the tag of a call of `pipeline` that has ended in another way, and how, once. `spare` takes the place of the
    /// buffer that leaves.
    pub(crate) fn take_tagged(&mut self, pipeline: u32, spare: &mut Vec<u8>) -> Option<(u64, Response)> {
        if self.done == 0 {
            return None;
        }
        let ended = |call: &super::Call| call.state == State::Done && call.of(pipeline).is_some();
        // Behind the last one that was taken: calls that end together are each looked at once.
        let (before, behind) = self.slots.split_at(self.taken_to.min(self.slots.len()));
        let index = behind.iter().position(ended).map(|at| before.len() + at);
        let index = index.or_else(|| before.iter().position(ended))?;
        self.taken_to = index + 1;
        let call = &mut self.slots[index];
        let tag = call.of(pipeline)?.tag;
        call.reply = Reply::Local;
        let (response, is_error) = (call.response.take(), call.is_error);
        let owned = || Response::owned(is_error, mem::replace(&mut call.body, mem::take(spare)));
        let response = response.unwrap_or_else(owned);
        self.done -= 1;
        self.release(u32::try_from(index).ok()?);
        Some((tag, response))
    }

    /// One of them.
    #[cfg(test)]
    pub(crate) fn tagged(&self, pipeline: u32, tag: u64) -> Option<CallKey> {
        let mut calls = (0u32..).zip(&self.slots);
        let is_it = |call: &super::Call| call.of(pipeline).is_some_and(|tagged| tagged.tag == tag);
        calls.find(|(_, call)| is_it(call)).map(|(index, call)| CallKey::new(index, call.generation))
    }

    /// The calls of `pipeline`, however far they are.
    pub(crate) fn all_tagged(&self, pipeline: u32) -> Vec<CallKey> {
        let ours = (0u32..).zip(&self.slots).filter(|(_, call)| call.of(pipeline).is_some());
        ours.map(|(index, call)| CallKey::new(index, call.generation)).collect()
    }
}

impl super::Call {
    /// If it is one of `pipeline`. A free one is nobody's.
    fn of(&self, pipeline: u32) -> Option<Tagged> {
        self.reply.tagged().filter(|tagged| tagged.pipeline == pipeline)
    }
}
