//! The steps of a port with receives that its connections share: a completion names its slot and its queue pair.
//!
//! ```text
//!  posted ─ completion ─► taken ─ read by runs, the last kept frame released ─► posted
//!                           └ grant, goodbye, failure: at once ────────────►┘
//! ```

use std::sync::Arc;

use gimmal_rdma::verbs::Completion;

use crate::{
    Batch, ConnId, Time,
    mem::RxFrame,
    verbs::{
        data::{
            conn::Conn,
            port::VerbsPort,
            rx::{Begun, RUN},
            table::{Slot, conn_in},
            wr_id::WrId,
        },
        srq::{
            queue::SharedQueue,
            slots::{Place, QUEUES, SharedSlots},
        },
    },
};

/// What the next completion was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// A chain, which is taken and begun.
    Begun,
    /// A chain that its peer had no receive for. It is taken, and the one behind it may be of any connection.
    Dropped,
    /// No chain. It is not taken.
    Other,
}

/// Whether nothing comes any more for the connection at `index`.
fn is_gone(slots: &[Slot], index: usize) -> bool {
    let conn = slots.get(index).and_then(|slot| slot.conn.as_deref());
    conn.is_none_or(|conn| conn.fate.is_destroyed())
}

impl VerbsPort {
    /// Where the queue `number` is in the list; `None`: it is no more.
    fn queue_at(&mut self, number: u32) -> Option<usize> {
        let known = self.shared.iter().position(|slots| slots.number == number);
        known.or_else(|| {
            let queue = self.gate.shared.shared_queue(number)?;
            self.add_queue(&queue)
        })
    }

    fn add_queue(&mut self, queue: &Arc<SharedQueue>) -> Option<usize> {
        let new = SharedSlots::new(queue);
        match self.shared.iter().position(SharedSlots::is_over) {
            Some(at) => self.shared[at] = new,
            None if self.shared.len() < QUEUES => self.shared.push(new),
            None => return None,
        }
        self.shared.iter().position(|slots| slots.number == queue.number)
    }

    /// The connection at `index` uses `queue` from now on, with the queue pair `qp`.
    pub(crate) fn join(&mut self, queue: &Arc<SharedQueue>, qp: u32, index: usize) {
        let Some(at) = self.queue_at(queue.number) else { return };
        let users = &mut self.shared[at].users;
        match users.binary_search_by_key(&qp, |&(number, _)| number) {
            Ok(at) => users[at].1 = index,
            Err(at) => users.insert(at, (qp, index)),
        }
    }

    /// It is gone, and its queue pair.
    pub(crate) fn leave(&mut self, conn: &mut Conn, index: usize) {
        let Some(queue) = conn.rx.end_sharing() else { return };
        if let Some(slots) = self.shared.iter_mut().find(|slots| slots.number == queue.number) {
            slots.users.retain(|&(_, user)| user != index);
        }
        if self.begun.is_some_and(|begun| begun.conn == conn.id) {
            self.give_up_chain();
        }
    }

    /// Begins the chain that `done`, the next completion, brought into a shared receive, if it did.
    pub(crate) fn begin_shared(&mut self, done: &Completion) -> Next {
        let id = WrId::from_bits(done.wr_id);
        let Some(queue) = self.queue_at(id.queue()) else { return Next::Other };
        let place = Place { queue, slot: id.slot_of_queue() };
        let slots = &mut self.shared[queue];
        let Some(index) = slots.user(done.qp, |at| is_gone(&self.slots, at)) else { return Next::Other };
        let Some(Slot { conn: Some(conn), .. }) = self.slots.get_mut(index) else { return Next::Other };
        let Some(bytes) = conn.shared_chain(done) else { return Next::Other };
        let Some((memory, at, _)) = slots.memory(place.slot) else { return Next::Other };
        conn.rx.land(memory, at, place.bits());
        self.harvest.take();
        match conn.rx.begin_shared(bytes) {
            Ok(bytes) => {
                let conn = conn.id;
                self.begun = Some(Begun { conn, left: bytes, bytes, is_out: false, place: Some(place) });
                if let Some(lent) = slots.lent.get_mut(place.slot as usize) {
                    *lent += RUN;
                }
                Next::Begun
            }
            Err(violation) => {
                conn.rx.leave();
                self.post_slot(place);
                self.begin_close(index, violation.into(), self.now);
                Next::Dropped
            }
        }
    }

