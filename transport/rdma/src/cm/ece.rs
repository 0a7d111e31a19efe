//! Enhanced connection establishment (`rdma_set_local_ece(3)`): what vendors agree on beside the CM's own numbers.
//!
//! For queue pairs of the CM's making the library does it by itself. No software device has any options.

use crate::{
    cm::{
        endpoint::Endpoint,
        error::{CmError, call},
        listener::Request,
        params::RejectData,
    },
    id::cm_id::CmId,
    sys,
};

/// A vendor's options (`struct ibv_ece`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ece {
    /// Whose options they are; 0 for none.
    pub vendor_id: u32,
    /// Bits that mean something to that vendor.
    pub options: u32,
}

/// `None` when the other side said nothing.
fn remote(id: &CmId) -> Result<Option<Ece>, CmError> {
    let mut raw = sys::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
    id.remote_ece(&mut raw).map_err(call("rdma_get_remote_ece"))?;
    Ok((raw.vendor_id != 0).then_some(Ece { vendor_id: raw.vendor_id, options: raw.options }))
}

impl Endpoint {
    /// Tells the other side these options with connect or accept; only for a queue pair of our own making, whose maker
    /// must have applied them.
    ///
    /// # Errors
    /// [`CmError::Unsupported`] for a queue pair of the CM's, [`CmError::Device`].
    pub fn set_local_ece(&mut self, ece: Ece) -> Result<(), CmError> {
        if self.own.is_none() {
            return Err(CmError::Unsupported {
                what: "setting ECE options",
                why: "the CM does it by itself for queue pairs that it made",
            });
        }
        let raw = sys::ibv_ece { vendor_id: ece.vendor_id, options: ece.options, comp_mask: 0 };
        self.id.set_local_ece(raw).map_err(call("rdma_set_local_ece"))
    }

    /// What the other side said; on the active side once connected.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn remote_ece(&self) -> Result<Option<Ece>, CmError> {
        remote(&self.id)
    }
}

impl Request {
    /// What the client said.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn remote_ece(&self) -> Result<Option<Ece>, CmError> {
        remote(&self.id)
    }

    /// Refuses because of its options (`rdma_reject_ece(3)`, reason 35), with data for the other side.
    ///
    /// # Errors
    /// [`CmError::Device`] when the client is gone already.
    pub fn reject_ece(self, private_data: &RejectData) -> Result<(), CmError> {
        self.id.reject_ece(private_data.bytes()).map_err(call("rdma_reject_ece"))
    }
}
