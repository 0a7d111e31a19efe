//! The word with which one end tells the other why it closes, where a socket joins them.

use crate::CloseReason;

/// Any word but the two below is an orderly close; 0 is none.
pub(crate) const CLOSED: u64 = 1;
/// This process could not take what the peer passed.
pub(crate) const LACKS: u64 = 2;
pub(crate) const PANICKED: u64 = 3;

/// Why the peer closed, by its word.
pub(crate) const fn closed_by_peer(how: u64) -> CloseReason {
    match how {
        LACKS => CloseReason::PeerLacks,
        PANICKED => CloseReason::PeerGone { how: "its worker panicked" },
        _ => CloseReason::Peer,
    }
}
