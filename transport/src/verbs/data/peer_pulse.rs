//! The pulse of a peer's process, which we READ.
//!
//! ```text
//!  Port::pulse ─► one READ among the pulls, of 8 bytes ─► kept ─► the next Port::pulse
//! ```
//! Nothing is posted but when the heartbeat asks, which is while the peer owes a sign. A READ counts within the granted
//! `initiator_depth` and has its turn among the pulls. One that fails closes the connection, as any failed work does.

use gimmal_rdma::verbs::RemoteBytes;

use crate::{
    ConnId, Pulse, Time,
    verbs::{
        data::{
            port::{VerbsPort, open_in},
            pulls::What,
        },
        memory::pulse::WORD_BYTES,
    },
};

/// What a connection knows of its peer's.
#[derive(Debug)]
pub(crate) struct PeerPulse {
    place: RemoteBytes,
    /// As it was read last; beat 0 before. `None`: nothing tells, and nothing is read.
    last: Option<Pulse>,
    is_asked: bool,
}

impl PeerPulse {
    /// Before the grant, or where no READ is granted.
    pub(crate) const UNKNOWN: Self =
        Self { place: RemoteBytes { address: 0, rkey: 0 }, last: None, is_asked: false };

    /// As the grant says.
    pub(crate) const fn at(place: RemoteBytes) -> Self {
        Self { place, last: Some(Pulse { beat: 0, at: Time(0) }), is_asked: false }
    }

    /// A READ brought it. A word that is 0 has nothing that moves it.
    pub(crate) fn arrived(&mut self, seen: Pulse) {
        self.last = Some(seen).filter(|seen| seen.beat != 0);
        self.is_asked = false;
    }
}

impl VerbsPort {
    /// The steps of [`Port::pulse`](crate::Port::pulse): a READ is posted by a poll, one at a time.
    pub(crate) fn look_at_pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let open = open_in(&mut self.slots, conn).ok()?;
        let last = open.pulse.last?;
        if open.pulse.is_asked {
            return Some(last);
        }
        if open.pulls.is_full() {
            return None;
        }
        let sink = open.belongings.as_ref()?.holdings.sinks().allocate(WORD_BYTES).ok()?;
        open.pulls.add_access(now.0, What::Pulse, sink.loan, sink.lkey, open.pulse.place);
        open.pulse.is_asked = true;
        if !std::mem::replace(&mut open.is_pulling, true) {
            self.pulling.push(conn.index() as usize);
        }
        Some(last)
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
