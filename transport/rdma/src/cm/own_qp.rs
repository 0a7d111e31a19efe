//! A queue pair of our own making: the CM only carries its number, and says what to tell it (`rdma_init_qp_attr(3)`).

use std::{ptr::NonNull, sync::Arc};

use crate::{
    cm::error::{CmError, call},
    id::{cm_id::CmId, params::QpRequest},
    sys::{self, ibv_qp_attr_mask as mask_of, ibv_qp_state as state},
    verbs::{context::Pd, cq::Cq, qp::Qp},
};

/// Destroyed with this value.
#[derive(Debug)]
pub(crate) struct OwnQp {
    raw: NonNull<sys::ibv_qp>,
    /// Both outlive it.
    _queue: Arc<Cq>,
    _pd: Arc<Pd>,
}

// SAFETY: a queue pair may be used from any thread; the endpoint that owns this is used by one at a time.
unsafe impl Send for OwnQp {}

impl OwnQp {
    /// Makes it and takes it to INIT, so that receives can be posted.
    pub(crate) fn new(
        id: &CmId,
        pd: &Arc<Pd>,
        queue: &Arc<Cq>,
        request: QpRequest<'_>,
    ) -> Result<Self, CmError> {
        let mut attributes = request.attributes(queue, queue);
        // SAFETY: domain and queue are live, of one device, and kept by the result.
        let raw = unsafe { sys::ibv_create_qp(pd.raw(), &raw mut attributes) };
        let raw = sys::pointer_result(raw).map_err(call("ibv_create_qp"))?;
        let qp = Self { raw, _queue: Arc::clone(queue), _pd: Arc::clone(pd) };
        qp.enter(id, state::IBV_QPS_INIT, None)?;
        Ok(qp)
    }

    /// The licence to post.
    pub(crate) fn licence(&self) -> Qp {
        // SAFETY: the endpoint keeps us as long as the licence, and drops us last of the two.
        unsafe { Qp::new(self.raw, 0) }
    }

    /// INIT again (with the rights of this connection), RTR and RTS, with these depths.
    pub(crate) fn ready(
        &self,
        id: &CmId,
        responder_resources: u8,
        initiator_depth: u8,
    ) -> Result<(), CmError> {
        self.enter(id, state::IBV_QPS_INIT, None)?;
        self.enter(id, state::IBV_QPS_RTR, Some(responder_resources))?;
        self.enter(id, state::IBV_QPS_RTS, Some(initiator_depth))
    }

    fn enter(&self, id: &CmId, to: u32, depth: Option<u8>) -> Result<(), CmError> {
        let (mut attributes, named) = id.qp_attributes(to).map_err(call("rdma_init_qp_attr"))?;
        if let Some(depth) = depth {
            if to == state::IBV_QPS_RTR {
                attributes.max_dest_rd_atomic = depth;
            } else {
                attributes.max_rd_atomic = depth;
            }
        }
        // SAFETY: the queue pair is live; the fields that the mask names were filled by the CM.
        let returned = unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, named) };
        sys::verbs_result(returned).map_err(call("ibv_modify_qp"))
    }

    /// The error state: everything posted is flushed.
    pub(crate) fn stop(&self) {
        let attributes = sys::ibv_qp_attr { qp_state: state::IBV_QPS_ERR, ..sys::zeroed() };
        if let Err(errno) = self.licence().modify(attributes, mask_of::IBV_QP_STATE) {
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

/// A queue pair as `ibv_query_qp(3)` shows it. siw shows less than it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpView {
    /// 3 is RTS.
    pub state: u32,
    /// READs and atomics we may have outstanding; rxe rounds up to a power of two.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding at us; rxe rounds up to a power of two.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code; 0 is 655 ms.
    pub min_rnr_timer: u8,
    /// ACK timeout exponent: 4.096 us x 2^n.
    pub timeout: u8,
    /// Tries without an answer.
    pub retry_count: u8,
    /// Tries when the peer has no receive.
    pub rnr_retry: u8,
}

pub(crate) fn view(qp: &Qp) -> Result<QpView, CmError> {
    let wanted = mask_of::IBV_QP_STATE
        | mask_of::IBV_QP_MAX_QP_RD_ATOMIC
        | mask_of::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask_of::IBV_QP_MIN_RNR_TIMER
        | mask_of::IBV_QP_TIMEOUT
        | mask_of::IBV_QP_RETRY_CNT
        | mask_of::IBV_QP_RNR_RETRY;
    let attributes = qp.query(wanted).map_err(call("ibv_query_qp"))?;
    Ok(QpView {
        state: attributes.qp_state,
        max_rd_atomic: attributes.max_rd_atomic,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        timeout: attributes.timeout,
        retry_count: attributes.retry_cnt,
        rnr_retry: attributes.rnr_retry,
    })
}
