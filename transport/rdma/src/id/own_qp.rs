//! A queue pair of our own making: the CM only carries its number, and says what to tell it (`rdma_init_qp_attr(3)`).

use std::{ptr::NonNull, sync::Arc};

use crate::{
    error::{DeviceError, system},
    id::{cm_id::CmId, params::QpRequest},
    sys::{self, ibv_qp_attr_mask as mask_of, ibv_qp_state as state},
    verbs::{context::Pd, cq::Cq, qp::Qp},
};

/// A queue pair of our own making, which the CM connects. Destroyed with this value.
#[derive(Debug)]
pub struct OwnQp {
    raw: NonNull<sys::ibv_qp>,
    qp: Qp,
    /// These outlive it.
    _queues: [Arc<Cq>; 2],
    _pd: Arc<Pd>,
}

// SAFETY: a queue pair may be used from any thread; the endpoint that owns this is used by one at a time.
unsafe impl Send for OwnQp {}

impl OwnQp {
    /// Makes it and takes it to INIT, so that receives can be posted. The id is bound to the device of the rest.
    ///
    /// # Errors
    /// [`DeviceError::System`]: the device refused it, or the CM of iWARP, which has no such queue pairs.
    pub fn new(
        id: &CmId,
        pd: &Arc<Pd>,
        sends: &Arc<Cq>,
        receives: &Arc<Cq>,
        request: QpRequest<'_>,
    ) -> Result<Self, DeviceError> {
        let mut attributes = request.attributes(sends, receives);
        // SAFETY: domain and queues are live, of one device, and kept by the result.
        let raw = unsafe { sys::ibv_create_qp(pd.raw(), &raw mut attributes) };
        let raw = sys::pointer_result(raw).map_err(system("ibv_create_qp"))?;
        let queues = [Arc::clone(sends), Arc::clone(receives)];
        // SAFETY: destroyed by our drop only, with which this licence goes.
        let qp = unsafe { Qp::new(raw, attributes.cap.max_inline_data, Arc::default()) };
        let made = Self { raw, qp, _queues: queues, _pd: Arc::clone(pd) };
        made.enter(id, state::IBV_QPS_INIT, None)?;
        Ok(made)
    }

    /// The queue pair, to post on.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// The licence to post.
    pub(crate) fn licence(&self) -> Qp {
        // SAFETY: the endpoint keeps us as long as the licence, and drops us last of the two.
        unsafe { Qp::new(self.raw, self.qp.inline_bytes, Arc::default()) }
    }

    /// Takes it to INIT again (with the rights of this connection), RTR and RTS, with these depths
    /// (`rdma_init_qp_attr(3)`). Legal after CONNECT_RESPONSE, and before an accept.
    ///
    /// # Errors
    /// [`DeviceError::System`].
    pub fn ready(&self, id: &CmId, responder_resources: u8, initiator_depth: u8) -> Result<(), DeviceError> {
        self.enter(id, state::IBV_QPS_INIT, None)?;
        self.enter(id, state::IBV_QPS_RTR, Some(responder_resources))?;
        self.enter(id, state::IBV_QPS_RTS, Some(initiator_depth))
    }

    fn enter(&self, id: &CmId, to: u32, depth: Option<u8>) -> Result<(), DeviceError> {
        let (mut attributes, named) = id.qp_attributes(to).map_err(system("rdma_init_qp_attr"))?;
        if let Some(depth) = depth {
            if to == state::IBV_QPS_RTR {
                attributes.max_dest_rd_atomic = depth;
            } else {
                attributes.max_rd_atomic = depth;
            }
        }
        // SAFETY: the queue pair is live; the fields that the mask names were filled by the CM.
        let returned = unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, named) };
        sys::verbs_result(returned).map_err(system("ibv_modify_qp"))
    }

    /// The error state: everything posted is flushed.
    pub(crate) fn stop(&self) {
        let attributes = sys::ibv_qp_attr { qp_state: state::IBV_QPS_ERR, ..sys::zeroed() };
        if let Err(errno) = self.qp.modify(attributes, mask_of::IBV_QP_STATE) {
            tracing::debug!(errno, "ibv_modify_qp to the error state");
        }
    }
}

impl Drop for OwnQp {
    fn drop(&mut self) {
        // SAFETY: ours alone; the endpoint posts nothing any more.
        let returned = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_destroy_qp failed");
        }
    }
}
