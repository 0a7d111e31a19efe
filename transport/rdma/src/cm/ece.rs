//! Vendors' options of a connection.

use crate::{
    cm::{
        endpoint::Endpoint,
        error::{CmError, call},
        listener::Request,
        params::RejectData,
    },
    id::ece::Ece,
};

impl Endpoint {
    /// Tells the other side these options with connect or accept (`rdma_set_local_ece(3)`); only for a queue pair of our
    /// own making, whose maker must have applied them.
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
        ece.set_local(&self.id).map_err(call("rdma_set_local_ece"))
    }

    /// What the other side said; on the active side once connected.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn remote_ece(&self) -> Result<Option<Ece>, CmError> {
        Ece::remote(&self.id).map_err(call("rdma_get_remote_ece"))
    }
}

impl Request {
    /// What the client said.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn remote_ece(&self) -> Result<Option<Ece>, CmError> {
        Ece::remote(&self.id).map_err(call("rdma_get_remote_ece"))
    }

    /// Refuses because of its options (`rdma_reject_ece(3)`, reason 35), with data for the other side.
    ///
    /// # Errors
    /// [`CmError::Device`] when the client is gone already.
    pub fn reject_ece(self, private_data: &RejectData) -> Result<(), CmError> {
        self.id.reject_ece(private_data.bytes()).map_err(call("rdma_reject_ece"))
    }
}
