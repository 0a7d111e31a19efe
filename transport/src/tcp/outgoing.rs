//! What goes out: the transmit ring, records, and a piece of bulk, by one call.
//!
//! ```text
//!  ring  │ given back │ sent │ flushed │ staged │ free …
//!                          sent      flushed    tx
//! ```
//! A call may stop anywhere. What it has begun goes on before anything else: a frame, a record, or a piece of bulk.

use std::{ptr::NonNull, sync::Arc};

use rustix::io::Errno;

use super::{
    receive::KEPT_FREE,
    record::{RECORD_BYTES, Record},
    socket::Piece,
    wire::Wire,
};
use crate::{
    FrameWord, Negotiated, Position, Refused, Tag,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
    mem::Region,
};

/// Records that wait, bytes; a peer that makes us owe more does not read.
const RECORDS_BYTES_MAX: usize = 64 << 10;

/// The transmit ring of a connection, and what goes beside its frames.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Region,
    ring_bytes: u64,
    payload_bytes_max: usize,
    /// Position after the last frame, after the last that was flushed, and after the last byte that the kernel took.
    tx: u64,
    flushed: u64,
    sent: u64,
    /// The peer's credit as it came, and up to where frames may be staged by it.
    credit: u64,
    limit: u64,
    records: Vec<u8>,
    records_sent: usize,
    bulk: Option<BulkPiece>,
}

/// A piece of bulk in a record of its own.
#[derive(Debug)]
pub(super) struct BulkPiece {
    head: [u8; RECORD_BYTES],
    payload: NonNull<u8>,
    bytes: usize,
    sent: usize,
    /// For its owner: the request of ours that it belongs to.
    pub(super) request: Option<u32>,
    _keeper: Keeper,
}

/// What keeps the bytes of a piece mapped.
#[derive(Debug)]
#[allow(dead_code)] // held for its drop
pub(super) enum Keeper {
    Region(Arc<Region>),
    Bytes(Box<[u8]>),
}

// SAFETY: the pointer leads into what the keeper owns or shares, and the kernel alone reads there.
unsafe impl Send for BulkPiece {}

impl BulkPiece {
    /// `bytes` of `region` from `at` on.
    pub(super) fn of_region(record: Record, region: Arc<Region>, at: usize, bytes: usize) -> Self {
        let payload = region.at(at, bytes);
        let head = record.encode();
        Self { head, payload, bytes, sent: 0, request: None, _keeper: Keeper::Region(region) }
    }

    /// `bytes` of its own.
    pub(super) fn of_bytes(record: Record, bytes: Box<[u8]>) -> Self {
        let (payload, len) = (NonNull::from(&*bytes).cast(), bytes.len());
        let head = record.encode();
        Self { head, payload, bytes: len, sent: 0, request: None, _keeper: Keeper::Bytes(bytes) }
    }

    /// Bytes of its payload.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is left of it: of its head, and of its payload.
    fn rest(&self) -> [Piece; 2] {
        let head = &self.head[self.sent.min(RECORD_BYTES)..];
        let skip = self.sent.saturating_sub(RECORD_BYTES);
        // SAFETY: no more than its bytes were sent.
        let payload = unsafe { self.payload.add(skip) };
        [
            Piece { at: NonNull::from(head).cast(), bytes: head.len() },
            Piece { at: payload, bytes: self.bytes - skip },
        ]
    }
}

/// How a call went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Went {
    /// There was nothing.
    Nothing,
    /// All of it.
    All,
    /// The kernel takes no more now.
    Part,
}

impl Outgoing {
    pub(super) fn new(ring: Region, negotiated: &Negotiated) -> Self {
        let ring_bytes = u64::from(negotiated.tx_ring_bytes);
        Self {
            ring,
            ring_bytes,
            payload_bytes_max: negotiated.frame_bytes_max as usize - FRAME_WORD_BYTES,
            tx: 0,
            flushed: 0,
            sent: 0,
            credit: 0,
            limit: ring_bytes - KEPT_FREE,
            records: Vec::new(),
            records_sent: 0,
            bulk: None,
        }
    }

