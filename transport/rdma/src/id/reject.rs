//! What a refused connection's status means, in words, and what to make of it.

/// `IB_CM_REJ_INVALID_SERVICE_ID`: nobody listens.
const INVALID_SERVICE_ID: i32 = 8;

/// `IB_CM_REJ_CONSUMER_DEFINED`, and the same from `rdma_reject_ece`: the only two that carry private data.
const CONSUMER_DEFINED: i32 = 28;
const VENDOR_OPTION: i32 = 35;

/// IB reject codes (`rdma/ib_cm.h`, InfiniBand specification 12.6.7.2).
const MEANINGS: [&str; 36] = [
    "no reason given",
    "no queue pair available",
    "no end-to-end context available",
    "no resources available",
    "timed out",
    "unsupported request",
    "invalid communication id",
    "invalid communication instance",
    "invalid service id: nobody listens",
    "invalid transport service type",
    "stale connection: the peer still holds this queue pair",
    "RDC does not exist",
    "primary GID rejected",
    "primary LID rejected",
    "invalid primary SL",
    "invalid primary traffic class",
    "invalid primary hop limit",
    "invalid primary packet rate",
    "alternate GID rejected",
    "alternate LID rejected",
    "invalid alternate SL",
    "invalid alternate traffic class",
    "invalid alternate hop limit",
    "invalid alternate packet rate",
    "redirected by the CM",
    "redirected to another port",
    "invalid path MTU",
    "insufficient responder resources",
    "refused by the consumer",
    "invalid RNR retry count",
    "duplicate local communication id",
    "invalid class version",
    "invalid flow label",
    "invalid alternate flow label",
    "service handed over",
    "refused by the consumer for its vendor options",
];

/// A status in words: an IB reject code, or a negative errno (iWARP, and the CM's own failures).
pub fn meaning(status: i32) -> &'static str {
    if let Ok(code) = usize::try_from(status) {
        return MEANINGS.get(code).copied().unwrap_or("a reject code newer than this program");
    }
    match status.saturating_neg() {
        libc::ECONNREFUSED => "connection refused",
        libc::ECONNRESET => "connection reset: refused by the consumer, or the peer went away",
        libc::ETIMEDOUT => "no answer",
        libc::ENOMEM => "the peer has no memory",
        libc::ENODEV => "no device",
        libc::EINVAL => "the peer or the CM found an argument invalid",
        _ => "an errno",
    }
}

/// What to do about a status: the retry policy by code, in words.
pub fn advice(status: i32) -> &'static str {
    match status {
        1..=3 => "it has no room; back off and try again",
        4 => "it was too slow; try again, or raise the timeout",
        INVALID_SERVICE_ID => "start the server, or check its port",
        6 | 7 | 10 | 30 => {
            "an older connection is still in its TIMEWAIT; make a new queue pair and try again"
        }
        12..=18 | 19..=23 | 26 | 32 | 33 => {
            "the path does not suit it; check subnet, GID, service level and MTU"
        }
        24 | 25 | 34 => "connect to where it points: the address in the reject's data",
        27 => "ask for a smaller initiator_depth",
        CONSUMER_DEFINED | VENDOR_OPTION => "its program refused; read the data that came along",
        29 => "give an rnr_retry_count of 0 to 7",
        5 | 9 | 11 | 31 => "both sides must use the same service type and CM version",
        _ => match status.saturating_neg() {
            libc::ECONNREFUSED => "start the server, or check its port; on iWARP it may also have refused",
            libc::ECONNRESET => "read the data that came along; without any, the peer went away",
            libc::ETIMEDOUT => "check that the host is up and the path is open",
            libc::ENOMEM => "it has no room; back off and try again",
            libc::ENODEV => "check the device with `rdma link`",
            libc::EINVAL => "check the depths against both devices",
            _ => "look the number up",
        },
    }
}

/// Returns whether nobody listens at that address and port.
pub fn is_nobody_listening(status: i32) -> bool {
    status == INVALID_SERVICE_ID || status == -libc::ECONNREFUSED
}

/// iWARP says both this and a vanished peer by ECONNRESET.
pub fn is_by_consumer(status: i32) -> bool {
    matches!(status, CONSUMER_DEFINED | VENDOR_OPTION) || status == -libc::ECONNRESET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_words() {
        for status in -200..300 {
            assert!(!meaning(status).is_empty() && !advice(status).is_empty());
        }
        for code in 1..=35 {
            assert_ne!(advice(code), "look the number up", "reject code {code}: {}", meaning(code));
        }
        assert_eq!(meaning(28), "refused by the consumer");
        assert_eq!(meaning(35), "refused by the consumer for its vendor options");
        assert_eq!(meaning(i32::MIN), "an errno");
    }
}
