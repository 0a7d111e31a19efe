//! The receiving half of a connection: chains are walked frame by frame and lent where they landed.
//!
//! Ring path: a write-with-immediate says how many bytes followed the last one; its receive is posted again at
//! once. Send/recv path: a SEND fills a slot, which is posted again when the last of its frames was released. The slots
//! are the connection's own, or those of all (`slots`).

use std::{rc::Rc, sync::Arc};

use crate::{
    ConnId, DataPath, FrameWord, Negotiated, Position, Violation,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
    mem::{Region, Run, RxFrame, run::RingPlace},
    share::Share,
    verbs::{
        qp::{LocalBytes, Qp, RecvList, receive_id},
        rings::{Room, Shape},
        shared::SharedQueue,
        wr_id::WrId,
    },
};

/// One receive more than the peer may use for chains: for its goodbye.
pub(crate) const GOODBYE: usize = 1;

/// What a frame remembers that lies in the ring: nothing is posted again when it is released.
pub(crate) const IN_RING: u32 = u32::MAX >> 1;

/// A chain that is being handed out.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Where the next frame starts: an offset in the region.
    offset: usize,
    left: usize,
    bytes: usize,
    slot: u32,
}

/// Receives of others too.
#[derive(Debug)]
struct Sharing {
    queue: Arc<SharedQueue>,
    share: Share,
    /// Where the last chain landed: from where in the memory, and what its frames remember.
    at: usize,
    place: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rx {
    /// That of the last chain, where receives are shared.
    memory: Option<Rc<Region>>,
    shape: Shape,
    lkey: u32,
    sharing: Option<Box<Sharing>>,
    path: DataPath,
    /// Where the ring is, if there is one.
    ring: Option<RingPlace>,
    ring_bytes: usize,
    slot_bytes: usize,
    frame_bytes_max: usize,
    /// Up to where the ring was walked.
    position: Position,
    walk: Option<Walk>,
    /// Frames of each slot that were lent and not released.
    lent: Vec<u32>,
    /// Receives posted since the beginning, the grant's aside.
    arrivals: u64,
    /// Receives that completed and are not posted again yet (ring path); and how many of them may wait.
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
            Some(room) => (Some(Rc::new(room.region)), room.shape),
            None => (None, Shape::Slab { bytes: 0 }),
        };
        let ring_bytes = negotiated.rx_ring_bytes as usize;
        let ring = memory.as_ref().filter(|_| negotiated.path == DataPath::Ring).map(|memory| RingPlace {
            base: memory.at(0, 2 * ring_bytes),
            mask: (ring_bytes - 1) as u64 & !(FRAME_ALIGN as u64 - 1),
        });
        let sharing = queue.map(|queue| {
            let extra_max = u32::from(queue.sizes.most - queue.sizes.guaranteed);
            let share = Share::new(negotiated.rx_arrivals, extra_max);
            Box::new(Sharing { queue, share, at: 0, place: 0 })
        });
        Self {
            memory,
            shape,
            lkey,
            sharing,
            path: negotiated.path,
            ring,
            ring_bytes,
            slot_bytes: negotiated.rx_slot_bytes as usize,
            frame_bytes_max: negotiated.rx_frame_bytes_max as usize,
            position: Position(0),
            walk: None,
            lent: vec![0; slots],
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
        let region = Rc::into_inner(self.memory?).filter(|region| !region.is_viewed())?;
        Some(Room { region, shape: self.shape, registration: None })
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.sharing.as_ref().map_or(self.arrivals, |sharing| sharing.share.granted())
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.is_some()
    }

    /// A shared receive completed, in `memory` from `at`; `place` is for its frames to remember.
    pub(crate) fn land(&mut self, memory: &Rc<Region>, at: usize, place: u32) {
        debug_assert!(self.walk.is_none(), "one chain at a time");
        let Some(sharing) = &mut self.sharing else { return };
        (sharing.at, sharing.place) = (at, place);
        self.memory = Some(Rc::clone(memory));
    }

