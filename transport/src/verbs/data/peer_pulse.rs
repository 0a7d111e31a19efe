//! The pulse of a peer's process, which we READ.
//!
//! ```text
//!  Port::pulse ─► one READ among the pulls, of 8 bytes ─► kept ─► the next Port::pulse
//! ```
//! A READ is posted only when the heartbeat asks, which it does while the peer owes a sign of life. It counts within the
//! granted `initiator_depth` and takes its turn among the pulls. A failed READ closes the connection, like any failed work.

use gimmal_rdma::verbs::RemoteBytes;

use crate::{Pulse, Time};

/// The pulse of the peer, as far as a connection knows it.
#[derive(Debug)]
pub(crate) struct PeerPulse {
    pub(crate) place: RemoteBytes,
    /// The last reading, of beat 0 before the first. `None`: the peer has no pulse, and none is read.
    pub(crate) last: Option<Pulse>,
    pub(crate) is_asked: bool,
}

impl PeerPulse {
    /// The value before the grant, and where no READ is granted.
    pub(crate) const UNKNOWN: Self =
        Self { place: RemoteBytes { address: 0, rkey: 0 }, last: None, is_asked: false };

    /// The pulse at the place that the grant names.
    pub(crate) const fn at(place: RemoteBytes) -> Self {
        Self { place, last: Some(Pulse { beat: 0, at: Time(0) }), is_asked: false }
    }

    /// Takes the result of a READ. A word of 0 is not a pulse.
    pub(crate) fn arrived(&mut self, seen: Pulse) {
        self.last = Some(seen).filter(|seen| seen.beat != 0);
        self.is_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_is_what_was_read_last_and_nothing_where_nothing_moves_it() {
        assert_eq!(PeerPulse::UNKNOWN.last, None);
        let mut pulse = PeerPulse::at(RemoteBytes { address: 8192, rkey: 2 });
        assert_eq!(pulse.last, Some(Pulse { beat: 0, at: Time(0) }), "before the first READ");
        pulse.is_asked = true;
        let seen = Pulse { beat: 7, at: Time(100) };
        pulse.arrived(seen);
        assert_eq!((pulse.last, pulse.is_asked), (Some(seen), false));
        pulse.arrived(Pulse { beat: 0, at: Time(200) });
        assert_eq!(pulse.last, None);
    }
}
