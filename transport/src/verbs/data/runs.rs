//! Chains are read where they landed, in the ring or in a slot.
//!
//! Chains and everything else come from the same completions, in their order. Anything but a chain stays where it is until
//! a poll, and a poll stops at the next chain.

use gimmal_rdma::verbs::Completion;

use crate::{
    mem::Run,
    verbs::{
        data::{
            conn::Conn,
            port::VerbsPort,
            rx::Begun,
            table::{Slot, conn_in},
            wr_id::WrId,
        },
        srq::receives::Next,
    },
};

/// Begins the chain that `done` brought into memory of its connection's own, if it did.
#[inline(always)]
fn begin_own<'a>(slots: &'a mut [Slot], done: &Completion) -> Option<(&'a Conn, Begun)> {
    let id = WrId::from_bits(done.wr_id);
    let Some(Slot { conn: Some(conn), .. }) = slots.get_mut(id.index()) else {
        return None;
    };
    let bytes = conn.chain(done)?;
    conn.rx.begin_run(id.slot(), bytes)?;
    let begun = Begun { conn: conn.id, left: bytes, bytes, is_out: false, place: None };
    Some((conn, begun))
}

impl VerbsPort {
    /// Returns frames of the next chain, if the next completion is one. Other completions wait for a poll.
    #[inline(always)]
    pub(crate) fn chain_run(&mut self, limit: usize) -> Option<Run> {
        let run = self.next_chain_run(limit);
        if run.is_none() && !self.read.is_empty() {
            self.grant_read();
        }
        run
    }

    #[inline(always)]
    fn next_chain_run(&mut self, limit: usize) -> Option<Run> {
        if limit == 0 {
            return None;
        }
        if self.begun.is_some() {
            let run = self.begun_run(limit);
            if run.is_some() || self.begun.is_some() {
                return run;
            }
        }
        if self.harvest.is_empty() {
            // A queue that gave less than it was asked for is not asked again at once.
            let mut emptied = std::mem::take(&mut self.emptied);
            if emptied >= self.cqs.len() || !self.fetch(&mut emptied) {
                return None;
            }
            self.emptied = emptied;
        }
        let Self { harvest, slots, begun, .. } = self;
        let run = harvest.take_new_if(|done| {
            let (conn, new) = begin_own(slots, done)?;
            let run = conn.rx.run(conn.id, new.left, limit)?;
            *begun = Some(Begun { is_out: true, ..new });
            Some(run)
        });
        run.or_else(|| self.other_run(limit))
    }

    /// Returns frames of a chain in a shared receive, or of one whose completion was taken too early.
    #[inline(never)]
    fn other_run(&mut self, limit: usize) -> Option<Run> {
        if self.begin_chain() { self.begun_run(limit) } else { None }
    }

    /// Returns frames of the chain that is being read.
    fn begun_run(&mut self, limit: usize) -> Option<Run> {
        let Begun { conn, left, is_out, .. } = self.begun?;
        let open = conn_in(&mut self.slots, conn).filter(|open| open.delivers());
        if is_out && open.as_ref().is_some_and(|open| open.rx.has_run()) {
            return None;
        }
        let run = open.and_then(|open| open.rx.run(conn, left, limit));
        match &mut self.begun {
            Some(begun) if run.is_some() => begun.is_out = true,
            _ => self.give_up_chain(),
        }
        run
    }

    /// Begins the next chain, if the next completion is one, and returns whether it is.
    pub(crate) fn begin_chain(&mut self) -> bool {
        let done = loop {
            let Some(done) = self.harvest.first() else { return false };
            if !WrId::from_bits(done.wr_id).is_shared() {
                break done;
            }
            match self.begin_shared(&done) {
                Next::Begun => return true,
                Next::Other => return false,
                // Only one that was looked at may be taken for none.
                Next::Dropped => {}
            }
        };
        let begun = begin_own(&mut self.slots, &done).map(|(_, begun)| begun);
        if begun.is_some() {
            self.harvest.take();
            self.begun = begun;
        }
        begun.is_some()
    }

    /// Gives up the rest of the chain. While a run of it is out, its slot is not posted again: it may still be read.
    pub(crate) fn give_up_chain(&mut self) {
        if let Some(Begun { conn, is_out: false, place: Some(place), .. }) = self.begun.take() {
            self.shared_read(conn, place, 0, true);
        }
    }

    /// Ends a run. The rest of its chain comes next.
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
        if let Some(place) = begun.place {
            let (kept, is_over) = (run.kept(), !matches!(ended, Ok(1..)));
            if is_over {
                conn.rx.leave();
            }
            self.shared_read(begun.conn, place, kept, is_over);
        }
        match ended {
            Ok(0) => {}
            Ok(left) => self.begun = Some(Begun { left, is_out: false, ..begun }),
            Err(violation) => self.begin_close(index, violation.into(), self.now),
        }
    }
}