    /// What landed last, at most `limit` bytes of it: no frames, but the peer's grant.
    pub(crate) fn landed(&self, bytes: u32, limit: usize) -> Vec<u8> {
        let (Some(sharing), Some(memory)) = (&self.sharing, &self.memory) else { return Vec::new() };
        let bytes = (bytes as usize).min(limit).min(self.slot_bytes);
        let from = memory.at(sharing.at, bytes);
        // SAFETY: inside the slot, whose receive has completed and is not posted again yet.
        unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) }.to_vec()
    }

    /// A shared slot of this connection is posted again.
    pub(crate) fn came_back(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.share.came_back(&sharing.queue.common);
        }
    }

    /// The queue pair is gone: what the connection had of the shared receives is given back.
    pub(crate) fn end_sharing(&mut self) -> Option<Arc<SharedQueue>> {
        let sharing = self.sharing.as_mut()?;
        sharing.share.end(&sharing.queue.common);
        Some(Arc::clone(&sharing.queue))
    }

    /// The frames of a chain of `bytes`, at most `limit` of them, which has just arrived in the ring or whose rest it is.
    /// `None` where there is no ring, and for what [`Rx::arrived`] refuses.
    #[inline]
    pub(crate) fn run(&self, conn: ConnId, bytes: u32, limit: usize) -> Option<Run> {
        let memory = self.memory.as_ref()?;
        if bytes == 0 || bytes as usize > self.ring_bytes / 4 {
            return None;
        }
        let place = self.ring?;
        let span = (self.position.0, self.position.0 + u64::from(bytes));
        let left = u32::try_from(limit).unwrap_or(u32::MAX);
        // SAFETY: a ring of our own, mapped twice by its region. The peer's device alone writes it. A completion said that
        // these bytes arrived, and the peer writes them again only after it was credited with them, which is after the run
        // has ended: the trust that `Negotiated` and the guide name.
        Some(unsafe { Run::new(conn, memory, place, span, self.frame_bytes_max, left) }.whole())
    }

    /// A run was begun with a receive that has just completed.
    #[inline]
    pub(crate) const fn began_run(&mut self) {
        self.owed += 1;
    }

    /// The frames that were taken from `run` have been read. The bytes of those that are left.
    ///
    /// # Errors
    /// What is wrong with the chain.
    #[inline]
    pub(crate) fn end_run(&mut self, run: &Run, chain_bytes: u32) -> Result<u32, Violation> {
        self.position = run.end();
        if !run.is_stopped() {
            return Ok(run.rest());
        }
        Err(match run.broken(run.end().0) {
            Some(violation @ Violation::FrameLength { .. }) => violation,
            _ => Violation::Chain { bytes: chain_bytes as usize },
        })
    }

    /// A receive completed. `imm` is there for a write-with-immediate.
    #[inline]
    pub(crate) fn arrived(&mut self, id: WrId, bytes: u32, imm: Option<u32>) -> Result<(), Violation> {
        debug_assert!(self.walk.is_none(), "one chain at a time");
        let walk = match (self.path, imm) {
            (DataPath::Ring, Some(imm)) => {
                self.owed += 1;
                let bytes = imm as usize;
                // A longer one could run past the second view of the ring.
                if bytes > self.ring_bytes / 4 {
                    return Err(Violation::Chain { bytes });
                }
                Walk { offset: self.position.offset(self.ring_bytes), left: bytes, bytes, slot: IN_RING }
            }
            (DataPath::SendRecv, None) if self.sharing.is_some() => {
                let bytes = (bytes as usize).min(self.slot_bytes);
                let Some(sharing) = &mut self.sharing else { return Ok(()) };
                sharing.share.arrived(&sharing.queue.common)?;
                Walk { offset: sharing.at, left: bytes, bytes, slot: sharing.place }
            }
            (DataPath::SendRecv, None) if usize::from(id.slot()) < self.lent.len() => {
                let slot = id.slot();
                let bytes = (bytes as usize).min(self.slot_bytes);
                Walk { offset: usize::from(slot) * self.slot_bytes, left: bytes, bytes, slot: slot.into() }
            }
            _ => return Err(Violation::Malformed { what: "receive: not of the path that was agreed" }),
        };
        if walk.bytes == 0 {
            return Err(Violation::Chain { bytes: 0 });
        }
        self.walk = Some(walk);
        Ok(())
    }

    /// The next frame of the chain that is being walked; `None` when it has ended, as a chain must.
    #[inline]
    pub(crate) fn next_frame(&mut self) -> Result<Option<RxFrame>, Violation> {
        let (Some(walk), Some(memory)) = (self.walk.as_mut(), &self.memory) else { return Ok(None) };
        if walk.left == 0 {
            self.walk = None;
            return Ok(None);
        }
        let chain = Violation::Chain { bytes: walk.bytes };
        if walk.left < FRAME_WORD_BYTES {
            return Err(chain);
        }
        let place = memory.at(walk.offset, FRAME_WORD_BYTES);
        // SAFETY: inside the region; frames start at multiples of 16 there, so the word is aligned. The peer's
        // device may write it at any time: it is read once, as an integer, and only the copy is used.
        let bits = u64::from_le(unsafe { place.cast::<u64>().as_ptr().read_volatile() });
        let word = FrameWord::parse(bits, self.frame_bytes_max)?.ok_or(chain)?;
        let span = span(word.payload_bytes());
        if span > walk.left {
            return Err(chain);
        }
        let end = match self.path {
            DataPath::Ring => self.position.plus(span as u64),
            DataPath::SendRecv => Position(0),
        };
        let bytes = memory.at(walk.offset + FRAME_WORD_BYTES, word.payload_bytes());
        // SAFETY: checked to lie in the region. A completion said that these bytes arrived, and the peer writes them again only after it was
        // credited with them, which is after the release: the trust that `Negotiated` and the guide name.
        let frame = unsafe { RxFrame::lend(memory, bytes, word, end, walk.slot) };
        if self.path == DataPath::Ring {
            self.position = end;
        } else if let Some(lent) = self.lent.get_mut(walk.slot as usize) {
            *lent += 1;
        }
        walk.offset += span;
        walk.left -= span;
        if walk.left == 0 {
            self.walk = None;
        }
        Ok(Some(frame))
    }

    pub(crate) fn is_walking(&self) -> bool {
        self.walk.is_some()
    }

    /// What frames of the chain that is being walked remember.
    pub(crate) fn walking(&self) -> Option<u32> {
        self.walk.map(|walk| walk.slot)
    }

    pub(crate) fn stop_walking(&mut self) {
        self.walk = None;
    }

    pub(crate) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Whether those are so many that the peer could miss them: an eighth of what it was granted.
    #[inline]
    pub(crate) fn owes_many(&self) -> bool {
        self.owed > self.late
    }

    /// Posts the receives that completed again (ring path).
    pub(crate) fn repost(&mut self, qp: &Qp, conn: ConnId, list: &mut RecvList) -> Result<(), i32> {
        while self.owed > 0 {
            let mut count = 0;
            while count < self.owed && !list.is_full() {
                list.push(receive_id(conn, 0), None);
                count += 1;
            }
            list.post(qp).map_err(|error| error.errno)?;
            self.owed -= count;
            self.arrivals += u64::from(count);
        }
        Ok(())
    }

    /// A frame came back. Posts its slot again when it was the last one of it.
    pub(crate) fn release(
        &mut self,
        frame: RxFrame,
        qp: Option<&Qp>,
        conn: ConnId,
        list: &mut RecvList,
    ) -> Result<(), i32> {
        let slot = frame.slot();
        drop(frame);
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        let walked = self.walking() != Some(slot.into());
        let Some(lent) = self.lent.get_mut(usize::from(slot)) else { return Ok(()) };
        *lent = lent.saturating_sub(1);
        if *lent > 0 || !walked {
            return Ok(());
        }
        let Some(qp) = qp else { return Ok(()) };
        let Some(memory) = &self.memory else { return Ok(()) };
        let place = memory.at(usize::from(slot) * self.slot_bytes, self.slot_bytes);
        let bytes = u32::try_from(self.slot_bytes).unwrap_or(u32::MAX);
        let into = LocalBytes { address: place.as_ptr().addr() as u64, bytes, lkey: self.lkey };
        list.push(receive_id(conn, slot), Some(into));
        list.post(qp).map_err(|error| error.errno)?;
        self.arrivals += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{Capabilities, Hello, PortConfig, Tag, hello::Feature, mem::Access, verbs::wr_id::Kind};

    const RING: u32 = 8192;
    const SLOT: u32 = 256;

    fn rx(path: DataPath) -> (Rx, Region) {
        let ring = path == DataPath::Ring;
        let hello = Hello {
            features: if ring { Feature::RING } else { Feature::default() },
            ring_bytes: RING,
            slot_bytes: SLOT,
            arrivals: 4,
            responder_resources: 1,
            initiator_depth: 1,
            lane: 0,
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
        let terms =
            Negotiated::settle("verbs", &caps, &PortConfig::default(), &hello, &hello).expect("fair terms");
        let bytes = if ring { RING } else { 5 * SLOT };
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

    fn receive(slot: u16) -> WrId {
        WrId::new(Kind::Receive, ConnId::new(0, 0), slot)
    }

    #[test]
    fn a_chain_is_walked_across_the_end_of_the_ring() {
        let (mut rx, device) = rx(DataPath::Ring);
        rx.position = Position(u64::from(RING) - 32);
        write(&device, RING as usize - 32, word(24));
        write(&device, RING as usize, word(8));
        rx.arrived(receive(0), 0, Some(48)).expect("a fair chain");
        let first = rx.next_frame().expect("fair").expect("a frame");
        assert_eq!((first.len(), first.end(), first.tag()), (24, Position(RING.into()), Tag(9)));
        let second = rx.next_frame().expect("fair").expect("a frame");
        assert_eq!((second.len(), second.end()), (8, Position(u64::from(RING) + 16)));
        assert!(rx.next_frame().expect("fair").is_none());
        assert!(!rx.is_walking() && rx.owes());
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
            rx.arrived(receive(0), 0, Some(bytes)).expect("not looked at yet");
            assert_eq!(rx.next_frame().map(|_| ()), Err(violation), "{bits:#x} in {bytes} bytes");
        }
        let (mut ring, _device) = rx(DataPath::Ring);
        assert_eq!(ring.arrived(receive(0), 0, Some(u32::MAX)), Err(chain(u32::MAX as usize)));
        assert!(ring.arrived(receive(0), 64, None).is_err(), "a SEND on the ring path");
        let (mut slots, _device) = rx(DataPath::SendRecv);
        assert!(slots.arrived(receive(0), 64, Some(64)).is_err(), "an immediate on the send/recv path");
        assert!(slots.arrived(receive(5), 64, None).is_err(), "a slot that does not exist");
    }

    /// R47: a slot is posted again when its last frame was released, in whatever order.
    #[test]
    fn r47_a_slot_is_kept_until_its_last_frame() {
        let (mut rx, device) = rx(DataPath::SendRecv);
        for at in [0, 16, 32] {
            write(&device, 2 * SLOT as usize + at, word(8));
        }
        rx.arrived(receive(2), 48, None).expect("fair");
        let mut frames = Vec::new();
        while let Some(frame) = rx.next_frame().expect("fair") {
            assert_eq!((frame.slot(), frame.end()), (2, Position(0)));
            frames.push(frame);
        }
        assert_eq!((frames.len(), rx.lent[2]), (3, 3));
        let mut list = RecvList::new(1);
        for pick in [1, 0, 0] {
            let frame = frames.remove(pick);
            rx.release(frame, None, ConnId::new(0, 0), &mut list).expect("nothing to post to");
        }
        assert_eq!(rx.lent[2], 0);
    }
}
