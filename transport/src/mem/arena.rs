//! Runs of frames that lie nowhere in a row: copied together for as long as the run lasts. The simulator lends these.

use std::{io, rc::Rc};

use super::{
    Region, RxMemory,
    run::{IN_RING, RingPlace, Run},
};
use crate::{
    ConnId, FrameWord, Position, Tag,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
};

/// Room for most runs, bytes.
const BYTES_MIN: usize = 64 << 10;
/// Frames of one run at most.
pub const FRAMES_MAX: usize = 64;
/// A run remembers in a word which of them were kept.
const _: () = assert!(FRAMES_MAX <= u64::BITS as usize);

/// Memory that runs of frames are copied into.
#[derive(Debug, Default)]
pub struct Arena(Option<Rc<RxMemory>>);

impl Arena {
    /// `frames` of `conn`, at most [`FRAMES_MAX`], the first of which begins at position `start`. They count as what lies in
    /// `slot`, or in the ring.
    ///
    /// # Errors
    /// No memory for them.
    pub fn lend(
        &mut self,
        conn: ConnId,
        slot: Option<u32>,
        start: Position,
        frames: &[(Tag, &[u8])],
    ) -> io::Result<Run> {
        let bytes = frames.iter().map(|(_, payload)| span(payload.len())).sum::<usize>();
        let room = bytes.next_power_of_two().max(BYTES_MIN);
        let region = self.take(2 * room)?;
        let place = RingPlace { base: region.base(), mask: (room - 1) as u64 & !(FRAME_ALIGN as u64 - 1) };
        let mut at = start;
        for (tag, payload) in frames {
            let to = region.at(at.offset(room), span(payload.len())).as_ptr();
            let word = FrameWord::new(payload.len(), *tag).bits().to_le_bytes();
            // SAFETY: inside the region, which nobody else has (`take`), so nobody reads it.
            unsafe { to.copy_from_nonoverlapping(word.as_ptr(), FRAME_WORD_BYTES) };
            // SAFETY: a frame is as long as its span at least.
            let to = unsafe { to.add(FRAME_WORD_BYTES) };
            // SAFETY: as above; `payload` is not in the region, since no run of it is left.
            unsafe { to.copy_from_nonoverlapping(payload.as_ptr(), payload.len()) };
            at = at.plus(span(payload.len()) as u64);
        }
        let (first, count) = (start.0, u32::try_from(frames.len()).unwrap_or(0));
        let largest = frames.iter().map(|(_, payload)| span(payload.len())).max().unwrap_or(0);
        // SAFETY: a frame begins in the front half of the region and is no longer than that: all of it is inside. It is not
        // written again while the run has it (`take`), and what is kept of a fleeting run is not in it.
        let run = unsafe { Run::new(conn, Rc::clone(&region), place, (first, at.0), largest, count) };
        self.0 = Some(region);
        Ok(run.in_slot(slot.unwrap_or(IN_RING)).fleeting())
    }

    /// At least `bytes` that nobody else has.
    fn take(&mut self, bytes: usize) -> io::Result<Rc<RxMemory>> {
        match self.0.take() {
            Some(region) if region.len() >= bytes && Rc::strong_count(&region) == 1 => Ok(region),
            _ => Ok(Rc::new(RxMemory::new(Region::anonymous(bytes)?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_what_was_copied_and_what_is_kept_outlives_it() {
        let mut arena = Arena::default();
        let conn = ConnId::new(3, 1);
        let bodies: Vec<Vec<u8>> = (0..FRAMES_MAX).map(|at| vec![at.to_le_bytes()[0]; at * 40]).collect();
        let frames: Vec<(Tag, &[u8])> = bodies.iter().map(|body| (Tag(7), &body[..])).collect();
        let start = Position((1 << 32) - 32);
        let mut run = arena.lend(conn, None, start, &frames).expect("memory");
        let (mut kept, mut end) = (Vec::new(), start.0);
        for (at, body) in bodies.iter().enumerate() {
            let lent = run.next_frame().expect("a frame");
            end += span(body.len()) as u64;
            assert_eq!((lent.payload(), lent.tag(), lent.end()), (&body[..], Tag(7), Position(end)));
            if at % 3 == 0 {
                kept.push(lent.keep().expect("not kept before"));
                assert!(lent.keep().is_none(), "it is kept already");
            }
        }
        assert!(run.next_frame().is_none());
        assert!((0..64).all(|at| run.has_kept(at) == (at % 3 == 0)));
        let one = [(Tag(1), &[0xff; 5000][..])];
        // Beside one that is out, and after it.
        let second = arena.lend(conn, None, start, &one).expect("memory");
        drop((run, second));
        arena.lend(conn, None, start, &one).expect("memory");
        assert!(kept.iter().zip(bodies.iter().step_by(3)).all(|(frame, body)| frame[..] == body[..]));
    }
}
