//! A received frame, lent where it landed.

use std::{cell::Cell, ops::Deref, ptr::NonNull, rc::Rc};

use crate::{FrameWord, Position, Tag, mem::Region};

/// The payload of one frame, read only, until it is handed back with [`Port::release`](crate::Port::release).
///
/// Dropping it instead is safe and leaks its credit: the connection stalls in the end. It keeps its memory mapped,
/// so it may outlive its connection and its port.
#[derive(Debug)]
pub struct RxFrame {
    bytes: NonNull<u8>,
    len: usize,
    tag: Tag,
    end: Position,
    slot: u32,
    /// Where it lies among the held ones.
    place: Cell<u32>,
    memory: Memory,
}

/// No place.
const NOT_HELD: u32 = u32::MAX;

#[derive(Debug)]
enum Memory {
    Region(Rc<Region>),
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
        region: &Rc<Region>,
        bytes: NonNull<u8>,
        word: FrameWord,
        end: Position,
        slot: u32,
    ) -> Self {
        let len = word.payload_bytes();
        let (tag, place, memory) = (word.tag(), Cell::new(NOT_HELD), Memory::Region(Rc::clone(region)));
        Self { bytes, len, tag, end, slot, place, memory }
    }

    /// A frame in memory of its own.
    #[must_use]
    pub fn on_heap(payload: Box<[u8]>, tag: Tag, end: Position, slot: u32) -> Self {
        let len = payload.len();
        let bytes = NonNull::from(&*payload).cast();
        Self { bytes, len, tag, end, slot, place: Cell::new(NOT_HELD), memory: Memory::Heap(payload) }
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
        self.place.get() != NOT_HELD
    }

    pub(super) fn place(&self) -> Option<u32> {
        self.is_held().then(|| self.place.get())
    }

    pub(super) fn put_on(&self, place: u32) {
        self.place.set(place);
    }

    pub(super) const fn region(&self) -> Option<&Rc<Region>> {
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

impl Deref for RxFrame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `lend`'s caller promised that nobody writes these bytes while we exist, and `memory` keeps them
        // mapped; `on_heap` owns them. `bytes` and `len` were checked against the region by `Region::at`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}
