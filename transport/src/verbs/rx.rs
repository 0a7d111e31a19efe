//! The receiving half of a connection: chains are walked frame by frame and lent where they landed.
//!
//! Ring path: a write-with-immediate says how many bytes followed the last one; its receive is posted again at
//! once. Send/recv path: a SEND fills a slot, which is posted again when the last of its frames was released.

use std::rc::Rc;

use crate::{
    ConnId, DataPath, FrameWord, Negotiated, Position, Violation,
    frame::{FRAME_WORD_BYTES, span},
    mem::{Region, RxFrame},
    verbs::{
        qp::{LocalBytes, Qp, RecvList, receive_id},
        wr_id::WrId,
    },
};

/// One receive more than the peer may use for chains: for its goodbye.
pub(crate) const GOODBYE: usize = 1;

/// A chain that is being handed out.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Where the next frame starts: an offset in the region.
    offset: usize,
    left: usize,
    bytes: usize,
    slot: u16,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rx {
    memory: Rc<Region>,
    lkey: u32,
    path: DataPath,
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
    /// Receives that completed and are not posted again yet (ring path).
    owed: u32,
}

impl Rx {
    pub(crate) fn new(memory: Region, lkey: u32, negotiated: &Negotiated) -> Self {
        let slots = match negotiated.path {
            DataPath::Ring => 0,
            DataPath::SendRecv => negotiated.rx_arrivals as usize + GOODBYE,
        };
        Self {
            memory: Rc::new(memory),
            lkey,
            path: negotiated.path,
            ring_bytes: negotiated.rx_ring_bytes as usize,
            slot_bytes: negotiated.rx_slot_bytes as usize,
            frame_bytes_max: negotiated.rx_frame_bytes_max as usize,
            position: Position(0),
            walk: None,
            lent: vec![0; slots],
            arrivals: negotiated.rx_arrivals.into(),
            owed: 0,
        }
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// A receive completed. `imm` is there for a write-with-immediate.
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
                Walk { offset: self.position.offset(self.ring_bytes), left: bytes, bytes, slot: 0 }
            }
            (DataPath::SendRecv, None) if usize::from(id.slot()) < self.lent.len() => {
                let slot = id.slot();
                let bytes = (bytes as usize).min(self.slot_bytes);
                Walk { offset: usize::from(slot) * self.slot_bytes, left: bytes, bytes, slot }
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
    pub(crate) fn next_frame(&mut self) -> Result<Option<RxFrame>, Violation> {
        let Some(walk) = self.walk.as_mut() else { return Ok(None) };
        if walk.left == 0 {
            self.walk = None;
            return Ok(None);
        }
        let chain = Violation::Chain { bytes: walk.bytes };
        if walk.left < FRAME_WORD_BYTES {
            return Err(chain);
        }
        let place = self.memory.at(walk.offset, FRAME_WORD_BYTES);
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
        // SAFETY: a completion said that these bytes arrived, and the peer writes them again only after it was
        // credited with them, which is after the release: the trust that `Negotiated` and the guide name.
        let frame = unsafe { RxFrame::lend(&self.memory, walk.offset, word, end, walk.slot.into()) };
        if self.path == DataPath::Ring {
            self.position = end;
        } else {
            self.lent[usize::from(walk.slot)] += 1;
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

    pub(crate) fn stop_walking(&mut self) {
        self.walk = None;
    }

    pub(crate) fn owes(&self) -> bool {
        self.owed > 0
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
        if self.path == DataPath::Ring {
            return Ok(());
        }
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        let Some(lent) = self.lent.get_mut(usize::from(slot)) else { return Ok(()) };
        *lent = lent.saturating_sub(1);
        let walked = self.walk.is_none_or(|walk| walk.slot != slot);
        if *lent > 0 || !walked {
            return Ok(());
        }
        let Some(qp) = qp else { return Ok(()) };
        let place = self.memory.at(usize::from(slot) * self.slot_bytes, self.slot_bytes);
        let bytes = u32::try_from(self.slot_bytes).unwrap_or(u32::MAX);
        let into = LocalBytes { address: place.as_ptr().addr() as u64, bytes, lkey: self.lkey };
        list.push(receive_id(conn, slot), Some(into));
        list.post(qp).map_err(|error| error.errno)?;
        self.arrivals += 1;
        Ok(())
    }
}
