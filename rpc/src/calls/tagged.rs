//! Calls that are found by their pipeline and not by their key: an answer brings the tag of its call.

use gimmal_engine::transport::Time;

use super::{Calls, Reply, State, Tagged};
use crate::{calls::CallKey, cell::Outcome, id::CallId, method::Method};

impl Calls {
    /// Adds one that was just posted as `id`; `times` as [`Calls::insert`] has them.
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
        let wire = self.wires.get(id.slot as usize)?;
        let index = wire.call;
        // Nobody's is in no slot.
        let call = self.slots.get_mut(index as usize)?;
        let Reply::Tagged(tagged) = call.reply else { return None };
        if wire.generation != id.generation || tagged.pipeline != pipeline || call.loan.is_some() {
            return None;
        }
        call.reply_by(Reply::Local);
        self.free_wire(id.slot);
        self.release(index);
        Some(tagged.tag)
    }

    /// A call of `pipeline` that has ended in another way, once: its tag, and what it came to. `None` in its place: bytes,
    /// which are in `body` then.
    pub(crate) fn take_tagged(
        &mut self,
        pipeline: u32,
        body: &mut Vec<u8>,
    ) -> Option<(u64, Option<Outcome>)> {
        if self.untaken == 0 {
            return None;
        }
        let ended = |call: &super::Call| call.state == State::Done && call.of(pipeline).is_some();
        let index = self.slots.iter().position(ended)?;
        let call = &mut self.slots[index];
        let tag = call.of(pipeline)?.tag;
        call.reply = Reply::Local;
        let outcome = match call.outcome.take() {
            None if call.is_error => {
                Some(Outcome::Answered { is_error: true, body: std::mem::take(&mut call.body), bulk: None })
            }
            None => {
                std::mem::swap(&mut call.body, body);
                None
            }
            outcome => outcome,
        };
        self.untaken -= 1;
        self.release(u32::try_from(index).ok()?);
        Some((tag, outcome))
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
