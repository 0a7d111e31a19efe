//! What a work request says about itself when it completes.
//!
//! ```text
//!  bits 0..20 index │ 20..44 generation │ 44..60 slot │ 60..64 kind
//! ```

use crate::ConnId;

/// Connections one port can name.
pub(crate) const INDEX_LIMIT: u32 = 1 << 20;
const GENERATION_MASK: u32 = (1 << 24) - 1;

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

    pub(crate) fn new(kind: Kind, conn: ConnId, slot: u16) -> Self {
        debug_assert!(conn.index() < INDEX_LIMIT, "the slot table stops there");
        let generation = conn.generation() & GENERATION_MASK;
        Self(
            u64::from(conn.index())
                | (u64::from(generation) << 20)
                | (u64::from(slot) << 44)
                | ((kind as u64) << 60),
        )
    }

    /// A receive of the shared queue `number`.
    pub(crate) fn shared(number: u32, slot: u32) -> Self {
        Self::new(Kind::Shared, ConnId::new(slot, number), 0)
    }

    pub(crate) fn is_shared(self) -> bool {
        self.kind() == Some(Kind::Shared)
    }

    /// The slot of a shared queue.
    #[expect(clippy::cast_possible_truncation, reason = "masked to 20 bits")]
    pub(crate) fn slot_of_queue(self) -> u32 {
        (self.0 & u64::from(INDEX_LIMIT - 1)) as u32
    }

    /// Which shared queue it is of.
    #[expect(clippy::cast_possible_truncation, reason = "masked to 24 bits")]
    pub(crate) fn queue(self) -> u32 {
        (self.0 >> 20) as u32 & GENERATION_MASK
    }

    /// The same of slot 0: that of all of its kind.
    #[inline]
    pub(crate) const fn without_slot(self) -> Self {
        Self(self.0 & !(0xffff << 44))
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// `None`: no work of ours.
    pub(crate) fn kind(self) -> Option<Kind> {
        KINDS.get(usize::try_from(self.0 >> 60).unwrap_or(usize::MAX)).copied()
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked to 20 bits")]
    pub(crate) fn index(self) -> usize {
        (self.0 & u64::from(INDEX_LIMIT - 1)) as usize
    }

    pub(crate) fn slot(self) -> u16 {
        ((self.0 >> 44) & 0xffff) as u16
    }

    /// Whether it belongs to this use of the slot.
    pub(crate) fn is_of(self, conn: ConnId) -> bool {
        let generation = (self.0 >> 20) & u64::from(GENERATION_MASK);
        self.index() == conn.index() as usize && generation == u64::from(conn.generation() & GENERATION_MASK)
    }
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
}