    /// Frames of the chain in a shared receive were read, `kept` of them are kept; nothing is left of it if it `is_over`.
    pub(crate) fn shared_read(&mut self, id: ConnId, place: Place, kept: u32, is_over: bool) {
        let slots = self.shared.get_mut(place.queue);
        let Some(lent) = slots.and_then(|slots| slots.lent.get_mut(place.slot as usize)) else { return };
        *lent += kept;
        if is_over {
            *lent -= RUN;
            if *lent == 0 {
                self.slot_came_back(id, place);
                // A caller that takes single frames may not look again for long.
                if self.takes_one && self.harvest.is_empty() {
                    self.grant_read();
                }
            }
        }
    }

    /// Grants the receives again whose chains were read. The turn tells peers of their credit after the look that found no
    /// run.
    pub(crate) fn grant_read(&mut self) {
        for id in self.read.drain(..) {
            if let Some(conn) = conn_in(&mut self.slots, id) {
                conn.rx.grant_again();
            }
        }
    }

    /// Posts a slot again of which nothing is lent. It is granted again by [`VerbsPort::grant_read`].
    fn slot_came_back(&mut self, id: ConnId, place: Place) {
        self.post_slot(place);
        match conn_in(&mut self.slots, id) {
            Some(conn) => {
                conn.rx.came_back();
                self.read.push(id);
            }
            None => {
                let queue = self.shared.get(place.queue).and_then(|slots| slots.queue.upgrade());
                queue.inspect(|queue| queue.common.give(1));
            }
        }
    }

    /// A shared receive completed that brought no chain.
    pub(crate) fn on_shared(&mut self, done: &Completion, now: Time, batch: &mut Batch) {
        let id = WrId::from_bits(done.wr_id);
        let slot = id.slot_of_queue();
        let Some(queue) = self.queue_at(id.queue()) else { return };
        let place = Place { queue, slot };
        let slots = &mut self.shared[queue];
        let Some(index) = slots.user(done.qp, |at| is_gone(&self.slots, at)) else {
            if !self.on_early(done) {
                self.post_slot(place);
            }
            return;
        };
        let Some((region, at, _)) = slots.memory(slot) else { return };
        let Some(Slot { conn: Some(conn), .. }) = self.slots.get_mut(index) else {
            return self.post_slot(place);
        };
        conn.rx.land(region, at, place.bits());
        self.on_completion_of(index, done, now, batch);
        if let Some(Slot { conn: Some(conn), .. }) = self.slots.get_mut(index) {
            conn.rx.leave();
        }
        self.post_slot(place);
    }

    /// A frame came back, of a connection that may be gone.
    pub(crate) fn release_shared(&mut self, id: ConnId, frame: RxFrame, place: Place) {
        let Some(slots) = self.shared.get_mut(place.queue) else { return };
        // Another port's, or one that somebody holds.
        if frame.is_held() || !slots.memory(place.slot).is_some_and(|(memory, ..)| frame.is_in(memory)) {
            return;
        }
        drop(frame);
        let Some(lent) = slots.lent.get_mut(place.slot as usize).filter(|lent| **lent > 0) else { return };
        *lent -= 1;
        if *lent == 0 {
            self.slot_came_back(id, place);
            if let Some(conn) = conn_in(&mut self.slots, id) {
                conn.rx.grant_again();
            }
        }
    }

    pub(crate) fn post_slot(&mut self, place: Place) {
        let Some(slots) = self.shared.get_mut(place.queue) else { return };
        let Some(queue) = slots.queue.upgrade() else { return };
        let Some(bytes) = slots.local(place.slot) else { return };
        self.recvs.push(WrId::shared(slots.number, place.slot), Some(bytes));
        if let Err(error) = self.recvs.post_shared(queue.srq()) {
            tracing::error!(errno = error.errno, "a shared receive is lost: ibv_post_srq_recv failed");
        }
    }
}
