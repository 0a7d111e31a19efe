//! The receives that connections on one completion queue share, as the control side knows them: made, counted, added to.
//!
//! ```text
//!  guaranteed   for each connection, from its queue pair to its end      (Reserve)
//!  common       for connections that use up their own                          (share)
//!               more are posted when the queue runs low: SRQ_LIMIT_REACHED, on the control thread
//! ```
//! Slots come in slabs, each registered once. The port's thread has the memory, posts returned slots, and nobody
//! locks. Each has room in the completion queue as long as it exists: one connection may use up all of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gimmal_rdma::verbs::{DeviceLimits, LocalBytes, Mr, Pd, RecvList, Srq};

use crate::{
    Instant, PortError, SharedReceives, SharedState,
    frame::FRAME_WORD_BYTES,
    mem::{MemoryNode, Region},
    share::Common,
    sync::lock::lock,
    verbs::{
        control::cq_room::{CqRoom, CqShare},
        data::wr_id::{INDEX_LIMIT, WrId},
        memory::{purpose::Purpose, rings::slab},
    },
};

/// Slots that are made at a time.
pub(crate) const SLAB_SLOTS: u32 = 64;
/// What a completion queue has no room for when it is full.
const FULL: &str = "completions of shared receives (port.shared.common_max, port.shared.guaranteed)";
/// From one SRQ_LIMIT_REACHED to the next, at least.
const REARM: Duration = Duration::from_millis(20);

/// Memory of [`SLAB_SLOTS`] slots.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) region: Region,
    pub(crate) lkey: u32,
}

#[derive(Debug, Default)]
struct Book {
    registrations: Vec<Mr>,
    /// Slabs that the port has not fetched yet.
    fresh: Vec<Slab>,
    floor: Floor,
    /// Slabs that were made for all in common.
    common: u32,
    /// Room for the completions of each slab that was made for guarantees.
    rooms: Vec<CqShare>,
    arm_at: Option<Instant>,
}

/// Slots that are guaranteed to connections, and those that are posted for that.
#[derive(Debug, Default)]
struct Floor {
    reserved: u32,
    posted: u32,
}

/// Slots in whole slabs, for `slots` of them.
const fn in_slabs(slots: u32) -> u32 {
    slots.div_ceil(SLAB_SLOTS) * SLAB_SLOTS
}

impl Floor {
    /// Slabs that must be posted before `slots` more can be guaranteed.
    fn slabs_for(&self, slots: u32) -> u32 {
        self.reserved.saturating_add(slots).saturating_sub(self.posted).div_ceil(SLAB_SLOTS)
    }
}

impl Book {
    fn slots(&self) -> u32 {
        let guaranteed = u32::try_from(self.rooms.len()).unwrap_or(u32::MAX);
        guaranteed.saturating_add(self.common).saturating_mul(SLAB_SLOTS)
    }

    /// Slabs that may still be made for all in common, of `common_max` slots.
    fn common_left(&self, common_max: u32) -> u32 {
        (in_slabs(common_max) / SLAB_SLOTS).saturating_sub(self.common)
    }

    /// Records a slab, made for guarantees with room for its completions, or in common.
    fn made(&mut self, room: Option<CqShare>) {
        match room {
            Some(room) => self.rooms.push(room),
            None => self.common += 1,
        }
    }

    /// Whether a queue of `entries` holds `slabs` more.
    fn check(&self, slabs: u32, entries: u32) -> Result<(), PortError> {
        let value = u64::from(self.slots()) + u64::from(slabs) * u64::from(SLAB_SLOTS);
        if value <= entries.into() {
            return Ok(());
        }
        let field = "shared receives (port.shared, port.connections)";
        Err(PortError::Limit { field, value, limit: entries.into() })
    }

    /// Slabs to make before `slots` more can be guaranteed, and room for the completions of all of them: before the first is
    /// made, because what is posted stays.
    fn room_for(&self, slots: u32, entries: u32, room: &Arc<CqRoom>) -> Result<(u32, CqShare), PortError> {
        let slabs = self.floor.slabs_for(slots);
        self.check(slabs, entries)?;
        Ok((slabs, room.take(slabs.saturating_mul(SLAB_SLOTS), FULL)?))
    }
}

