//! A shared receive queue that the CM made with an id (`rdma_create_srq(3)`).

use std::sync::Arc;

use crate::{
    id::cm_id::CmId,
    sys,
    verbs::{context::Pd, srq::Srq},
};

/// A shared receive queue, and the id that it belongs to. Queue pairs of other ids on the same device may use it: drop
/// them first.
#[derive(Debug)]
pub struct IdSrq {
    srq: Srq,
    /// Destroyed after its queue.
    id: CmId,
}

impl IdSrq {
    /// Makes one for `entries` receives of at most `pieces` pieces each. The id is bound to the device of `pd`.
    ///
    /// # Errors
    /// errno; EINVAL for an id that is bound to no device.
    pub fn new(id: CmId, pd: &Arc<Pd>, entries: u32, pieces: u32) -> Result<Self, i32> {
        let mut attributes: sys::ibv_srq_init_attr = sys::zeroed();
        (attributes.attr.max_wr, attributes.attr.max_sge) = (entries, pieces);
        if id.info().device.is_none() {
            return Err(libc::EINVAL);
        }
        // SAFETY: id and domain are live; the attributes are ours.
        sys::cm_result(unsafe { sys::rdma_create_srq(id.raw(), pd.raw(), &raw mut attributes) })?;
        // SAFETY: the call succeeded, so the id has the queue.
        let raw = std::ptr::NonNull::new(unsafe { (*id.raw()).srq }).ok_or(libc::EINVAL)?;
        // SAFETY: the queue is the id's, which our drop destroys after it.
        let srq = unsafe { Srq::of_id(raw, pd) };
        Ok(Self { srq, id })
    }

    /// The queue.
    #[must_use]
    pub fn srq(&self) -> &Srq {
        &self.srq
    }
}

impl Drop for IdSrq {
    fn drop(&mut self) {
        // SAFETY: the id has the queue, which nobody posts to any more.
        unsafe { sys::rdma_destroy_srq(self.id.raw()) };
    }
}
