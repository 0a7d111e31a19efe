//! A queue pair as its poster sees it, and what a work request names.

use std::{ptr::NonNull, sync::Arc};

use crate::{memory::Memory, sys};

/// The licence to post on a queue pair, which is destroyed only in exchange for this value. An id that is dropped before it
/// is leaked with the queue pair, so the pointer is good as long as somebody has it.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<sys::ibv_qp>,
    /// Its id counts the holders.
    _licence: Arc<()>,
    /// Bytes the device takes inline, as granted.
    pub inline_bytes: u32,
}

// SAFETY: a queue pair may be posted to from any thread; there is one licence, so from one at a time.
unsafe impl Send for Qp {}

impl Qp {
    /// # Safety
    /// `raw` stays valid as long as somebody has this value, or another clone of `licence`.
    pub(crate) unsafe fn new(raw: NonNull<sys::ibv_qp>, inline_bytes: u32, licence: Arc<()>) -> Self {
        Self { raw, _licence: licence, inline_bytes }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Names it in completions.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live (we hold the licence); its number never changes.
        unsafe { (*self.raw()).qp_num }
    }

    /// Sets the RNR timer; legal in RTS.
    ///
    /// # Errors
    /// errno.
    pub fn set_rnr_timer(&self, code: u8) -> Result<(), i32> {
        let attributes = sys::ibv_qp_attr { min_rnr_timer: code & 31, ..sys::zeroed() };
        self.modify(attributes, sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER)
    }

    /// Sets the fields of `mask` (`ibv_modify_qp(3)`).
    pub(crate) fn modify(
        &self,
        mut attributes: sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(), i32> {
        let mask = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: the queue pair is live (we hold the licence); only the masked fields are read.
        sys::verbs_result(unsafe { sys::ibv_modify_qp(self.raw(), &raw mut attributes, mask) })
    }

    /// The place in its port's table of the GID that it sends from (`ibv_query_qp(3)`); `None` within an InfiniBand
    /// subnet.
    pub fn source_gid_index(&self) -> Option<u8> {
        let attributes = match self.query(sys::ibv_qp_attr_mask::IBV_QP_AV) {
            Ok(attributes) => attributes,
            Err(errno) => {
                tracing::debug!(errno, "ibv_query_qp does not tell the GID");
                return None;
            }
        };
        let address = attributes.ah_attr;
        (address.is_global != 0).then_some(address.grh.sgid_index)
    }

    /// `ibv_query_qp(3)` for the fields of `mask`.
    pub(crate) fn query(&self, mask: sys::ibv_qp_attr_mask) -> Result<sys::ibv_qp_attr, i32> {
        let (mut attributes, mut made_with) = (sys::zeroed(), sys::zeroed());
        let wanted = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: the queue pair is live (we hold its licence); both places are ours and as large as the call writes.
        sys::verbs_result(unsafe {
            sys::ibv_query_qp(self.raw(), &raw mut attributes, wanted, &raw mut made_with)
        })?;
        Ok(attributes)
    }
}

/// Memory of our own that a work request names. The caller that makes one answers for the memory.
#[derive(Clone, Copy, Debug)]
pub struct LocalBytes {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

impl LocalBytes {
    /// No memory.
    pub const NONE: Self = Self { address: 0, bytes: 0, lkey: 0 };

    /// `bytes` from `address` on, which are registered under `lkey`.
    ///
    /// # Safety
    /// Until the last work request that names them has completed, or the queue that has it is destroyed, they stay mapped
    /// and registered, nobody has a reference into what the device writes, and nobody writes what it reads.
    #[inline]
    pub unsafe fn new(address: u64, bytes: u32, lkey: u32) -> Self {
        Self { address, bytes, lkey }
    }

    /// `bytes` of `memory` from `at`, which is registered under `lkey`.
    ///
    /// # Panics
    /// When they are not inside it.
    ///
    /// # Safety
    /// As for [`LocalBytes::new`].
    pub unsafe fn of(memory: &impl Memory, at: usize, bytes: u32, lkey: u32) -> Self {
        Self { address: memory.place(at, bytes as usize).addr().get() as u64, bytes, lkey }
    }
}

/// Memory of the peer that a work request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBytes {
    /// Where they are at the peer.
    pub address: u64,
    /// The peer's key for them.
    pub rkey: u32,
}

/// How a work request is posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    /// Whether it completes when it succeeds; it always does when it fails.
    pub signalled: bool,
    /// Whether the device takes the bytes with the request.
    pub inline: bool,
}

impl Flags {
    pub(crate) fn bits(self) -> u32 {
        let signalled = if self.signalled { sys::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        let inline = if self.inline { sys::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        signalled | inline
    }
}

/// Why a list was not posted whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostError {
    /// Work requests that were posted before the one that failed.
    pub posted: usize,
    /// Why the next one was refused.
    pub errno: i32,
}
