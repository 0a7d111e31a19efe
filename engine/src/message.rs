//! A message as the engine's user sees it.

use gimmal_transport::{Lent, Offer};

use crate::proto::bulk::LoanId;

/// The addressee of a message: opaque to the engine, carried in every message's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// 16 bits of the frame's tag, for the user's kinds and flags.
    pub kind: u16,
    /// 64 bits beside them, for the user's ids.
    pub aux: u64,
}

/// A message that arrived, lent for one call of [`App::message`](crate::App::message); [`Io::hold`](crate::Io::hold) keeps its
/// body longer.
#[derive(Debug)]
pub struct Message<'a> {
    /// What the sender put in the header.
    pub head: Head,
    /// The body, where it landed; starts on a multiple of 16 in ring memory when there is no bulk with it.
    pub body: &'a [u8],
    /// Bulk on offer with it; to be answered by [`Io::pull`](crate::Io::pull) or [`Io::decline`](crate::Io::decline).
    pub bulk: Option<RemoteBulk>,
    /// The frame that it came by, which is not accounted for yet.
    pub(crate) frame: Lent<'a>,
}

/// Bulk that a peer offers. Neither `Copy` nor `Clone`: it is pulled or declined once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pull it or decline it: the peer keeps its memory until then"]
pub struct RemoteBulk {
    pub(crate) id: LoanId,
    pub(crate) sum: u32,
    pub(crate) offer: Offer,
}

impl RemoteBulk {
    /// Length, bytes, as the peer says.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.offer.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offer.len == 0
    }
}
