//! A shared receive queue of a device (`ibv_create_srq(3)`).

use std::{ptr::NonNull, sync::Arc};

use crate::{
    error::{DeviceError, system},
    sys,
    verbs::context::Pd,
};

/// Destroyed after the queue pairs on it: their owners hold it.
#[derive(Debug)]
pub struct Srq {
    raw: NonNull<sys::ibv_srq>,
    /// An id destroys it.
    is_of_id: bool,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs lets any thread post to a shared receive queue and change it; drivers lock inside.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// One for `entries` receives of one piece each.
    pub fn new(pd: &Arc<Pd>, entries: u32) -> Result<Self, DeviceError> {
        let mut attributes: sys::ibv_srq_init_attr = sys::zeroed();
        attributes.attr.max_wr = entries;
        attributes.attr.max_sge = 1;
        // SAFETY: the domain is live while we hold it; the attributes are ours.
        let raw = unsafe { sys::ibv_create_srq(pd.raw(), &raw mut attributes) };
        let raw = sys::pointer_result(raw).map_err(system("ibv_create_srq"))?;
        Ok(Self { raw, is_of_id: false, _pd: Arc::clone(pd) })
    }

    /// The queue of an id.
    ///
    /// # Safety
    /// `raw` is live until this value is dropped, and its id destroys it then.
    pub(crate) unsafe fn of_id(raw: NonNull<sys::ibv_srq>, pd: &Arc<Pd>) -> Self {
        Self { raw, is_of_id: true, _pd: Arc::clone(pd) }
    }

    /// Names it in asynchronous events.
    pub fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    /// Asks for one SRQ_LIMIT_REACHED event, when fewer than `limit` receives are left.
    pub fn arm(&self, limit: u32) -> Result<(), i32> {
        let mut attributes = sys::ibv_srq_attr { srq_limit: limit, ..sys::zeroed() };
        let mask = i32::try_from(sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0).unwrap_or(0);
        // SAFETY: the queue is live; only the masked field is read.
        sys::verbs_result(unsafe { sys::ibv_modify_srq(self.raw(), &raw mut attributes, mask) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if self.is_of_id {
            return;
        }
        // SAFETY: every queue pair on it holds an `Arc` of us through its owner, so none is left.
        let returned = unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_destroy_srq failed: a queue pair still uses it");
        }
    }
}
