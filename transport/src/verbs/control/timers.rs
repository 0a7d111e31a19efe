//! Timers of the device that both sides set, each at its time.

use gimmal_rdma::id::CmId;

use crate::verbs::control::lane::Lane;

/// Sets the ACK timeout where it means something; what is in force then.
pub(crate) fn set_ack_timeout(id: &CmId, lane: &Lane, exponent: Option<u8>) -> Option<u8> {
    let exponent = exponent.filter(|_| !lane.iwarp())?;
    match id.set_ack_timeout(exponent) {
        Ok(()) => Some(exponent),
        Err(errno) => {
            tracing::warn!(errno, exponent, "the ACK timeout stays the CM's");
            None
        }
    }
}

/// Moves the RNR timer off the CM's 655 ms where it means something; what is in force then.
pub(crate) fn set_rnr_timer(lane: &Lane, code: u8) -> Option<u8> {
    if lane.iwarp() {
        return None;
    }
    match lane.qp.set_rnr_timer(code) {
        Ok(()) => Some(code),
        Err(errno) => {
            tracing::warn!(errno, code, "the RNR timer stays the CM's, which is 655 ms");
            None
        }
    }
}
