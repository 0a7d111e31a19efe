//! The receiving half of a connection: chains are walked frame by frame and lent where they landed.
//!
//! Ring path: a write-with-immediate says how many bytes followed the last one; its receive may be posted again at
//! once. Send/recv path: a SEND fills a slot, which may be posted again when the last of its frames was released. The slots
//! are the connection's own, or those of all (`slots`). Both are posted many at a time, behind what is sent.

use std::{rc::Rc, sync::Arc};

use gimmal_rdma::verbs::{LocalBytes, Qp, RecvList};

use crate::{
    ConnId, DataPath, Negotiated, Position, Violation,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES},
    mem::{
        Run, RxFrame, RxMemory,
        run::{IN_RING, RingPlace},
    },
    share::Share,
    verbs::{
        data::wr_id::{GOODBYE, receive_id},
        memory::rings::{Room, Shape},
        srq::{queue::SharedQueue, slots::Place},
    },
};

/// What a chain that is being read counts as in its slot: more than there can be frames.
pub(crate) const RUN: u32 = 1 << 31;

/// A chain that is being read, while it is not over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) conn: ConnId,
    /// Bytes that were not read, and all of them.
    pub(crate) left: u32,
    pub(crate) bytes: u32,
    /// Its run was not ended. There is one at a time: the next would show what is given back with this one.
    pub(crate) is_out: bool,
    /// Where it lies in a shared receive.
    pub(crate) place: Option<Place>,
}

/// Receives of others too.
#[derive(Debug)]
struct Sharing {
    queue: Arc<SharedQueue>,
    share: Share,
}

/// The receiving half of a connection: chains are walked frame by frame and lent where they landed.
#[derive(Debug)]
pub(crate) struct Rx {
    /// Where receives are shared, that of the chain that is being read.
    memory: Option<Rc<RxMemory>>,
    shape: Shape,
    lkey: u32,
    sharing: Option<Box<Sharing>>,
    path: DataPath,
    /// Where the ring is, or the slots.
    pub(crate) place: Option<RingPlace>,
    slot_bytes: usize,
    chain_bytes_max: u32,
    frame_bytes_max: usize,
    /// Up to where the ring was walked, or the slots by a run.
    position: Position,
    /// What frames of the run remember that is handed out.
    run_slot: u32,
    /// Frames of each slot that were lent and not released; and slots of which all were.
    lent: Vec<u32>,
    free: Vec<u16>,
    /// Receives posted since the beginning, the grant's aside.
    arrivals: u64,
    /// Receives that may be posted again and are not yet; and how many of them may wait.
    owed: u32,
    late: u32,
}

impl Rx {
    /// One that receives into `room`, or else from a queue that others share.
    pub(crate) fn new(
        room: Option<Room>,
        lkey: u32,
        negotiated: &Negotiated,
        queue: Option<Arc<SharedQueue>>,
    ) -> Self {
        let slots = match negotiated.path {
            DataPath::SendRecv if queue.is_none() => negotiated.rx_arrivals as usize + GOODBYE,
            _ => 0,
        };
        let (memory, shape) = match room {
            Some(room) => (Some(Rc::new(RxMemory::new(room.region))), room.shape),
            None => (None, Shape::Slab { bytes: 0 }),
        };
        let ring_bytes = negotiated.rx_ring_bytes as usize;
        let slot_bytes = negotiated.rx_slot_bytes as usize;
        let aligned = !(FRAME_ALIGN as u64 - 1);
        let place = memory.as_ref().map(|memory| match negotiated.path {
            DataPath::Ring => {
                RingPlace { base: memory.at(0, 2 * ring_bytes), mask: (ring_bytes - 1) as u64 & aligned }
            }
            DataPath::SendRecv => {
                RingPlace { base: memory.at(0, slots * slot_bytes + FRAME_WORD_BYTES), mask: aligned }
            }
        });
        // A longer one could run past the second view of the ring.
        let chain_bytes_max = match negotiated.path {
            DataPath::Ring => negotiated.rx_ring_bytes / 4,
            DataPath::SendRecv => negotiated.rx_slot_bytes,
        };
        let sharing = queue.map(|queue| {
            let extra_max = u32::from(queue.sizes.most - queue.sizes.guaranteed);
            let share = Share::new(negotiated.rx_arrivals, extra_max);
            Box::new(Sharing { queue, share })
        });
        Self {
            memory,
            shape,
            lkey,
            sharing,
            path: negotiated.path,
            place,
            slot_bytes,
            chain_bytes_max,
            frame_bytes_max: negotiated.rx_frame_bytes_max as usize,
            position: Position(0),
            run_slot: IN_RING,
            lent: vec![0; slots],
            free: Vec::with_capacity(slots),
            arrivals: negotiated.rx_arrivals.into(),
            owed: 0,
            late: negotiated.rx_arrivals / 8,
        }
    }

