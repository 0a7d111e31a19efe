//! Memory that no loan uses, kept for the next loan of its size: so much of it. What was kept longest goes first.

use std::collections::{BTreeMap, VecDeque};

/// Bytes that are kept: a loan of 64 MiB that was lent, and one that was pulled.
const KEPT_BYTES: usize = 128 << 20;

/// What nobody uses, by its size, with the number of each. The sizes are few: see `buffer_bytes`.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    by_size: BTreeMap<usize, VecDeque<(u64, T)>>,
    bytes: usize,
    /// Pieces that were ever kept: the number of the next. A larger one was kept later.
    count: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { by_size: BTreeMap::new(), bytes: 0, count: 0 }
    }
}

impl<T> Kept<T> {
    /// What was kept last of this size.
    pub(crate) fn take(&mut self, size: usize) -> Option<T> {
        self.remove(size, VecDeque::pop_back)
    }

    /// Keeps `piece`. Returns what has to go for it, the piece itself if it is larger than all that is kept. The caller drops
    /// that without the lock.
    pub(crate) fn keep(&mut self, size: usize, piece: T) -> Vec<T> {
        if size > KEPT_BYTES {
            return vec![piece];
        }
        let mut gone = Vec::new();
        while size > KEPT_BYTES - self.bytes
            && let Some(oldest) = self.oldest()
        {
            gone.extend(self.remove(oldest, VecDeque::pop_front));
        }
        self.bytes += size;
        self.by_size.entry(size).or_default().push_back((self.count, piece));
        self.count += 1;
        gone
    }

    /// The size of what was kept longest.
    fn oldest(&self) -> Option<usize> {
        let first = |(size, pieces): (&usize, &VecDeque<(u64, T)>)| Some((pieces.front()?.0, *size));
        self.by_size.iter().filter_map(first).min().map(|(_, size)| size)
    }

    /// Removes what `pop` takes of the pieces of this size.
    fn remove(
        &mut self,
        size: usize,
        pop: impl FnOnce(&mut VecDeque<(u64, T)>) -> Option<(u64, T)>,
    ) -> Option<T> {
        let of_size = self.by_size.get_mut(&size)?;
        let (_, piece) = pop(of_size)?;
        if of_size.is_empty() {
            self.by_size.remove(&size);
        }
        self.bytes -= size;
        Some(piece)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn so_much_is_kept_and_found_by_its_size() {
        let (mut kept, half) = (Kept::default(), KEPT_BYTES / 2);
        for (size, piece) in [(half, 1), (half - 2 * PAGE, 2), (PAGE, 3), (PAGE, 4)] {
            assert!(kept.keep(size, piece).is_empty(), "there is room for {piece}");
        }
        assert_eq!(kept.bytes, KEPT_BYTES);
        assert_eq!(
            [PAGE, PAGE, PAGE, half, 0].map(|size| kept.take(size)),
            [Some(4), Some(3), None, Some(1), None]
        );
        assert_eq!(kept.take(half - 2 * PAGE), Some(2));
        assert_eq!((kept.bytes, kept.by_size.len()), (0, 0));
        assert_eq!([kept.keep(KEPT_BYTES, 5), kept.keep(KEPT_BYTES + 1, 6)], [vec![], vec![6]]);
        assert_eq!(kept.take(KEPT_BYTES), Some(5), "what is too large drives nothing out");
    }

    #[test]
    fn what_was_kept_longest_goes_for_what_comes() {
        let (mut kept, quarter) = (Kept::default(), KEPT_BYTES / 4);
        for piece in [1, 2] {
            assert!(kept.keep(quarter, piece).is_empty());
        }
        assert!(kept.keep(2 * quarter, 3).is_empty());
        assert_eq!(kept.keep(PAGE, 4), [1]);
        // One that was used meanwhile is kept later than those that were not.
        let used = kept.take(quarter).unwrap();
        assert!(kept.keep(quarter, used).is_empty());
        assert_eq!(kept.keep(2 * quarter, 5), [3]);
        assert_eq!(kept.keep(4 * quarter, 6), [4, 2, 5], "as many as it takes, in their order");
        assert_eq!((kept.take(4 * quarter), kept.bytes), (Some(6), 0));
    }

    #[test]
    fn many_sizes_leave_room_for_the_next() {
        let mut kept = Kept::default();
        for size in (PAGE..).step_by(PAGE).take(1 << 10) {
            kept.keep(size, size);
            assert!(kept.bytes <= KEPT_BYTES);
            assert_eq!(kept.take(size), Some(size), "the last one is there");
            kept.keep(size, size);
        }
        let large = KEPT_BYTES / 2;
        kept.keep(large, large);
        for _ in 0..3 {
            assert_eq!(kept.take(large), Some(large));
            assert!(kept.keep(large, large).is_empty(), "a piece that comes and goes drives nothing out");
        }
    }
}
