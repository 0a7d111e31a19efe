//! A refused connection, as its caller hears of it.

use gimmal_rdma::id::reject::{is_nobody_listening, meaning};

use crate::{ConnectError, Refusal};

/// What to tell the caller about a REJECTED event, or about `rdma_connect` failing by itself (iWARP).
pub(crate) fn connect_error(address: &str, status: i32, private: &[u8]) -> ConnectError {
    let address = address.to_owned();
    if let Some(refusal) = Refusal::decode(private) {
        return ConnectError::Rejected { address, reason: refusal.reason(), data: refusal.into_data() };
    }
    if is_nobody_listening(status) {
        return ConnectError::NobodyListens { address };
    }
    ConnectError::Refused { address, status, meaning: meaning(status) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RejectReason, hello};

    #[test]
    fn statuses_are_told_apart() {
        let ours = hello::encode_reject(RejectReason::Overloaded);
        assert!(matches!(connect_error("a", 28, &ours), ConnectError::Rejected { .. }));
        // siw reports our own reject as a reset, with the data.
        assert!(matches!(connect_error("a", -104, &ours), ConnectError::Rejected { .. }));
        // A failed accept on rxe looks like a consumer reject with zeroes.
        assert!(matches!(
            connect_error("a", 28, &[0; 148]),
            ConnectError::Refused { status: 28, meaning: "refused by the consumer", .. }
        ));
        assert!(matches!(connect_error("a", 8, &[]), ConnectError::NobodyListens { .. }));
        assert!(matches!(connect_error("a", -111, &[]), ConnectError::NobodyListens { .. }));
        assert!(matches!(connect_error("a", 10, &[]), ConnectError::Refused { status: 10, .. }));
    }
}