/// The receives that connections on one completion queue share, as the control side knows them: made, counted, added
/// to.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    /// Destroyed before the registrations of what is posted on it.
    srq: Srq,
    book: Mutex<Book>,
    pub(crate) common: Common,
    pub(crate) sizes: SharedReceives,
    /// Names it in completions, among the queues of its port.
    pub(crate) number: u32,
    entries: u32,
    limit_events: AtomicU64,
    /// Where its slots lie.
    node: MemoryNode,
    /// The completion queue's, and what is kept of it for the common slots.
    room: Arc<CqRoom>,
    _common: CqShare,
    pd: Arc<Pd>,
}

impl SharedQueue {
    /// Makes the queue `number` of a port for at most `connections`, whose completions have `room`.
    ///
    /// # Errors
    /// [`PortError::Limit`] when there is no room for the common slots and those of one connection; what the device and
    /// memory say.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        limits: &DeviceLimits,
        sizes: SharedReceives,
        connections: u32,
        room: &Arc<CqRoom>,
        (number, node): (u32, MemoryNode),
    ) -> Result<Arc<Self>, PortError> {
        let common = take_common(room, &sizes)?;
        let wanted = u64::from(connections) * u64::from(Self::reserve_slots(&sizes))
            + u64::from(in_slabs(sizes.common_max))
            + u64::from(SLAB_SLOTS);
        let limit = limits.srq_entries.min(INDEX_LIMIT).min(room.entries());
        let entries = u32::try_from(wanted).unwrap_or(u32::MAX).min(limit);
        let queue = Self {
            srq: Srq::new(pd, entries)?,
            book: Mutex::default(),
            common: Common::default(),
            sizes,
            number,
            entries,
            limit_events: AtomicU64::new(0),
            node,
            room: Arc::clone(room),
            _common: common,
            pd: Arc::clone(pd),
        };
        let mut book = Book::default();
        queue.add_common(&mut book)?;
        queue.arm(&book);
        *lock(&queue.book) = book;
        Ok(Arc::new(queue))
    }

    /// Slots of a connection that is being made: what its hello says, one for its grant, one for its goodbye.
    fn reserve_slots(sizes: &SharedReceives) -> u32 {
        u32::from(sizes.arrivals()) + 2
    }

    pub(crate) fn srq(&self) -> &Srq {
        &self.srq
    }

    /// Names it in asynchronous events.
    pub(crate) fn address(&self) -> usize {
        self.srq.address()
    }

    /// Receives for one more connection.
    ///
    /// # Errors
    /// [`PortError::Limit`] when this or the completion queue holds no more, and what memory can say.
    pub(crate) fn reserve(self: &Arc<Self>) -> Result<Reserve, PortError> {
        let slots = Self::reserve_slots(&self.sizes);
        let mut book = lock(&self.book);
        let (slabs, mut room) = book.room_for(slots, self.entries, &self.room)?;
        for _ in 0..slabs {
            self.add_slab(&mut book, Some(room.part(SLAB_SLOTS)))?;
            book.floor.posted += SLAB_SLOTS;
        }
        if slabs > 0 {
            self.arm(&book);
        }
        book.floor.reserved += slots;
        Ok(Reserve { queue: Arc::clone(self), slots })
    }

    fn add_common(&self, book: &mut Book) -> Result<(), PortError> {
        let left = book.common_left(self.sizes.common_max);
        for _ in 0..self.sizes.common.div_ceil(SLAB_SLOTS).min(left) {
            self.add_slab(book, None)?;
            self.common.add(SLAB_SLOTS);
        }
        Ok(())
    }

    /// Makes, registers and posts more slots: for guarantees, with `room` for their completions, or in common.
    fn add_slab(&self, book: &mut Book, room: Option<CqShare>) -> Result<(), PortError> {
        book.check(1, self.entries)?;
        let first = book.slots();
        let region = self
            .node
            .place(|| slab(SLAB_SLOTS as usize * self.sizes.slot_bytes as usize + FRAME_WORD_BYTES))?;
        let registration = Mr::new(&self.pd, &region, Purpose::Local.rights())?;
        let slab = Slab { region, lkey: registration.lkey() };
        let mut list = RecvList::new(SLAB_SLOTS as usize);
        for place in 0..SLAB_SLOTS {
            list.push(
                WrId::shared(self.number, first + place),
                Some(slab.place(place, self.sizes.slot_bytes)),
            );
        }
        // Whatever was posted stays the device's: its registration must stay too, and room for its completion.
        book.registrations.push(registration);
        book.made(room);
        book.fresh.push(slab);
        list.post_shared(&self.srq)
            .map_err(|error| PortError::System { step: "ibv_post_srq_recv", errno: error.errno })
    }

    /// The slabs that were made since this was asked last, in order.
    pub(crate) fn take_fresh(&self) -> Vec<Slab> {
        std::mem::take(&mut lock(&self.book).fresh)
    }

    /// Anew whenever there are more slots; not while it waits to be armed again.
    fn arm(&self, book: &Book) {
        if book.arm_at.is_some() {
            return;
        }
        let limit = book.slots() / 3 * 2;
        // Slots are out only from an arrival until its frames are released: a third of them at once is a burst of many, or a
        // peer that takes what it was not granted.
        if let Err(errno) = self.srq.arm(limit) {
            tracing::warn!(errno, "the shared receive queue tells nobody when it runs low");
        }
    }

    /// SRQ_LIMIT_REACHED: posts more, as far as they may be; when to arm it again.
    pub(crate) fn ran_low(&self) -> Instant {
        let count = self.limit_events.fetch_add(1, Ordering::Relaxed) + 1;
        let mut book = lock(&self.book);
        let before = self.common.all();
        if let Err(error) = self.add_common(&mut book) {
            tracing::warn!(%error, "no more receives for the shared queue");
        }
        tracing::debug!(count, before, now = self.common.all(), "the shared receive queue ran low");
        let at = Instant::now() + REARM;
        book.arm_at = Some(at);
        at
    }

    /// Arms it again when that is due; otherwise when it will be.
    pub(crate) fn arm_again(&self, now: Instant) -> Option<Instant> {
        let mut book = lock(&self.book);
        let at = book.arm_at?;
        if now < at {
            return Some(at);
        }
        book.arm_at = None;
        self.arm(&book);
        None
    }

    pub(crate) fn state(&self, device: String) -> SharedState {
        let book = lock(&self.book);
        SharedState {
            device,
            slot_bytes: self.sizes.slot_bytes,
            slots: book.slots(),
            reserved: book.floor.reserved,
            common: self.common.all(),
            common_free: self.common.free(),
            limit_events: self.limit_events.load(Ordering::Relaxed),
        }
    }
}

