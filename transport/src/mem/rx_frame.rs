//! A received frame, lent where it landed.

use std::{ops::Deref, ptr::NonNull, rc::Rc};

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
    _memory: Memory,
}

#[derive(Debug)]
#[allow(dead_code)] // held for their drop
enum Memory {
    Region(Rc<Region>),
    Heap(Box<[u8]>),
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
        Self { bytes, len, tag: word.tag(), end, slot, _memory: Memory::Region(Rc::clone(region)) }
    }

    /// A frame in memory of its own.
    #[must_use]
    pub fn on_heap(payload: Box<[u8]>, tag: Tag, end: Position, slot: u32) -> Self {
        let len = payload.len();
        let bytes = NonNull::from(&*payload).cast();
        Self { bytes, len, tag, end, slot, _memory: Memory::Heap(payload) }
    }

    /// The engine's bits of the frame word.
    #[inline]
    #[must_use]
    pub const fn tag(&self) -> Tag {
        self.tag
    }

    /// The position after this frame in its ring; 0 on the send/recv path.
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
}

impl Deref for RxFrame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `lend`'s caller promised that nobody writes these bytes while we exist, and `_memory` keeps them
        // mapped; `on_heap` owns them. `bytes` and `len` were checked against the region by `Region::at`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}