    /// The place of `position` in the first view.
    #[expect(clippy::cast_possible_truncation, reason = "masked by the ring's size, which is at most 1 GiB")]
    #[inline]
    fn at(&self, position: u64) -> NonNull<u8> {
        // SAFETY: inside the first view, by the mask.
        unsafe { self.ring.base().add((position & (self.ring_bytes - 1)) as usize) }
    }

    /// The payload of the next frame.
    #[inline]
    pub(super) fn place(&mut self, payload_bytes: usize) -> Result<&mut [u8], Refused> {
        if payload_bytes > self.payload_bytes_max {
            return Err(Refused::TooLarge { bytes: payload_bytes, limit: self.payload_bytes_max });
        }
        if self.tx + span(payload_bytes) as u64 > self.limit {
            return Err(Refused::Full);
        }
        // SAFETY: a multiple of 16 that is below the ring's end, so the word behind it is inside.
        let payload = unsafe { self.at(self.tx).add(FRAME_WORD_BYTES) };
        // SAFETY: in our own ring, contiguous by its second view, initialised since its creation. The peer has given these
        // bytes back, by the limit, so they were sent, and nobody else reads or writes them.
        Ok(unsafe { std::slice::from_raw_parts_mut(payload.as_ptr(), payload_bytes) })
    }

    /// Stages the frame whose payload was lent: where it ends, and whether it is the first since the last flush.
    #[inline]
    pub(super) fn commit(&mut self, payload_bytes: usize, tag: Tag) -> (Position, bool) {
        let begins = self.tx == self.flushed;
        let word = FrameWord::new(payload_bytes, tag).bits().to_le();
        // SAFETY: where `place` found room: inside the ring, and aligned to 16.
        unsafe { self.at(self.tx).cast::<u64>().write(word) };
        self.tx += span(payload_bytes) as u64;
        (Position(self.tx), begins)
    }

    /// What was staged goes out with the next call.
    #[inline]
    pub(super) const fn flush(&mut self) {
        self.flushed = self.tx;
    }

    /// Position after the last frame.
    pub(super) const fn committed(&self) -> Position {
        Position(self.tx)
    }

    /// Position before which the ring may be written over.
    #[inline]
    pub(super) const fn completed(&self) -> Position {
        Position(self.sent & !(FRAME_ALIGN as u64 - 1))
    }

    /// The peer's credit, as it came.
    #[inline]
    pub(super) const fn credit(&self) -> Position {
        Position(self.credit)
    }

    /// The peer's credit came. Our own limit follows if the value is possible; otherwise the engine reports it.
    pub(super) fn credited(&mut self, position: u64) {
        self.credit = position;
        if position <= self.sent {
            self.limit = self.limit.max(position + self.ring_bytes - KEPT_FREE);
        }
    }

    /// No frame is staged any more. What was staged and not flushed is lost, and so is a piece of bulk that has not begun.
    pub(super) fn end(&mut self) {
        (self.limit, self.tx) = (0, self.flushed);
        self.bulk.take_if(|bulk| bulk.sent == 0);
    }

    /// Queues a record with its body. `false`: too many wait already.
    pub(super) fn say(&mut self, record: Record, body: &[u8]) -> bool {
        if self.records.len() - self.records_sent > RECORDS_BYTES_MAX {
            return false;
        }
        // Those that left go, also while a peer that reads slowly never lets the last one leave. Their last byte stays: it says that
        // a record may have left in part, which goes on before frames.
        if self.records_sent > RECORDS_BYTES_MAX {
            self.records.drain(..self.records_sent - 1);
            self.records_sent = 1;
        }
        self.records.extend_from_slice(&record.encode());
        self.records.extend_from_slice(body);
        true
    }

    /// Whether there is no piece of bulk.
    pub(super) const fn wants_bulk(&self) -> bool {
        self.bulk.is_none()
    }

    /// The next piece of bulk.
    pub(super) fn put_bulk(&mut self, bulk: BulkPiece) {
        self.bulk = Some(bulk);
    }

