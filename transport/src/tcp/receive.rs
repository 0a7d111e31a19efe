//! What comes in: the receive ring, and records taken out of it.
//!
//! ```text
//!  ring  │ given back │ lent, or kept │ received: frames, or a record │ free …
//!                                    rx                              got
//! ```

use std::{ptr::NonNull, rc::Rc};

use rustix::io::Errno;

use super::{
    record::{RECORD_BYTES, Record},
    socket::{PIECES, Piece},
    wire::Wire,
};
use crate::{
    ConnId, FrameWord, Negotiated, Position, Violation,
    frame::{FRAME_ALIGN, span},
    mem::{Region, Run, RxMemory, run::RingPlace},
};

/// Bytes of the ring that are never credit, so that a record's first bytes find room.
pub(super) const KEPT_FREE: u64 = RECORD_BYTES as u64;
/// Most bytes of frames that one call receives, but for a larger frame: what lies behind a record has to be moved.
const CALL_BYTES: u64 = 32 << 10;
/// Most bytes that are received beside bulk, which has to be copied out of the ring.
const BESIDE_BULK_BYTES: u64 = 4 << 10;
/// Frames of one run.
const RUN_MAX: u32 = 1 << 20;

#[cfg(test)]
thread_local! {
    /// Bytes that this thread moved to the front of rings.
    pub(super) static MOVED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The receive ring of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    memory: Rc<RxMemory>,
    place: RingPlace,
    ring_bytes: u64,
    frame_bytes_max: usize,
    /// Where the next frame or record begins.
    rx: u64,
    /// Behind the last byte that was received.
    got: u64,
    /// Up to here bytes were given back; up to there the peer knows.
    released: u64,
    told: u64,
}

/// What lies at the front.
pub(super) enum Head {
    /// Nothing that is whole; of a frame that began, so many bytes are missing.
    Nothing { missing: u64 },
    /// A whole frame.
    Frame,
    /// A record, whose body follows.
    Record(Record),
}

impl Receiver {
    pub(super) fn new(ring: Region, negotiated: &Negotiated) -> Self {
        let ring_bytes = u64::from(negotiated.rx_ring_bytes);
        let mask = (ring_bytes - 1) & !(FRAME_ALIGN as u64 - 1);
        let place = RingPlace { base: ring.base(), mask };
        let (memory, frame_bytes_max) =
            (Rc::new(RxMemory::new(ring)), negotiated.rx_frame_bytes_max as usize);
        Self { memory, place, ring_bytes, frame_bytes_max, rx: 0, got: 0, released: 0, told: 0 }
    }

    /// Whether a run is out: nothing is moved then.
    pub(super) fn has_run(&self) -> bool {
        RxMemory::has_run(&self.memory, 1)
    }

    /// Where `position` lies in the first view of the ring. Frames begin at multiples of 16; what was received may end anywhere.
    #[expect(clippy::cast_possible_truncation, reason = "masked by the ring's size, which is at most 1 GiB")]
    fn at(&self, position: u64) -> NonNull<u8> {
        // SAFETY: inside the first view, by the mask.
        unsafe { self.place.base.add((position & (self.ring_bytes - 1)) as usize) }
    }

    /// Bytes that were received from the front on.
    fn ahead(&self) -> usize {
        usize::try_from(self.got - self.rx).unwrap_or(usize::MAX)
    }

    /// The word at `position`, which was received.
    fn word(&self, position: u64) -> u64 {
        let at = self.at(position).cast::<u64>();
        // SAFETY: inside the two views of the ring, behind a record's body not aligned. This thread alone writes it.
        u64::from_le(unsafe { at.read_unaligned() })
    }

    /// What lies behind so many `used` bytes at the front: records and their bodies, which [`Receiver::strip`] takes out later.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[inline]
    pub(super) fn head(&self, used: usize) -> Result<Head, Violation> {
        let (ahead, at) = (self.ahead() - used, self.rx + used as u64);
        if ahead < RECORD_BYTES {
            return Ok(Head::Nothing { missing: 0 });
        }
        let bits = self.word(at);
        if pack_len(bits) == 0 {
            return Record::decode(bits, self.word(at + 8)).map(Head::Record);
        }
        let word = FrameWord::parse(bits, self.frame_bytes_max)?;
        let end = self.rx + word.map_or(0, |word| span(word.payload_bytes()) as u64);
        let limit = self.released + self.ring_bytes - KEPT_FREE;
        if end > limit {
            return Err(Violation::Overrun { bytes: end - limit });
        }
        let got = self.got - used as u64;
        Ok(if end <= got { Head::Frame } else { Head::Nothing { missing: end - got } })
    }