    /// `None`: a frame in it is still lent, or may still be held.
    pub(crate) fn into_room(self) -> Option<Room> {
        if self.sharing.is_some() {
            return None;
        }
        let memory = Rc::into_inner(self.memory?).filter(|memory| !memory.is_viewed())?;
        Some(Room { region: memory.into_region(), shape: self.shape, registration: None })
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.sharing.as_ref().map_or(self.arrivals, |sharing| sharing.share.granted())
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.is_some()
    }

    /// A shared receive completed, in `memory` from `at` on; `slot` is for its frames to remember.
    pub(crate) fn land(&mut self, memory: &Rc<RxMemory>, at: usize, slot: u32) {
        self.place = Some(RingPlace { base: memory.base(), mask: !(FRAME_ALIGN as u64 - 1) });
        self.memory = Some(Rc::clone(memory));
        (self.position, self.run_slot) = (Position(at as u64), slot);
    }

    /// What landed in a shared receive is read.
    pub(crate) fn leave(&mut self) {
        if self.sharing.is_some() {
            (self.memory, self.place) = (None, None);
        }
    }

    /// What landed last, at most `limit` bytes of it: no frames, but the peer's grant.
    pub(crate) fn landed(&self, bytes: u32, limit: usize) -> Vec<u8> {
        let (Some(place), Some(_memory)) = (self.place, &self.memory) else { return Vec::new() };
        let bytes = (bytes as usize).min(limit).min(self.slot_bytes);
        // SAFETY: inside the slot, whose receive has completed and is not posted again yet; `memory` keeps it mapped.
        unsafe { std::slice::from_raw_parts(place.at(self.position), bytes) }.to_vec()
    }

