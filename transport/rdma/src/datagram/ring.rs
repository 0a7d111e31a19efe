//! Registered memory in slots of one size: a message each.

use std::{ptr::NonNull, sync::Arc};

use crate::{
    error::DeviceError,
    memory::{Mapping, Memory},
    verbs::{
        context::Pd,
        mr::{Mr, Rights},
        qp::LocalBytes,
    },
};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Registered memory in slots of one size: a message each. The queue knows which slot is used by what.
#[derive(Debug)]
pub(super) struct Slots {
    /// Before the region: the device lets go first.
    mr: Mr,
    region: Mapping,
    slot_bytes: usize,
    /// What of a slot is used.
    bytes: usize,
    count: u16,
}

impl Slots {
    pub(super) fn new(pd: &Arc<Pd>, count: u16, bytes: usize) -> Result<Self, DeviceError> {
        // Slots start on cache lines.
        let slot_bytes = bytes.next_multiple_of(LINE_BYTES);
        let region = Mapping::new(slot_bytes * usize::from(count))?;
        let mr = Mr::new(pd, &region, Rights::LOCAL)?;
        Ok(Self { mr, region, slot_bytes, bytes, count })
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// What one slot holds.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where `bytes` of slot `slot` are, from `offset`.
    ///
    /// # Panics
    /// When they are not inside the slot: callers check what the device says first.
    pub(super) fn place(&self, slot: u16, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(slot < self.count && offset + bytes <= self.bytes, "slot {slot}: {offset}+{bytes}");
        self.region.place(usize::from(slot) * self.slot_bytes + offset, bytes)
    }

    /// The slot as a work request names it.
    pub(super) fn local(&self, slot: u16, bytes: usize) -> LocalBytes {
        let address = self.place(slot, 0, bytes).addr().get() as u64;
        // A slot is the path MTU and a header.
        let bytes = u32::try_from(bytes).unwrap_or(0);
        // SAFETY: our own slot, which `place` checked. It is registered until after the queue pair is destroyed, and
        // between its post and its completion the queue lends it to nobody.
        unsafe { LocalBytes::new(address, bytes, self.mr.lkey()) }
    }
}
