//! What a work request says about itself when it completes.
//!
//! ```text
//!  bits 0..20 index │ 20..44 generation │ 44..60 slot │ 60..64 kind
//! ```

use crate::{ConnId, pack::Field};

type Index = Field<0, 20>;
type Generation = Field<{ Index::END }, 24>;
type Slot = Field<{ Generation::END }, 16>;
type KindCode = Field<{ Slot::END }, 4>;
const _: () = assert!(KindCode::END == u64::BITS && KINDS.len() as u64 <= KindCode::MAX);

/// Connections one port can name, and slots of a shared queue.
pub(crate) const INDEX_LIMIT: u32 = 1 << Index::END;
/// Numbers of shared queues.
pub(crate) const QUEUE_NUMBERS: u32 = 1 << (Generation::END - Index::END);

/// One receive more than the peer may use for chains: for its goodbye.
pub(crate) const GOODBYE: usize = 1;

/// Which kind of work it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A receive for frames; `slot` is its buffer on the send/recv path.
    Receive,
    /// The receive that waits for the peer's grant.
    GrantReceive,
    /// Our grant.
    Grant,
    /// A chain.
    Chain,
    /// A piece of a pull or of a one-sided operation; `slot` is the transfer.
    Read,
    /// The empty message before an orderly end.
    Goodbye,
    /// A write of no bytes, which only makes the peer's device look at its socket.
    Nudge,
    /// A receive that no connection owns: the index is its slot, and the generation the number of its queue.
    Shared,
}

const KINDS: [Kind; 8] = [
    Kind::Receive,
    Kind::GrantReceive,
    Kind::Grant,
    Kind::Chain,
    Kind::Read,
    Kind::Goodbye,
    Kind::Nudge,
    Kind::Shared,
];

/// The 64 bits of `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrId(u64);

impl WrId {
    /// No work has it.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// The generation goes round: the queue pair of a use that is so many uses away is long destroyed.
    ///
    /// # Panics
    /// When the index is not below [`INDEX_LIMIT`]: ports have no more seats, and shared queues no more slots.
    pub(crate) fn new(kind: Kind, conn: ConnId, slot: u16) -> Self {
        let index = Index::put(conn.index().into()).expect("seats and shared slots end at INDEX_LIMIT");
        let generation = Generation::turn(conn.generation().into());
        Self(index | generation | Slot::turn(slot.into()) | KindCode::turn(kind as u64))
    }

    /// A receive of the shared queue `number`, below [`QUEUE_NUMBERS`].
    pub(crate) fn shared(number: u32, slot: u32) -> Self {
        Self::new(Kind::Shared, ConnId::new(slot, number), 0)
    }

    pub(crate) fn is_shared(self) -> bool {
        self.kind() == Some(Kind::Shared)
    }

    /// The slot of a shared queue.
    pub(crate) const fn slot_of_queue(self) -> u32 {
        Index::get_u32(self.0)
    }

    /// Which shared queue it is of.
    pub(crate) const fn queue(self) -> u32 {
        Generation::get_u32(self.0)
    }

    /// Returns the identifier with slot 0: the one of all work requests of this kind.
    #[inline]
    pub(crate) const fn without_slot(self) -> Self {
        Self(self.0 & !Slot::turn(Slot::MAX))
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// `None`: no work of ours.
    pub(crate) fn kind(self) -> Option<Kind> {
        KINDS.get(usize::from(KindCode::get_u16(self.0))).copied()
    }

    pub(crate) fn index(self) -> usize {
        Index::get_u32(self.0) as usize
    }

    pub(crate) fn slot(self) -> u16 {
        Slot::get_u16(self.0)
    }

    /// Whether it belongs to this use of the slot.
    pub(crate) fn is_of(self, conn: ConnId) -> bool {
        let generation = u64::from(conn.generation()) & Generation::MAX;
        Index::get_u32(self.0) == conn.index() && Generation::get(self.0) == generation
    }
}

impl From<WrId> for u64 {
    fn from(id: WrId) -> Self {
        id.0
    }
}

/// What a connection's receives are posted as.
pub(crate) fn receive_id(conn: ConnId, slot: u16) -> WrId {
    WrId::new(Kind::Receive, conn, slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_names_itself() {
        let conn = ConnId::new(INDEX_LIMIT - 1, 0xff00_0003);
        for kind in KINDS {
            let id = WrId::from_bits(WrId::new(kind, conn, 0xfffe).bits());
            assert_eq!((id.kind(), id.index(), id.slot()), (Some(kind), 0xf_ffff, 0xfffe));
            assert!(id.is_of(conn));
            assert_eq!(id.without_slot(), WrId::new(kind, conn, 0));
            assert!(!id.is_of(ConnId::new(INDEX_LIMIT - 1, 0xff00_0004)), "another use of the slot");
            assert!(!id.is_of(ConnId::new(7, 0xff00_0003)));
        }
        let id = WrId::from_bits(WrId::shared(0x12_3456, INDEX_LIMIT - 1).bits());
        assert_eq!((id.kind(), id.index(), id.queue()), (Some(Kind::Shared), 0xf_ffff, 0x12_3456));
        assert_eq!(WrId::NONE.kind(), None);
    }

    #[test]
    fn work_beyond_the_last_seat_is_refused_in_every_build() {
        let work = |index| std::panic::catch_unwind(|| WrId::new(Kind::Chain, ConnId::new(index, 0), 0));
        assert!(work(INDEX_LIMIT - 1).is_ok());
        assert!(work(INDEX_LIMIT).is_err() && work(u32::MAX).is_err());
    }
}
