//! Enhanced connection establishment (`rdma_set_local_ece(3)`): what vendors agree on beside the CM's own numbers.
//!
//! For queue pairs of the CM's making the library does it by itself. No software device has any options.

use crate::{id::cm_id::CmId, sys};

/// A vendor's options (`struct ibv_ece`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ece {
    /// Whose options they are; 0 for none. 24 bits.
    pub vendor_id: u32,
    /// Bits that mean something to that vendor.
    pub options: u32,
}

impl Ece {
    /// Tells the other side these options with the connect or accept that follows (`rdma_set_local_ece(3)`); for a queue
    /// pair of our own making, whose maker must have applied them.
    ///
    /// # Errors
    /// errno.
    pub fn set_local(self, id: &CmId) -> Result<(), i32> {
        let mut raw = sys::ibv_ece { vendor_id: self.vendor_id, options: self.options, comp_mask: 0 };
        // SAFETY: the id is live; the options are read during the call only.
        sys::cm_result(unsafe { sys::rdma_set_local_ece(id.raw(), &raw mut raw) })
    }

    /// What the other side said with its request or its answer (`rdma_get_remote_ece(3)`); `None` for nothing.
    ///
    /// # Errors
    /// errno.
    pub fn remote(id: &CmId) -> Result<Option<Self>, i32> {
        let mut raw = sys::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the id is live; the place is ours.
        sys::cm_result(unsafe { sys::rdma_get_remote_ece(id.raw(), &raw mut raw) })?;
        Ok((raw.vendor_id != 0).then_some(Self { vendor_id: raw.vendor_id, options: raw.options }))
    }
}
