//! A run of received frames: lent where they landed, with what can be done once for all of them done once.

use std::{cell::Cell, ptr::NonNull, rc::Rc};

use super::{RxFrame, RxMemory};
use crate::{
    ConnId, FrameWord, Position, Tag, Violation,
    frame::{FRAME_WORD_BYTES, span},
    sync::{
        prefetch::{LINE_BYTES, prefetch_to_read},
        publish::observe,
    },
};

/// What frames remember that lie in a ring, where nothing is posted again when one is released.
pub(crate) const IN_RING: u32 = u32::MAX >> 1;

/// Bytes of a frame that are prefetched when it is taken.
const ASKED_BYTES: usize = 1024; // ledger: prefetch_frame

/// Frames of one connection that lie open in memory, one behind the other.
///
/// Comes from [`Port::next_run`](crate::Port::next_run) and goes back to [`Port::end_run`](crate::Port::end_run): the
/// frames that were taken from it are released then. It keeps its memory mapped. There is one of a connection until it is
/// dropped; not ended before, the next one begins with the same frames.
#[derive(Debug)]
pub struct Run {
    conn: ConnId,
    place: RingPlace,
    at: u64,
    limit: u64,
    /// Of the frame before that.
    word: FrameWord,
    frame_bytes_max: usize,
    most: u32,
    left: u32,
    /// The word at which it stopped, when that is no frame; 0 otherwise.
    stopped: u64,
    is_stopped: bool,
    /// Its frames fill it up to `limit`, whatever lies there.
    is_whole: bool,
    /// What is kept of it is a copy; then `kept_to` has a bit for each of its frames that was.
    is_fleeting: bool,
    /// For its frames to remember; how many of them were kept, and where the last of those ends.
    slot: u32,
    kept: Cell<u32>,
    kept_to: Cell<u64>,
    region: Rc<RxMemory>,
}

/// Where a ring is in its region: its first byte, and what masks a position. Slots are one that is never wrapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingPlace {
    pub(crate) base: NonNull<u8>,
    pub(crate) mask: u64,
}

#[cfg(feature = "verbs")]
impl RingPlace {
    /// Where `position` is.
    #[expect(clippy::cast_possible_truncation, reason = "masked by the ring's size, which is below 2 GiB")]
    #[inline]
    pub(crate) fn at(self, position: Position) -> *mut u8 {
        self.base.as_ptr().wrapping_add((position.0 & self.mask) as usize)
    }
}

/// One frame of a [`Run`], read only until the next is taken.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    payload: NonNull<u8>,
    /// As it is behind this frame.
    run: &'a Run,
}

impl Run {
    /// At most `left` frames, the first at position `at`; the peer may have written up to `limit`.
    ///
    /// # Safety
    /// `place` is a ring that is mapped twice, back to back, in `region`, or has everything up to `limit` and a word more in
    /// it. Its mask clears what is no multiple of 16. The peer alone writes it, atomically where a word may be. By the
    /// protocol, the peer leaves a published frame alone until the credit for it was returned; it is trusted to.
    #[inline]
    pub(crate) unsafe fn new(
        conn: ConnId,
        region: Rc<RxMemory>,
        place: RingPlace,
        (at, limit): (u64, u64),
        frame_bytes_max: usize,
        left: u32,
    ) -> Self {
        Self {
            conn,
            place,
            at,
            limit,
            word: FrameWord::unchecked(0),
            frame_bytes_max,
            most: left,
            left,
            stopped: 0,
            is_stopped: false,
            is_whole: false,
            is_fleeting: false,
            slot: IN_RING,
            kept: Cell::new(0),
            kept_to: Cell::new(0),
            region,
        }
    }

    /// Marks a batch that a completion delivered: its frames fill all of it.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) const fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// Its connection is called `conn` from now on.
    #[inline]
    pub(crate) const fn name(&mut self, conn: ConnId) {
        self.conn = conn;
    }

    /// Sets the slot that the frames lie in.
    #[inline]
    pub(crate) const fn in_slot(mut self, slot: u32) -> Self {
        self.slot = slot;
        self
    }

    /// Marks a batch of at most 64 frames that live no longer than it: a kept frame is a copy.
    pub(crate) const fn fleeting(mut self) -> Self {
        self.is_fleeting = true;
        self
    }

    /// Whether frame number `index` was kept, of a run that an [`Arena`](crate::parts::Arena) lent.
    #[must_use]
    pub fn has_kept(&self, index: u32) -> bool {
        self.kept_to.get() >> index & 1 == 1
    }

    /// Whether it lies in the ring, or the slots, whose first byte is at `base`.
    #[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
    #[inline]
    pub(crate) fn is_in(&self, base: NonNull<u8>) -> bool {
        self.place.base == base
    }

    /// No frame of it is lent any more.
    #[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
    #[inline]
    pub(crate) const fn end_here(&mut self) {
        self.limit = self.at;
    }