    /// A shared slot of this connection is posted again.
    pub(crate) fn came_back(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.share.came_back();
        }
    }

    /// Grants shared receives again that are posted.
    pub(crate) fn grant_again(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.share.grant_again(&sharing.queue.common);
        }
    }

    /// The peer will not use `receives`: others may.
    pub(crate) fn take_back(&mut self, receives: u64) -> Result<(), Violation> {
        let sharing = self.sharing.as_mut().ok_or(Violation::NOT_SHARED)?;
        sharing.share.take_back(receives, &sharing.queue.common).map(|_| ())
    }

    /// The queue pair is gone: what the connection had of the shared receives is given back.
    pub(crate) fn end_sharing(&mut self) -> Option<Arc<SharedQueue>> {
        let sharing = self.sharing.as_mut()?;
        sharing.share.end(&sharing.queue.common);
        Some(Arc::clone(&sharing.queue))
    }

    /// A chain of `bytes` arrived, which is handed out by runs from here on. `None` where receives are shared, and for what
    /// [`Rx::refused`] names.
    #[inline(always)]
    pub(crate) fn begin_run(&mut self, slot: u16, bytes: u32) -> Option<()> {
        // One comparison for both ends: none at all wraps around. Where receives are shared there is no slot.
        if bytes.wrapping_sub(1) >= self.chain_bytes_max {
            return None;
        }
        if self.path == DataPath::Ring {
            self.owed += 1;
            return Some(());
        }
        *self.lent.get_mut(usize::from(slot))? += RUN;
        self.run_slot = slot.into();
        self.position = Position(u64::from(slot) * self.slot_bytes as u64);
        Some(())
    }

    /// Begins a chain that [landed](Rx::land) in a shared receive, and returns its bytes.
    ///
    /// # Errors
    /// The peer used more receives than it was granted.
    pub(crate) fn begin_shared(&mut self, bytes: u32) -> Result<u32, Violation> {
        let sharing = self.sharing.as_mut().ok_or(Violation::NOT_SHARED)?;
        sharing.share.arrived(&sharing.queue.common)?;
        Ok(bytes.min(self.chain_bytes_max))
    }

    /// The frames of what is left of that chain, `bytes`, at most `limit` of them.
    #[inline(always)]
    pub(crate) fn run(&self, conn: ConnId, bytes: u32, limit: usize) -> Option<Run> {
        let (memory, place) = (self.memory.as_ref()?, self.place?);
        let span = (self.position.0, self.position.0 + u64::from(bytes));
        let left = u32::try_from(limit).unwrap_or(u32::MAX);
        // SAFETY: a ring of our own, mapped twice by its region, or slots, of which the span is in one (`begin_run`, `land`). The
        // peer's device alone writes them. A completion said that these bytes arrived. They are written again only after the
        // peer was credited with them, or the slot was posted, and both happen after the run has ended. This is the trust
        // that `Negotiated` and the guide name.
        Some(
            unsafe { Run::new(conn, Rc::clone(memory), place, span, self.frame_bytes_max, left) }
                .whole()
                .in_slot(self.run_slot),
        )
    }

    /// Whether a run of it is out.
    pub(crate) fn has_run(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| {
            // A shared one is in the list of slots too.
            RxMemory::has_run(memory, 1 + usize::from(self.sharing.is_some()))
        })
    }

    /// The frames that were taken from `run`, of a chain of `chain_bytes`, have been read. The bytes of those that are left.
    ///
    /// # Errors
    /// What is wrong with the chain.
    #[inline]
    pub(crate) fn end_run(&mut self, run: &Run, chain_bytes: u32) -> Result<u32, Violation> {
        self.position = run.end();
        let rest = run.rest();
        if let Some(lent) = self.lent.get_mut(self.run_slot as usize) {
            *lent += run.kept();
            if rest == 0 {
                *lent -= RUN;
                self.free(self.run_slot);
            }
        }
        if !run.is_stopped() {
            return Ok(rest);
        }
        Err(match run.broken(run.end().0) {
            Some(violation @ Violation::FrameLength { .. }) => violation,
            _ => Violation::Chain { bytes: chain_bytes as usize },
        })
    }

    /// What is wrong with a receive that completed and brought no chain. `imm` is there for a write-with-immediate.
    #[cold]
    pub(crate) fn refused(&self, bytes: u32, imm: Option<u32>) -> Violation {
        match (self.path, imm) {
            (DataPath::Ring, Some(bytes)) => Violation::Chain { bytes: bytes as usize },
            (DataPath::SendRecv, None) if bytes.wrapping_sub(1) >= self.chain_bytes_max => {
                Violation::Chain { bytes: bytes as usize }
            }
            _ => Violation::Malformed { what: "receive: not of the path that was agreed" },
        }
    }

    pub(crate) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Whether those are so many that the peer could miss them: an eighth of what it was granted.
    #[inline]
    pub(crate) fn owes_many(&self) -> bool {
        self.owed > self.late
    }

    /// A slot may be posted again, if none of its frames is lent.
    #[inline]
    fn free(&mut self, slot: u32) {
        if self.lent.get(slot as usize) == Some(&0)
            && let Ok(slot) = u16::try_from(slot)
        {
            self.free.push(slot);
            self.owed += 1;
        }
    }

    /// Posts the receives again that may be.
    pub(crate) fn repost(&mut self, qp: &Qp, conn: ConnId, list: &mut RecvList) -> Result<(), i32> {
        while self.owed > 0 {
            let mut count = 0;
            while count < self.owed && !list.is_full() {
                let slot = self.free.pop();
                list.push(receive_id(conn, slot.unwrap_or(0)), slot.and_then(|slot| self.slot(slot)));
                count += 1;
            }
            list.post(qp).map_err(|error| error.errno)?;
            self.owed -= count;
            self.arrivals += u64::from(count);
        }
        Ok(())
    }

    /// Where a slot is that is our own.
    fn slot(&self, slot: u16) -> Option<LocalBytes> {
        let bytes = u32::try_from(self.slot_bytes).unwrap_or(u32::MAX);
        let at = usize::from(slot) * self.slot_bytes;
        let memory = &***self.memory.as_ref()?;
        // SAFETY: registered until the queue pair is destroyed, and a slot is posted only when no frame in it is lent or
        // held.
        Some(unsafe { LocalBytes::of(memory, at, bytes, self.lkey) })
    }

    /// A frame came back. Its slot may be posted again when it was the last one of it, which nobody holds.
    pub(crate) fn release(&mut self, frame: RxFrame) {
        let slot = frame.slot();
        if frame.is_held() || !self.memory.as_ref().is_some_and(|memory| frame.is_in(memory)) {
            return;
        }
        drop(frame);
        let Some(lent) = self.lent.get_mut(slot as usize) else { return };
        *lent = lent.saturating_sub(1);
        self.free(slot);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mem::{Access, Region};
    use crate::{Capabilities, FrameWord, Hello, PortConfig, Tag, hello::Feature};

    const RING: u32 = 8192;
    const SLOT: u32 = 256;

    /// What two ends of a small ring, or of a few small slots, agree on.
    pub(crate) fn terms(ring: bool, config: &PortConfig) -> Negotiated {
        let hello = Hello {
            features: if ring { Feature::RING } else { Feature::default() },
            ring_bytes: RING,
            slot_bytes: SLOT,
            arrivals: 4,
            responder_resources: 1,
            initiator_depth: 1,
            lane: 0,
            service: 0,
            nonce: 0,
        };
        let caps = Capabilities {
            ring,
            credit_words: false,
            arrivals: true,
            bulk_in_place: false,
            atomics: false,
            transfers_in_post: false,
            responder_resources: 1,
            initiator_depth: 1,
            inline_bytes: 0,
            message_bytes: 1 << 20,
            timers: true,
        };
        Negotiated::settle("verbs", &caps, config, &hello, &hello).expect("fair terms")
    }

    fn rx(path: DataPath) -> (Rx, Region) {
        let ring = path == DataPath::Ring;
        let terms = terms(ring, &PortConfig::default());
        let bytes = if ring { RING } else { 5 * SLOT + 8 };
        let fd = rustix::fs::memfd_create("rx", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&fd, 2 * u64::from(RING)).expect("two rings of room");
        // The second mapping stands for the peer's device.
        let (ours, theirs) = if ring {
            let map = || Region::ring(fd.as_fd(), 0, bytes as usize, Access::ReadWrite).expect("a ring");
            (map(), map())
        } else {
            let map = || Region::file(fd.as_fd(), bytes as usize, Access::ReadWrite).expect("slots");
            (map(), map())
        };
        let bytes = bytes as usize;
        let shape = if ring { Shape::Ring { bytes } } else { Shape::Slab { bytes } };
        (Rx::new(Some(Room { region: ours, shape, registration: None }), 0, &terms, None), theirs)
    }

    fn write(device: &Region, at: usize, bits: u64) {
        // SAFETY: inside the mapping, aligned; nobody else writes it.
        unsafe { device.at(at, 8).cast::<u64>().write(bits) };
    }

    fn word(payload: usize) -> u64 {
        FrameWord::new(payload, Tag(9)).bits()
    }

    const CONN: ConnId = ConnId::new(0, 0);

    #[test]
    fn a_chain_is_read_across_the_end_of_the_ring() {
        let (mut rx, device) = rx(DataPath::Ring);
        rx.position = Position(u64::from(RING) - 32);
        write(&device, RING as usize - 32, word(24));
        write(&device, RING as usize, word(8));
        rx.begin_run(0, 48).expect("a fair chain");
        let mut run = rx.run(CONN, 48, 9).expect("a run");
        let first = run.next_frame().expect("a frame");
        assert_eq!((first.payload().len(), first.end(), first.tag()), (24, Position(RING.into()), Tag(9)));
        let second = run.next_frame().expect("a frame");
        assert_eq!((second.payload().len(), second.end()), (8, Position(u64::from(RING) + 16)));
        assert!(run.next_frame().is_none());
        assert_eq!(rx.end_run(&run, 48), Ok(0));
        assert!(rx.owes());
    }

    /// R46: whatever a peer writes into our ring is a named violation, never more than its own connection.
    #[test]
    fn r46_chains_that_lie_are_named() {
        let chain = |bytes| Violation::Chain { bytes };
        let lies: [(u64, u32, Violation); 5] = [
            (word(24), 16, chain(16)),
            (word(24), 17, chain(17)),
            (0, 32, chain(32)),
            (7, 32, Violation::FrameLength { bytes: 7, limit: 2048 }),
            (u64::MAX, 2048, Violation::FrameLength { bytes: 0xffff_ffff, limit: 2048 }),
        ];
        for (bits, bytes, violation) in lies {
            let (mut rx, device) = rx(DataPath::Ring);
            write(&device, 0, bits);
            rx.begin_run(0, bytes).expect("not looked at yet");
            let mut run = rx.run(CONN, bytes, 9).expect("a run");
            assert!(run.next_frame().is_none());
            assert_eq!(rx.end_run(&run, bytes), Err(violation), "{bits:#x} in {bytes} bytes");
        }
        let (mut ring, _device) = rx(DataPath::Ring);
        assert_eq!(ring.begin_run(0, u32::MAX), None);
        assert_eq!(ring.refused(0, Some(u32::MAX)), chain(u32::MAX as usize));
        let malformed = |violation| matches!(violation, Violation::Malformed { .. });
        assert!(malformed(ring.refused(64, None)), "a SEND on the ring path");
        let (mut slots, _device) = rx(DataPath::SendRecv);
        assert!(malformed(slots.refused(64, Some(64))), "an immediate on the send/recv path");
        assert_eq!(slots.begin_run(5, 64), None);
        assert!(malformed(slots.refused(64, None)), "a slot that does not exist");
        assert_eq!(slots.refused(SLOT + 1, None), chain(SLOT as usize + 1));
    }

    /// R47: a slot is posted again when its last frame was released, in whatever order.
    #[test]
    fn r47_a_slot_is_kept_until_its_last_frame() {
        let (mut rx, device) = rx(DataPath::SendRecv);
        for at in [0, 16, 32] {
            write(&device, 2 * SLOT as usize + at, word(8));
        }
        rx.begin_run(2, 48).expect("fair");
        let mut run = rx.run(CONN, 48, 9).expect("a run");
        let mut frames = Vec::new();
        while let Some(frame) = run.next_frame().and_then(|lent| lent.keep()) {
            assert_eq!(frame.slot(), 2);
            frames.push(frame);
        }
        assert_eq!(rx.end_run(&run, 48), Ok(0));
        assert_eq!((frames.len(), rx.lent[2]), (3, 3));
        for pick in [1, 0, 0] {
            assert!(rx.free.is_empty());
            rx.release(frames.remove(pick));
        }
        assert_eq!((rx.lent[2], &*rx.free), (0, &[2][..]));
    }

    /// It would post a slot in which the other connection's frames still lie.
    #[test]
    fn a_frame_of_another_connection_frees_nothing() {
        let [(mut first, device), (mut second, _other)] = [rx(DataPath::SendRecv), rx(DataPath::SendRecv)];
        write(&device, 0, word(8));
        first.begin_run(0, 16).expect("fair");
        let mut run = first.run(CONN, 16, 9).expect("a run");
        second.lent[0] = 1;
        second.release(run.next_frame().expect("a frame").keep().expect("not kept before"));
        assert_eq!((second.lent[0], second.owes()), (1, false));
    }

    /// R47: the same of a slot that is read by runs, with a frame that is kept; released before or after the run's end.
    #[test]
    fn r47_a_slot_is_kept_until_its_run_ends() {
        for early in [true, false] {
            let (mut rx, device) = rx(DataPath::SendRecv);
            for at in [0, 16, 32] {
                write(&device, 2 * SLOT as usize + at, word(8));
            }
            rx.begin_run(2, 48).expect("fair");
            let mut first = rx.run(CONN, 48, 2).expect("a run");
            let kept = first.next_frame().expect("a frame").keep().expect("not kept before");
            assert_eq!(first.next_frame().expect("a frame").payload().len(), 8);
            assert!(first.next_frame().is_none(), "two were asked for");
            assert_eq!(rx.end_run(&first, 48), Ok(16));
            let mut late = Some(kept);
            if early {
                rx.release(late.take().expect("kept"));
            }
            assert!(!rx.owes(), "its run is not over");
            let mut rest = rx.run(CONN, 16, 2).expect("the rest");
            assert!(!first.is_over() && !rest.is_over());
            assert!(rest.next_frame().is_some() && rest.is_over() && rest.next_frame().is_none());
            assert_eq!(rx.end_run(&rest, 48), Ok(0));
            assert_eq!(rx.owes(), early);
            late.into_iter().for_each(|frame| rx.release(frame));
            assert_eq!((rx.lent[2], &*rx.free), (0, &[2][..]));
        }
    }

    /// R46: chains in slots that lie are named by runs too, and what is no chain of ours is none.
    #[test]
    fn r46_runs_of_slots_that_lie_are_named() {
        for (bits, bytes) in [(word(24), 16), (word(24), 17), (0, 32), (u64::MAX, SLOT)] {
            let (mut rx, device) = rx(DataPath::SendRecv);
            write(&device, SLOT as usize, bits);
            rx.begin_run(1, bytes).expect("not looked at yet");
            let mut run = rx.run(ConnId::new(0, 0), bytes, 9).expect("a run");
            assert!(run.next_frame().is_none());
            assert!(rx.end_run(&run, bytes).is_err(), "{bits:#x} in {bytes} bytes");
            assert!(!rx.owes());
        }
        let (mut rx, _device) = rx(DataPath::SendRecv);
        assert_eq!((rx.begin_run(1, 0), rx.begin_run(1, SLOT + 1), rx.begin_run(9, 16)), (None, None, None));
    }
}
