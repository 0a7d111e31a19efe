//! A received frame, lent where it landed.

use std::{cell::Cell, ops::Deref, ptr::NonNull, rc::Rc};

use super::{Region, RxMemory};
use crate::{FrameWord, Position, Tag, frame::span, pack::Field};

/// The payload of one frame, read only, until it is handed back with [`Port::release`](crate::Port::release).
///
/// Dropping it instead is safe and leaks its credit: the connection stalls in the end. It keeps its memory mapped,
/// so it may outlive its connection and its port. While it exists a port of shared memory gives its bytes to nobody
/// ([`Port::return_credit`](crate::Port::return_credit)); dropped while it is [held](RxFrame::is_held), it keeps them for good.
#[derive(Debug)]
pub struct RxFrame {
    bytes: NonNull<u8>,
    len: usize,
    tag: Tag,
    end: Position,
    slot: u32,
    /// The holder, in the bits above its place there.
    held: Cell<u64>,
    memory: Memory,
}

/// Nobody holds it.
const NOT_HELD: u64 = u64::MAX;
/// A place with a holder, which has 64.
type Place = Field<0, 6>;
/// The number of a holder.
type Number = Field<6, 58>;

#[derive(Debug)]
enum Memory {
    Region(Rc<RxMemory>),
    Heap(#[allow(dead_code)] Box<[u8]>), // held for its drop
}

impl RxFrame {
    /// Lends the payload of the frame of `word`, which begins at `bytes` in `region`.
    ///
    /// # Safety
    /// All of it lies in `region`. Until this frame is released nobody writes these bytes: not this process, and, by
    /// the protocol that the trust in the peer rests on, not the peer.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn lend(
        region: &Rc<RxMemory>,
        bytes: NonNull<u8>,
        word: FrameWord,
        end: Position,
        slot: u32,
    ) -> Self {
        let len = word.payload_bytes();
        let (tag, held, memory) = (word.tag(), Cell::new(NOT_HELD), Memory::Region(RxMemory::share(region)));
        Self { bytes, len, tag, end, slot, held, memory }
    }

    /// A frame in memory of its own.
    #[must_use]
    pub fn on_heap(payload: Box<[u8]>, tag: Tag, end: Position, slot: u32) -> Self {
        let len = payload.len();
        let bytes = NonNull::from(&*payload).cast();
        Self { bytes, len, tag, end, slot, held: Cell::new(NOT_HELD), memory: Memory::Heap(payload) }
    }

    /// The engine's bits of the frame word.
    #[inline]
    #[must_use]
    pub const fn tag(&self) -> Tag {
        self.tag
    }

    /// The position after this frame in its ring; on the send/recv path it says nothing.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> Position {
        self.end
    }

    /// The provider's: which receive it came by.
    #[inline]
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether somebody holds its bytes: then it goes to [`Holder::keep`](crate::mem::Holder::keep), not to its port.
    #[inline]
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.held.get() != NOT_HELD
    }

    /// Its place with the holder number `holder`, if that holds it.
    pub(super) fn place(&self, holder: u64) -> Option<u32> {
        let held = self.held.get();
        (self.is_held() && Number::get(held) == holder).then(|| Place::get_u32(held))
    }

    /// The holder number `holder` holds it from now on.
    pub(super) fn put_on(&self, holder: u64, place: u32) {
        self.held.set(Number::turn(holder) | Place::turn(place.into()));
    }

    /// Nobody holds it any more.
    pub(super) fn take_off(&self) {
        self.held.set(NOT_HELD);
    }

    /// Marks the frame as kept: its bytes are not credited while it exists.
    pub(super) fn kept(self) -> Self {
        if let Memory::Region(memory) = &self.memory {
            memory.keep(self.start());
        }
        self
    }

    /// The position of its word, in a ring.
    fn start(&self) -> u64 {
        self.end.0.wrapping_sub(span(self.len) as u64)
    }

    /// Whether it landed in `memory`.
    #[cfg(feature = "verbs")]
    pub(crate) fn is_in(&self, memory: &Rc<RxMemory>) -> bool {
        matches!(&self.memory, Memory::Region(ours) if Rc::ptr_eq(ours, memory))
    }

    pub(super) const fn region(&self) -> Option<&Rc<RxMemory>> {
        match &self.memory {
            Memory::Region(region) => Some(region),
            Memory::Heap(_) => None,
        }
    }

    /// Where its payload begins in `region`, if it does.
    pub(super) fn offset_in(&self, region: &Region) -> Option<usize> {
        let offset = self.bytes.addr().get().checked_sub(region.base().addr().get())?;
        (offset <= region.len() && self.len <= region.len() - offset).then_some(offset)
    }
}

impl Drop for RxFrame {
    fn drop(&mut self) {
        let Memory::Region(memory) = &self.memory else { return };
        memory.unshare();
        // Somebody may still read what is held.
        if !self.is_held() {
            memory.forget(self.start());
        }
    }
}

impl Deref for RxFrame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `lend`'s caller promised that nobody writes these bytes while we exist, and `memory` keeps them
        // mapped; `on_heap` owns them. `bytes` and `len` were checked against the region by `Region::at`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}