/// Takes room for all common slots that there may be, if those of one connection have room beside them.
fn take_common(room: &Arc<CqRoom>, sizes: &SharedReceives) -> Result<CqShare, PortError> {
    let common = in_slabs(sizes.common_max);
    drop(room.take(common + in_slabs(SharedQueue::reserve_slots(sizes)), FULL)?);
    room.take(common, FULL)
}

impl Slab {
    /// The memory of its slot number `place`.
    pub(crate) fn place(&self, place: u32, slot_bytes: u32) -> LocalBytes {
        let at = self.region.at(place as usize * slot_bytes as usize, slot_bytes as usize);
        // SAFETY: the slab is registered until the shared queue is destroyed, and nothing has arrived in it before its first
        // post, so nobody refers to it.
        unsafe { LocalBytes::new(at.as_ptr().addr() as u64, slot_bytes, self.lkey) }
    }
}

/// Receives that are guaranteed to one connection, until its queue pair is gone.
#[derive(Debug)]
pub(crate) struct Reserve {
    pub(crate) queue: Arc<SharedQueue>,
    slots: u32,
}

impl Reserve {
    /// The peer's grant came: its receive is needed no more.
    pub(crate) fn opened(&mut self) {
        lock(&self.queue.book).floor.reserved -= 1;
        self.slots -= 1;
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        lock(&self.queue.book).floor.reserved -= self.slots;
    }
}

#[cfg(test)]
mod tests {
    use gimmal_rdma::verbs::CQ_ENTRIES;

    use super::*;

    /// Connections of every legal guarantee come, open and go: what is guaranteed is posted, and at most a slab more was made for it
    /// than was ever guaranteed at once.
    #[test]
    fn every_guarantee_is_posted() {
        for guaranteed in 2..=4096 {
            let sizes = SharedReceives { guaranteed, most: 8192, ..SharedReceives::default() };
            assert_eq!(sizes.flaw(), None);
            let slots = SharedQueue::reserve_slots(&sizes);
            assert_eq!(slots, u32::from(guaranteed) + 4, "data, control, grant and goodbye");
            let (mut floor, mut most) = (Floor::default(), 0);
            for number in 0..40 {
                floor.posted += SLAB_SLOTS * floor.slabs_for(slots);
                floor.reserved += slots;
                most = most.max(floor.reserved);
                assert!(floor.reserved <= floor.posted, "{floor:?}, {number} of {guaranteed}");
                assert!(floor.posted < most + SLAB_SLOTS, "{floor:?}, {number} of {guaranteed}");
                // Its grant came; every third goes.
                floor.reserved -= if number % 3 == 2 { slots } else { 1 };
            }
        }
    }