    /// How many of its frames were kept.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) const fn kept(&self) -> u32 {
        self.kept.get()
    }

    /// Bytes of it that were not taken, of a [whole](Run::whole) one.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) fn rest(&self) -> u32 {
        u32::try_from(self.limit - self.at).unwrap_or(0)
    }

    /// Whether it stopped at something that is no frame, or not inside it.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether its frames have positions; those in slots have numbers, see
    /// [`Negotiated::numbered`](crate::Negotiated::numbered).
    #[inline]
    #[must_use]
    pub const fn is_in_ring(&self) -> bool {
        self.slot == IN_RING
    }

    /// Whether there is certainly no other frame: all of a chain was taken.
    #[inline]
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_whole && self.at == self.limit
    }

    /// Whose frames they are.
    #[inline]
    #[must_use]
    pub const fn conn(&self) -> ConnId {
        self.conn
    }

    /// The position behind those that were taken.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> Position {
        Position(self.at)
    }

    /// How many were taken.
    #[inline]
    #[must_use]
    pub const fn taken(&self) -> u32 {
        self.most - self.left
    }

    /// What the peer did wrong, if it did: by now it may have written up to `limit`, which credit that was given since the
    /// run began has moved.
    #[inline]
    pub(crate) fn broken(&self, limit: u64) -> Option<Violation> {
        if self.stopped == 0 { None } else { self.violation(limit) }
    }

    #[cold]
    fn violation(&self, limit: u64) -> Option<Violation> {
        match FrameWord::parse(self.stopped, self.frame_bytes_max) {
            Err(violation) => Some(violation),
            Ok(word) => {
                let end = self.at + word.map_or(0, |word| span(word.payload_bytes()) as u64);
                (end > limit).then(|| Violation::Overrun { bytes: end - limit })
            }
        }
    }

    /// The next frame. `None`: no more is open, enough were taken, or the peer broke the rules, which
    /// [`Port::end_run`](crate::Port::end_run) sees to.
    #[inline]
    pub fn next_frame(&mut self) -> Option<Lent<'_>> {
        if self.left == 0 {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "masked by the ring's size, which is below 2 GiB"
        )]
        let offset = (self.at & self.place.mask) as usize;
        // SAFETY: inside the ring, 16 bytes from its end at least, by the mask; or at most at `limit`, see `new`.
        let first = unsafe { self.place.base.add(offset) };
        // SAFETY: mapped while `region` lives, aligned to 16 by the mask; the peer writes a word atomically.
        let first_word = unsafe { std::sync::atomic::AtomicU64::from_ptr(first.as_ptr().cast()) };
        // Read once; everything below uses this copy.
        let bits = u64::from_le(observe(first_word));
        let word = FrameWord::unchecked(bits);
        let end = self.at + span(word.payload_bytes()) as u64;
        if !word.is_within(self.frame_bytes_max) || end > self.limit {
            if !self.is_whole || self.at < self.limit {
                (self.stopped, self.is_stopped) = (bits, true);
            }
            return None;
        }
        // The rest of it is on its way while the front is read.
        let bytes = span(word.payload_bytes());
        // SAFETY: a frame lies inside the ring's two views, by the check above.
        prefetch_to_read(unsafe { first.add(bytes - FRAME_WORD_BYTES) });
        if bytes > 2 * LINE_BYTES {
            // SAFETY: as above.
            unsafe { ask_for_middle(first, bytes) };
        }
        self.at = end;
        self.left -= 1;
        // SAFETY: the word's eight bytes lie inside the ring, see above.
        let payload = unsafe { first.add(FRAME_WORD_BYTES) };
        self.word = word;
        Some(Lent { payload, run: self })
    }
}

/// Asks for the cache lines between the first and the last of a frame. Of a long frame it asks for as many as the
/// processor does not fetch itself before it has seen where the reader goes.
///
/// # Safety
/// `bytes` from `first` on lie in one mapping.
#[inline(always)]
unsafe fn ask_for_middle(first: NonNull<u8>, bytes: usize) {
    for at in (LINE_BYTES..bytes.min(ASKED_BYTES)).step_by(LINE_BYTES) {
        // SAFETY: inside, by the bound.
        prefetch_to_read(unsafe { first.add(at) });
    }
}

impl<'a> Lent<'a> {
    /// Whose it is.
    #[inline]
    #[must_use]
    pub const fn conn(&self) -> ConnId {
        self.run.conn()
    }

    /// The engine's bits of the frame word.
    #[inline]
    #[must_use]
    pub const fn tag(&self) -> Tag {
        self.run.word.tag()
    }

    /// What the peer put there.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        let bytes = self.run.word.payload_bytes();
        // SAFETY: where `Run::next_frame` found it, contiguous for a whole ring by its second view, and a frame is no longer, by the
        // check there. Published, so written; nobody writes it before the credit for it is returned, by `Run::new`.
        unsafe { std::slice::from_raw_parts(self.payload.as_ptr(), bytes) }
    }

    /// The position after this frame in its ring.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> Position {
        self.run.end()
    }

    /// Keeps the frame beyond its turn, once. It must then be released by itself.
    #[must_use]
    pub fn keep(&self) -> Option<RxFrame> {
        let run = self.run;
        if run.is_fleeting {
            let kept = run.kept_to.get() | 1 << (run.taken() - 1);
            let is_new = run.kept_to.replace(kept) != kept;
            return is_new.then(|| RxFrame::on_heap(self.payload().into(), self.tag(), run.end(), run.slot));
        }
        // No frame ends at 0.
        if run.kept_to.replace(run.at) == run.at {
            return None;
        }
        run.kept.set(run.kept.get() + 1);
        // SAFETY: the payload lies in `region`, and stays as it is until it is released, by `Run::new`.
        let frame = unsafe { RxFrame::lend(&run.region, self.payload, run.word, run.end(), run.slot) };
        Some(if run.is_in_ring() { frame.kept() } else { frame })
    }
}
