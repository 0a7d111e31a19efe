//! The two halves of an end: what it sends, and what it receives.

use std::collections::{BTreeMap, VecDeque};

use gimmal_transport::{
    Violation,
    id::Position,
    parts::{Common, Share},
};

/// Frames that travel as one work request.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
    /// Chains that its completion stands for; `None` when it is not signalled.
    pub(super) signals: Option<u64>,
}

/// The receiving half of an end.
#[derive(Debug, Default)]
pub(super) struct Receive {
    pub(super) ring: Vec<u8>,
    /// Contiguously released by the owner.
    pub(super) released: u64,
    /// Up to where the ring was handed out.
    pub(super) read: Position,
    /// Released beyond it: start to end.
    pub(super) ahead: BTreeMap<u64, u64>,
    /// Lent frames: end, or slot, to how many.
    pub(super) lent: BTreeMap<u64, u32>,
    pub(super) posted: u64,
    pub(super) arrivals: u64,
    /// Of chains in the ring that were handed out: posted again when answers have left.
    pub(super) owed: u64,
    /// What it may use of the receives that the port's connections share.
    pub(super) share: Option<Share>,
    pub(super) blocked: VecDeque<Posted>,
    pub(super) next_slot: u32,
    /// The next slot whose chain is still to be counted: one counts when its first frame is handed out.
    next_counted: u32,
}

/// The sending half of an end.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    pub(super) completed: u64,
    pub(super) outstanding: u64,
    pub(super) unsignalled: u64,
    pub(super) unsignalled_bytes: u64,
}

impl Receive {
    /// As much was granted as the share says now; what is new is posted.
    fn follow_share(&mut self, before: u64) {
        let new = self.share.as_ref().map_or(0, Share::granted) - before;
        (self.posted, self.arrivals) = (self.posted + new, self.arrivals + new);
    }

    /// A frame of the chain in `slot` was handed out. The first one of a chain used a shared receive.
    pub(super) fn share_used(&mut self, slot: u32, common: Option<&Common>) -> Result<(), Violation> {
        let (Some(share), Some(common)) = (&mut self.share, common) else { return Ok(()) };
        if slot != self.next_counted {
            return Ok(());
        }
        self.next_counted = slot.wrapping_add(1);
        let before = share.granted();
        share.arrived(common)?;
        self.follow_share(before);
        Ok(())
    }

    /// The last frame of a slot was released.
    pub(super) fn slot_came_back(&mut self) {
        match &mut self.share {
            Some(share) => share.came_back(),
            None => (self.posted, self.arrivals) = (self.posted + 1, self.arrivals + 1),
        }
    }

    /// Shared receives that came back are granted again.
    pub(super) fn grant_again(&mut self, common: &Common) {
        if let Some(share) = &mut self.share {
            let before = share.granted();
            share.grant_again(common);
            self.follow_share(before);
        }
    }
}