    /// Gives the ring's pages back, if all of it was sent.
    pub(super) fn rest(&mut self) {
        if self.is_empty() {
            self.records.shrink_to_fit();
            // SAFETY: what was sent is not read again, a payload is lent only while we are borrowed, and the ring is ours alone.
            unsafe { self.ring.give_back() };
        }
    }

    /// Bytes of the ring that have pages.
    #[cfg(test)]
    pub(super) fn resident(&self) -> usize {
        self.ring.resident()
    }

    /// Bytes of the memory for records.
    #[cfg(test)]
    pub(super) fn records_memory(&self) -> usize {
        self.records.capacity()
    }

    /// Whether nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.tx && self.records.is_empty() && self.bulk.is_none()
    }

    /// Bytes that were flushed or said, and that the kernel has not taken.
    pub(super) fn unsent_bytes(&self) -> u64 {
        let bulk = self.bulk.as_ref().map_or(0, |bulk| RECORD_BYTES + bulk.bytes - bulk.sent);
        self.flushed - self.sent + (self.records.len() - self.records_sent + bulk) as u64
    }

    /// Hands all of it to the kernel, by one call where TLS does not come between. A piece of bulk that left is returned.
    pub(super) fn send(&mut self, wire: &mut Wire) -> Result<(Went, Option<BulkPiece>), Errno> {
        let frames =
            Piece { at: self.at(self.sent), bytes: usize::try_from(self.flushed - self.sent).unwrap_or(0) };
        let records = &self.records[self.records_sent..];
        let records = Piece { at: NonNull::from(records).cast(), bytes: records.len() };
        let [head, payload] = self.bulk.as_ref().map_or([Piece::EMPTY; 2], BulkPiece::rest);
        let is_bulk_begun = self.bulk.as_ref().is_some_and(|bulk| bulk.sent > 0);
        let pieces = match (is_bulk_begun, self.records_sent > 0) {
            (true, _) => [head, payload, frames, records],
            (false, true) => [records, frames, head, payload],
            (false, false) => [frames, records, head, payload],
        };
        let total: usize = pieces.iter().map(|piece| piece.bytes).sum();
        if total == 0 && !wire.is_behind() {
            return Ok((Went::Nothing, None));
        }
        // SAFETY: the ring, the records and what the piece's keeper has stay mapped while we are borrowed.
        let count = match unsafe { wire.send(&pieces) } {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::NOBUFS) => return Ok((Went::Part, None)),
            Err(errno) => return Err(errno),
        };
        let bulk = head.bytes + payload.bytes;
        let left = match (is_bulk_begun, self.records_sent > 0) {
            (true, _) => self.took(
                [(Part::Bulk, bulk), (Part::Frames, frames.bytes), (Part::Records, records.bytes)],
                count,
            ),
            (false, true) => self.took(
                [(Part::Records, records.bytes), (Part::Frames, frames.bytes), (Part::Bulk, bulk)],
                count,
            ),
            (false, false) => self.took(
                [(Part::Frames, frames.bytes), (Part::Records, records.bytes), (Part::Bulk, bulk)],
                count,
            ),
        };
        Ok((if count == total && !wire.is_behind() { Went::All } else { Went::Part }, left))
    }

    /// The kernel took `count` bytes of these, in order.
    fn took(&mut self, parts: [(Part, usize); 3], count: usize) -> Option<BulkPiece> {
        let mut count = count;
        for (part, bytes) in parts {
            let bytes = bytes.min(count);
            count -= bytes;
            match part {
                Part::Frames => self.sent += bytes as u64,
                Part::Records => {
                    self.records_sent += bytes;
                    if self.records_sent == self.records.len() {
                        self.records.clear();
                        self.records_sent = 0;
                    }
                }
                Part::Bulk => {
                    if let Some(bulk) = &mut self.bulk {
                        bulk.sent += bytes;
                    }
                }
            }
        }
        self.bulk.take_if(|bulk| bulk.sent == RECORD_BYTES + bulk.bytes)
    }
}

/// What a call sends.
#[derive(Clone, Copy)]
enum Part {
    Frames,
    Records,
    Bulk,
}
