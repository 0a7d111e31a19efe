//! The short way of a poll: chains are read where they landed, in the ring or in a slot, without an event for each frame.
//!
//! Chains and everything else come from the same completions, in their order: what is no chain stays where it is until a poll.

use crate::{
    Batch, ConnId, Event,
    mem::Run,
    verbs::data::{
        port::{Slot, VerbsPort, conn_in},
        wr_id::WrId,
    },
};

/// A chain of which a run was handed out, while it is not over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) conn: ConnId,
    /// Bytes that were not read, and all of them.
    left: u32,
    bytes: u32,
    /// Its run was not ended. There is one at a time: the next would show what is given back with this one.
    is_out: bool,
}

impl VerbsPort {
    /// The next chain, if that is what comes next; everything else waits for a poll.
    #[inline(always)]
    pub(crate) fn chain_run(&mut self, limit: usize) -> Option<Run> {
        if limit == 0 || self.walking.is_some() {
            return None;
        }
        if let Some(Begun { conn, left, is_out, .. }) = self.begun {
            let open = conn_in(&mut self.slots, conn).filter(|open| open.delivers());
            if is_out && open.as_ref().is_some_and(|open| open.rx.has_run()) {
                return None;
            }
            let run = open.and_then(|open| open.rx.run(conn, left, limit));
            if let (Some(_), Some(begun)) = (&run, &mut self.begun) {
                begun.is_out = true;
                return run;
            }
            self.begun = None;
        }
        if self.harvest.is_empty() {
            // Who gave less than was asked for is not asked again at once.
            let mut emptied = std::mem::take(&mut self.emptied);
            if emptied >= self.cqs.len() || !self.fetch(&mut emptied) {
                return None;
            }
            self.emptied = emptied;
        }
        let Self { harvest, slots, begun, .. } = self;
        harvest.take_new_if(|done| {
            let id = WrId::from_bits(done.wr_id);
            let Some(Slot { conn: Some(conn), .. }) = slots.get_mut(id.index()) else {
                return None;
            };
            let bytes = conn.chain(done)?;
            conn.rx.begin_run(id.slot(), bytes)?;
            let run = conn.rx.run(conn.id, bytes, limit)?;
            *begun = Some(Begun { conn: conn.id, left: bytes, bytes, is_out: true });
            Some(run)
        })
    }

    /// Frames of a run that was ended too early, as events.
    #[cold]
    pub(crate) fn rest_of_run(&mut self, batch: &mut Batch) {
        while let Some(mut run) = self.begun.and_then(|_| self.chain_run(batch.room())) {
            let conn = run.conn();
            while let Some(frame) = run.next_frame().and_then(|lent| lent.keep()) {
                batch.push(Event::Frame { conn, frame });
            }
            self.end_chain_run(&mut run);
        }
    }

    /// What was taken of it is read; the rest comes next.
    #[inline]
    pub(crate) fn end_chain_run(&mut self, run: &mut Run) {
        let Some(begun) = self.begun else { return };
        let index = begun.conn.index() as usize;
        self.begun = None;
        let Some(Slot { conn: Some(conn), counters, .. }) = self.slots.get_mut(index) else { return };
        if conn.id != begun.conn {
            return;
        }
        if !conn.rx.place.is_some_and(|place| run.is_in(place.base)) {
            self.begun = Some(begun);
            return;
        }
        let taken = run.taken();
        counters.frames_received += u64::from(taken);
        self.pieces.came(taken);
        let ended = conn.rx.end_run(run, begun.bytes);
        run.end_here();
        if !matches!(ended, Ok(1..)) {
            conn.count_receive(counters);
        }
        self.owing.note(index, conn);
        match ended {
            Ok(0) => {}
            Ok(left) => self.begun = Some(Begun { left, is_out: false, ..begun }),
            Err(violation) => self.begin_close(index, violation.into(), self.now),
        }
    }
}
