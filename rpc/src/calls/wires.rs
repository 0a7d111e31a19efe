//! The slots of the window: a request leaves in one, and its answer names it.

use crate::id::CallId;

/// No call is in this slot.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Wire {
    generation: u32,
    /// The call, or [`NOBODY`].
    call: u32,
}

/// All slots of one connection. A slot is used again only with a new generation, so an old id finds nothing.
#[derive(Debug)]
pub(super) struct Wires {
    wires: Vec<Wire>,
    /// Those that are not taken, a bit each. The lowest is used next: the server may have fewer.
    free: Vec<u64>,
}

impl Wires {
    pub(super) fn new(window: usize) -> Self {
        let mut free = vec![u64::MAX; window / 64];
        if !window.is_multiple_of(64) {
            free.push((1 << (window % 64)) - 1);
        }
        Self { wires: vec![Wire { generation: 0, call: NOBODY }; window], free }
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.wires.len()
    }

    /// What the next request is called.
    #[inline]
    pub(super) fn next(&self) -> Option<CallId> {
        let (word, bits) = match *self.free.first()? {
            0 => (0u32..).zip(self.free.iter().copied()).find(|(_, bits)| *bits != 0)?,
            bits => (0, bits),
        };
        Some(self.id(word * 64 + bits.trailing_zeros()))
    }

    /// What is in `slot` is called.
    #[inline]
    pub(super) fn id(&self, slot: u32) -> CallId {
        CallId { slot, generation: self.wires[slot as usize].generation }
    }

    /// `call` left by `slot`, which is the one of [`Wires::next`].
    #[inline]
    pub(super) fn take(&mut self, slot: u32, call: u32) {
        self.free[slot as usize / 64] &= !(1 << (slot % 64));
        self.wires[slot as usize].call = call;
    }

    /// The call that left as `id` and is still there.
    #[inline]
    pub(super) fn call(&self, id: CallId) -> Option<u32> {
        let wire = self.wires.get(id.slot as usize)?;
        (wire.generation == id.generation && wire.call != NOBODY).then_some(wire.call)
    }

    /// Nobody waits for what left by `slot`, which stays taken until it is [free](Wires::free). What it was called.
    pub(super) fn abandon(&mut self, slot: u32) -> CallId {
        self.wires[slot as usize].call = NOBODY;
        self.id(slot)
    }

    /// The next request may leave by `slot`; the id that it had finds nothing from here on.
    #[inline]
    pub(super) fn free(&mut self, slot: u32) {
        let wire = &mut self.wires[slot as usize];
        wire.generation = wire.generation.wrapping_add(1);
        wire.call = NOBODY;
        self.free[slot as usize / 64] |= 1 << (slot % 64);
    }
}
