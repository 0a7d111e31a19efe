//! The shared receives of each completion queue as the port's own thread sees them: which connection's chain is in which slot,
//! and which slots returned.
//! A slot may outlive the connection whose frames lie in it.

use std::{
    rc::Rc,
    sync::{Arc, Weak},
};

use gimmal_rdma::verbs::LocalBytes;

use crate::{
    mem::{RxMemory, run::IN_RING},
    pack::{Field, low_half},
    verbs::{
        data::wr_id::INDEX_LIMIT,
        srq::queue::{SLAB_SLOTS, SharedQueue},
    },
};

type SlotBits = Field<0, 20>;
type QueueBits = Field<{ SlotBits::END }, 11>;
/// Set in what a frame remembers of its place when that is shared.
type SharedBit = Field<{ QueueBits::END }, 1>;
/// Every slot of a queue has a place, and none of them looks like a ring or a slot of a connection's own.
const _: () = assert!(SharedBit::END == u32::BITS && SlotBits::MAX + 1 == INDEX_LIMIT as u64);
const _: () = assert!(SharedBit::get(IN_RING as u64) == 0 && IN_RING > u16::MAX as u32);

/// Queues that a port can tell apart: one for each completion queue with connections that share, and more each time that
/// a device comes back.
pub(crate) const QUEUES: usize = 1 << (QueueBits::END - SlotBits::END);

/// Where a chain landed: the port's number of the queue, and the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) queue: usize,
    pub(crate) slot: u32,
}

impl Place {
    /// From what a frame remembers; `None`: it lies in its connection's own memory.
    pub(crate) fn parse(bits: u32) -> Option<Self> {
        let bits = u64::from(bits);
        let (queue, slot) = (usize::from(QueueBits::get_u16(bits)), SlotBits::get_u32(bits));
        (SharedBit::get(bits) != 0).then_some(Self { queue, slot })
    }

    pub(crate) fn bits(self) -> u32 {
        // A list of at most QUEUES queues, with at most INDEX_LIMIT slots each.
        low_half(SharedBit::turn(1) | QueueBits::turn(self.queue as u64) | SlotBits::turn(self.slot.into()))
    }
}

/// One queue.
#[derive(Debug)]
pub(crate) struct SharedSlots {
    /// Nothing of a device is held without a connection on it.
    pub(crate) queue: Weak<SharedQueue>,
    pub(crate) number: u32,
    slot_bytes: u32,
    slabs: Vec<(Rc<RxMemory>, u32)>,
    /// Frames of each slot that were lent and not released.
    pub(crate) lent: Vec<u32>,
    /// Queue pairs by number, and where their connections are.
    pub(crate) users: Vec<(u32, usize)>,
}

impl SharedSlots {
    pub(crate) fn new(queue: &Arc<SharedQueue>) -> Self {
        Self {
            queue: Arc::downgrade(queue),
            number: queue.number,
            slot_bytes: queue.sizes.slot_bytes,
            slabs: Vec::new(),
            lent: Vec::new(),
            users: Vec::new(),
        }
    }

    /// Where the connection with the queue pair `qp` is. Not one whose queue pair `is_gone`: then the number may be another's,
    /// which has not joined yet.
    pub(crate) fn user(&self, qp: u32, is_gone: impl FnOnce(usize) -> bool) -> Option<usize> {
        let at = self.users.binary_search_by_key(&qp, |&(number, _)| number).ok()?;
        Some(self.users[at].1).filter(|&index| !is_gone(index))
    }

    /// The memory that a slot lies in, from where, and its key. Looks for new slabs when it is not known.
    pub(crate) fn memory(&mut self, slot: u32) -> Option<(&Rc<RxMemory>, usize, u32)> {
        let slab = (slot / SLAB_SLOTS) as usize;
        if slab >= self.slabs.len() {
            let fresh = self.queue.upgrade()?.take_fresh();
            self.slabs.extend(fresh.into_iter().map(|slab| (Rc::new(RxMemory::new(slab.region)), slab.lkey)));
            self.lent.resize(self.slabs.len() * SLAB_SLOTS as usize, 0);
        }
        let (region, lkey) = self.slabs.get(slab)?;
        Some((region, (slot % SLAB_SLOTS) as usize * self.slot_bytes as usize, *lkey))
    }

    pub(crate) fn local(&mut self, slot: u32) -> Option<LocalBytes> {
        let bytes = self.slot_bytes;
        let (region, at, lkey) = self.memory(slot)?;
        // SAFETY: the slab is registered until the shared queue is destroyed, and a slot is posted only when no frame in it
        // is lent or held.
        Some(unsafe { LocalBytes::of(&***region, at, bytes, lkey) })
    }

    /// Whether it is gone, with everything that lay in it.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.strong_count() == 0 && self.lent.iter().all(|&lent| lent == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel gives the number of a destroyed queue pair to the next one, whose grant may come before the port has heard of
    /// either.
    #[test]
    fn a_completion_is_not_for_a_connection_whose_queue_pair_is_gone() {
        let slots = SharedSlots {
            queue: Weak::new(),
            number: 0,
            slot_bytes: 256,
            slabs: Vec::new(),
            lent: Vec::new(),
            users: vec![(4, 1), (5, 0)],
        };
        let (mut gone, user) = (Vec::new(), |qp, gone: &[usize]| slots.user(qp, |at| gone.contains(&at)));
        assert_eq!([3, 4, 5].map(|qp| user(qp, &gone)), [None, Some(1), Some(0)]);
        gone.push(0);
        assert_eq!([3, 4, 5].map(|qp| user(qp, &gone)), [None, Some(1), None]);
    }

    #[test]
    fn places_are_remembered_whole() {
        for place in [Place { queue: 0, slot: 0 }, Place { queue: QUEUES - 1, slot: INDEX_LIMIT - 1 }] {
            assert_eq!(Place::parse(place.bits()), Some(place));
        }
        assert_eq!(Place::parse(u16::MAX.into()), None, "a connection's own slot");
    }
}
