//! A queue pair as its port sees it, and what a work request of it names; see [`lists`](super::lists) for posting.

use std::{mem::MaybeUninit, ptr::NonNull};

use crate::{
    ConnId,
    mem::Region,
    verbs::{sys, wr_id::WrId},
};

/// The licence to post on a queue pair. The control thread made it with the id and destroys it only in exchange
/// for this value, so the pointer is good as long as somebody has it.
#[derive(Debug)]
pub(crate) struct Qp {
    raw: NonNull<sys::ibv_qp>,
    /// Bytes the device takes inline, as granted.
    pub(crate) inline_bytes: u32,
}

// SAFETY: a queue pair may be posted to from any thread; there is one licence, so from one at a time.
unsafe impl Send for Qp {}

impl Qp {
    /// # Safety
    /// `raw` stays valid until this value is given back to whoever destroys it.
    pub(crate) unsafe fn new(raw: NonNull<sys::ibv_qp>, inline_bytes: u32) -> Self {
        Self { raw, inline_bytes }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Names it in completions.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live (we hold the licence); its number never changes.
        unsafe { (*self.raw()).qp_num }
    }

    /// Sets the RNR timer; legal in RTS (`ibv_modify_qp(3)`).
    pub(crate) fn set_rnr_timer(&self, code: u8) -> Result<(), i32> {
        let mut attributes = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        // SAFETY: the place is ours; `ibv_qp_attr` is plain data, for which zero is a value.
        let place = unsafe { attributes.assume_init_mut() };
        place.min_rnr_timer = code & 31;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        // SAFETY: the queue pair is live (we hold the licence); only the masked field is read.
        let returned = unsafe { sys::ibv_modify_qp(self.raw(), place, i32::try_from(mask).unwrap_or(0)) };
        sys::verbs_result(returned)
    }
}

/// Memory of our own that a work request names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBytes {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

impl LocalBytes {
    /// `bytes` of `region` from `at`, which is registered under `lkey`.
    ///
    /// # Panics
    /// When they are not inside it.
    pub(crate) fn of(region: &Region, at: usize, bytes: u32, lkey: u32) -> Self {
        Self { address: region.at(at, bytes as usize).addr().get() as u64, bytes, lkey }
    }
}

/// Memory of the peer that a work request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteBytes {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// How a work request is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) signalled: bool,
    pub(crate) inline: bool,
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
pub(crate) struct PostError {
    /// Work requests that were posted before the one that failed.
    pub(crate) posted: usize,
    pub(crate) errno: i32,
}

/// What a connection's receives are posted as.
pub(crate) fn receive_id(conn: ConnId, slot: u16) -> WrId {
    WrId::new(crate::verbs::wr_id::Kind::Receive, conn, slot)
}
