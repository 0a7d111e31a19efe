//! A queue pair as its device shows it.

use crate::{
    cm::error::{CmError, call},
    sys::ibv_qp_attr_mask as mask_of,
    verbs::qp::Qp,
};

/// A queue pair as `ibv_query_qp(3)` shows it. siw shows less than it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpView {
    /// Its number, which a peer's events name.
    pub number: u32,
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
    /// Traffic class of its packets: the type of service on RoCE v2.
    pub traffic_class: u8,
}

pub(crate) fn view(qp: &Qp) -> Result<QpView, CmError> {
    let wanted = mask_of::IBV_QP_STATE
        | mask_of::IBV_QP_MAX_QP_RD_ATOMIC
        | mask_of::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask_of::IBV_QP_MIN_RNR_TIMER
        | mask_of::IBV_QP_TIMEOUT
        | mask_of::IBV_QP_RETRY_CNT
        | mask_of::IBV_QP_RNR_RETRY
        | mask_of::IBV_QP_AV;
    let attributes = qp.query(wanted).map_err(call("ibv_query_qp"))?;
    Ok(QpView {
        number: qp.number(),
        state: attributes.qp_state,
        max_rd_atomic: attributes.max_rd_atomic,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        timeout: attributes.timeout,
        retry_count: attributes.retry_cnt,
        rnr_retry: attributes.rnr_retry,
        traffic_class: attributes.ah_attr.grh.traffic_class,
    })
}
