//! How long the pieces of bulk are where the call that posts one moves its bytes: nothing else of the worker moves meanwhile.

/// Short pieces in a row beside which nothing but bulk came, until the next are long.
const ALONE: u32 = 16;

/// Short while somebody else has something to say, long when bulk is alone.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Pieces {
    /// Frames that came since the last piece, less the offers that are pulled. One of an earlier frame, pulled late, hides one.
    others: i64,
    /// Pieces in a row beside which there were none, at most [`ALONE`].
    alone: u32,
}

impl Pieces {
    /// Frames came.
    #[inline]
    pub(crate) fn came(&mut self, frames: u32) {
        self.others += i64::from(frames);
    }

    /// What one of them offered is pulled.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn pulled(&mut self) {
        self.others -= 1;
    }

    /// Bytes of the next piece, which is posted now: `long`, or `short` if that is less.
    pub(crate) fn next_bytes(&mut self, long: u32, short: u32) -> u32 {
        let is_alone = std::mem::take(&mut self.others) == 0;
        self.alone = if is_alone { (self.alone + 1).min(ALONE) } else { 0 };
        if self.alone == ALONE { long } else { long.min(short) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: u32 = 64 << 10;
    const LONG: u32 = 256 << 10;

    /// Lengths of pieces before which so many other frames and offers came.
    fn lengths(pieces: &mut Pieces, came: impl IntoIterator<Item = (u32, u32)>) -> Vec<u32> {
        let length = |(others, offers)| {
            pieces.came(others + offers);
            (0..offers).for_each(|_| pieces.pulled());
            pieces.next_bytes(LONG, SHORT)
        };
        came.into_iter().map(length).collect()
    }

    #[test]
    fn pieces_are_short_beside_other_frames_and_long_when_bulk_is_alone() {
        let mut pieces = Pieces::default();
        let first = lengths(&mut pieces, [(0, 1); 20]);
        assert_eq!(first[..15], [SHORT; 15], "nobody has shown yet that it is alone");
        assert_eq!(first[15..], [LONG; 5], "what brings bulk does not count");
        assert_eq!(lengths(&mut pieces, [(1, 3)]), [SHORT], "at once, with the first other frame");
        assert_eq!(lengths(&mut pieces, [(0, 0); 16])[14..], [SHORT, LONG]);
        let echoes = lengths(&mut pieces, (0..100).map(|piece| (u32::from(piece % 15 == 0), 0)));
        assert_eq!(echoes, [SHORT; 100], "an echo now and then keeps them short");
    }

    #[test]
    fn the_lesser_of_the_two_lengths_holds() {
        assert_eq!(Pieces::default().next_bytes(16 << 10, SHORT), 16 << 10);
        assert_eq!(Pieces::default().next_bytes(1 << 20, 1 << 20), 1 << 20);
    }
}
