//! What arrives from a peer that is not trusted: copied once, to the same places of a ring of our own.
//!
//! ```text
//!  peer's ring  │ lent │ 0 or a word        the peer may write all of it at any time
//!  mirror       │ lent │                    this process alone; a frame is written before anybody is shown it, and
//!                                           its bytes are left alone until its credit was given back
//! ```

use std::{rc::Rc, sync::atomic::Ordering};

use super::segment::Segment;
use crate::{
    FrameWord, PortError, Trust,
    frame::span,
    mem::{Region, RxMemory, moving},
    sync::publish::observe,
};

/// Room for the copies, if `trust` asks for them; the ring that the peer writes has `ring_bytes`.
pub(super) fn mirror(trust: Trust, ring_bytes: u32) -> Result<Option<Box<Segment<Region>>>, PortError> {
    match trust {
        Trust::Peer => Ok(None),
        // Nobody gets its descriptor.
        Trust::None => Segment::create(ring_bytes).map(|(mirror, _)| Some(Box::new(mirror))),
    }
}

impl Segment<Rc<RxMemory>> {
    /// Copies what `peer` has published from position `at` on, at most `most` frames and up to `limit`. Returns how many words
    /// are there to be read; the last one may be no frame.
    pub(super) fn copy_frames(
        &self,
        peer: &Self,
        (mut at, limit): (u64, u64),
        frame_bytes_max: usize,
        most: u32,
    ) -> u32 {
        for copied in 0..most {
            // Read once; what is decided here is decided again from the copy, to the same end.
            let bits = observe(peer.word(at));
            if bits == 0 {
                return copied;
            }
            self.word(at).store(bits, Ordering::Relaxed);
            let word = FrameWord::unchecked(u64::from_le(bits));
            let end = at + span(word.payload_bytes()) as u64;
            if !word.is_within(frame_bytes_max) || end > limit {
                return copied + 1;
            }
            // SAFETY: a frame lies inside either ring's two views, by the check above. Ours is written here alone, and below
            // the limit everything that was lent has been given back; the other end of theirs is another process.
            unsafe { moving::copy(peer.payload(at), self.payload(at), word.payload_bytes()) };
            at = end;
        }
        most
    }
}