    /// The whole frames from the front on, at most `limit`; see [`Receiver::head`].
    #[inline]
    pub(super) fn run(&self, conn: ConnId, limit: usize) -> Run {
        let left = u32::try_from(limit).unwrap_or(RUN_MAX).min(RUN_MAX);
        // A frame beyond the credit is not lent: the next look finds it.
        let whole = self.got & !(FRAME_ALIGN as u64 - 1);
        let span = (self.rx, whole.min(self.released + self.ring_bytes - KEPT_FREE));
        // SAFETY: our own ring, mapped twice by its region, its mask made for frames. The kernel alone writes it, when this
        // thread receives: only behind `got`, and not over bytes that were not given back.
        unsafe { Run::new(conn, Rc::clone(&self.memory), self.place, span, self.frame_bytes_max, left) }
    }

    /// The run is over: how many frames were taken of it. `None`: it is another connection's.
    #[inline]
    pub(super) fn end_run(&mut self, run: &mut Run) -> Option<u32> {
        if !run.is_in(self.place.base) {
            return None;
        }
        self.rx = run.end().0;
        run.end_here();
        Some(run.taken())
    }

    /// Takes so many `used` bytes out of the ring at the front; what lies behind them moves there.
    #[inline]
    pub(super) fn strip(&mut self, used: usize) {
        if used == 0 {
            return;
        }
        let behind = self.ahead() - used;
        let to = self.at(self.rx).as_ptr();
        // SAFETY: within `ahead` of a place in the first view, so inside the two views: a ring is never overfull.
        let from = unsafe { to.add(used) };
        // SAFETY: both ends lie inside the two views, as above, and no byte from the front on is lent while no run is out.
        unsafe { std::ptr::copy(from, to, behind) };
        self.got -= used as u64;
        #[cfg(test)]
        MOVED.set(MOVED.get() + behind as u64);
    }

    /// Copies bytes of a record's body, behind so many `used` at the front, to `into`; how many.
    pub(super) fn feed(&self, used: usize, into: &mut [u8]) -> usize {
        let bytes = into.len().min(self.ahead() - used);
        let from = self.at(self.rx + used as u64).as_ptr();
        // SAFETY: received, so inside the two views and initialised; `into` lies elsewhere, as it is borrowed by the caller.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), bytes) };
        bytes
    }

    /// Receives once: what is `missing` of a body to `body` first, when nothing of it is in the ring, and then into the ring.
    /// Returns how many bytes `body` got, and whether the kernel has no more. `None`: the peer has closed.
    pub(super) fn receive(
        &mut self,
        wire: &mut Wire,
        body: &mut [u8],
        missing: u64,
        beside_bulk: bool,
    ) -> Result<Option<(usize, bool)>, Errno> {
        let call = if beside_bulk { BESIDE_BULK_BYTES } else { CALL_BYTES };
        let room = (self.released + self.ring_bytes - self.got).min(call.max(missing));
        let room = usize::try_from(room).unwrap_or(0);
        let ours = NonNull::from(&mut *body).cast();
        let mut pieces = [Piece::EMPTY; PIECES];
        pieces[0] = Piece { at: ours, bytes: body.len() };
        pieces[1] = Piece { at: self.at(self.got), bytes: room };
        if body.len() + room == 0 {
            return Ok(Some((0, true)));
        }
        // SAFETY: `body` is borrowed by us alone; the room in the ring was given back, or never used, and nobody has it.
        let count = unsafe { wire.receive(&pieces) }?;
        if count == 0 {
            return Ok(None);
        }
        let to_body = count.min(body.len());
        self.got += (count - to_body) as u64;
        Ok(Some((to_body, count < body.len() + room && !wire.has_unread())))
    }

    /// Gives the ring's pages back, if nothing that was received is unread or kept.
    pub(super) fn rest(&mut self) {
        if self.ahead() == 0
            && let Some(memory) = Rc::get_mut(&mut self.memory)
        {
            // SAFETY: no run, frame or holder shares the ring, so nobody reads it; this thread alone writes it.
            unsafe { memory.give_back() };
        }
    }

    /// Bytes of the ring that have pages.
    #[cfg(test)]
    pub(super) fn resident(&self) -> usize {
        self.memory.resident()
    }

    /// Gives the peer's bytes before `position` back, unless somebody may still read some of them.
    #[inline]
    pub(super) fn release(&mut self, position: Position) {
        let is_read = position.0 <= self.rx && self.memory.kept_from().is_none_or(|kept| position.0 <= kept);
        if is_read && position.0 > self.released {
            self.released = position.0;
        }
    }

    /// Whether the peer should hear what was given back: so much that it may wait for it.
    #[inline]
    pub(super) const fn is_credit_due(&self) -> bool {
        self.released - self.told >= self.ring_bytes / 8
    }

    /// Whether the peer has not heard all that was given back.
    pub(super) const fn has_untold(&self) -> bool {
        self.released > self.told
    }

    /// The credit to tell now.
    pub(super) const fn tell_credit(&mut self) -> Record {
        self.told = self.released;
        Record::Credit { position: self.released }
    }
}

/// The length in a frame word.
const fn pack_len(bits: u64) -> u32 {
    crate::pack::low_half(bits)
}