    /// Sends of a connection that shares its receives: chains, READs, grant or nudge, goodbye.
    fn sends(sizes: &SharedReceives) -> u32 {
        u32::from(sizes.sends) + u32::from(sizes.depth) + 2
    }

    #[test]
    fn a_usual_completion_queue_has_room_for_one_connection_of_any_legal_sizes() {
        let most = SharedReceives {
            slot_bytes: 256,
            guaranteed: 4096,
            most: 8192,
            common: 16_384,
            common_max: 16_384,
            sends: 8192,
            depth: u8::MAX,
        };
        assert_eq!(most.flaw(), None);
        let room = CqRoom::new(CQ_ENTRIES);
        let _sends = room.take(sends(&most), "sends").unwrap();
        let _common = take_common(&room, &most).unwrap();
        assert!(room.take(in_slabs(SharedQueue::reserve_slots(&most)), FULL).is_ok());
        let small = CqRoom::new(1000);
        let refused = take_common(&small, &SharedReceives::default()).unwrap_err();
        assert_eq!(refused, PortError::Limit { field: FULL, value: 1024 + 64, limit: 1000 });
        assert!(small.take(1000, FULL).is_ok(), "what was refused took nothing");
    }

    /// A peer that sends more than it may can use up every slot that was made, beside all sends of all. Connections with
    /// shared and with own receives come and go, and what can be outstanding always has room.
    #[test]
    fn every_slot_and_every_send_has_room() {
        const ENTRIES: u32 = 4000;
        let sizes = SharedReceives::default();
        let (slots, sends, own) = (SharedQueue::reserve_slots(&sizes), sends(&sizes), 212);
        let room = CqRoom::new(ENTRIES);
        let _common = take_common(&room, &sizes).unwrap();
        let mut book = Book::default();
        let (mut sharing, mut others) = (Vec::new(), Vec::new());
        for round in 0..20 {
            // As many as can come: in these rounds some that share, in those others only.
            while let (0, Ok(share)) = (round % 2, room.take(sends, "sends")) {
                let Ok((slabs, mut room)) = book.room_for(slots, ENTRIES, &room) else { break };
                for _ in 0..slabs {
                    book.made(Some(room.part(SLAB_SLOTS)));
                    book.floor.posted += SLAB_SLOTS;
                }
                book.floor.reserved += slots;
                sharing.push(share);
            }
            while let Ok(share) = room.take(own, "own") {
                others.push(share);
            }
            let count = |shares: &Vec<_>| u32::try_from(shares.len()).unwrap();
            let outstanding =
                in_slabs(sizes.common_max) + book.slots() + sends * count(&sharing) + own * count(&others);
            assert!(outstanding <= ENTRIES, "{outstanding} in round {round}");
            assert!(book.floor.reserved <= book.floor.posted && book.floor.posted == book.slots());
            // All that share go, and what they had stays posted. Of the others every second goes.
            book.floor.reserved -= slots * count(&sharing);
            sharing.clear();
            others.truncate(others.len() / 2);
        }
        assert!(book.floor.posted > 500, "the queue was never full: {:?}", book.floor);
    }

    /// What is made and posted stays, so a connection that finds no room for all that it needs makes nothing.
    #[test]
    fn who_finds_no_room_for_all_takes_none() {
        const PART: u32 = 40 * SLAB_SLOTS;
        let most = SharedReceives { guaranteed: 4096, ..SharedReceives::default() };
        let slots = SharedQueue::reserve_slots(&most);
        let book = Book::default();
        let all = u64::from(65 * SLAB_SLOTS);
        let room = CqRoom::new(PART);
        let refused = book.room_for(slots, INDEX_LIMIT, &room).unwrap_err();
        assert_eq!(refused, PortError::Limit { field: FULL, value: all, limit: PART.into() });
        assert!(room.take(PART, "all").is_ok());
        let room = CqRoom::new(CQ_ENTRIES);
        let refused = book.room_for(slots, PART, &room).unwrap_err();
        assert!(matches!(refused, PortError::Limit { value, limit: 2560, .. } if value == all), "{refused}");
        assert!(room.take(CQ_ENTRIES, "all").is_ok());
        assert_eq!(book.room_for(slots, INDEX_LIMIT, &room).unwrap().0, 65);
    }
}
