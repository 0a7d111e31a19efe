//! Memory for loans that nobody uses, kept for the next loan of its size: so much of it, and no more.

use std::collections::BTreeMap;

/// Bytes that are kept.
const KEPT_BYTES: usize = 64 << 20;

/// What nobody uses, by its size.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    by_size: BTreeMap<usize, Vec<T>>,
    bytes: usize,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { by_size: BTreeMap::new(), bytes: 0 }
    }
}

impl<T> Kept<T> {
    /// What was kept last of this size.
    pub(crate) fn take(&mut self, size: usize) -> Option<T> {
        let of_size = self.by_size.get_mut(&size)?;
        let taken = of_size.pop()?;
        if of_size.is_empty() {
            self.by_size.remove(&size);
        }
        self.bytes -= size;
        Some(taken)
    }

    /// Keeps `piece`, or returns it when there is no room.
    pub(crate) fn keep(&mut self, size: usize, piece: T) -> Option<T> {
        if size > KEPT_BYTES - self.bytes {
            return Some(piece);
        }
        self.bytes += size;
        self.by_size.entry(size).or_default().push(piece);
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn so_much_is_kept_and_found_by_its_size() {
        let (mut kept, half) = (Kept::default(), KEPT_BYTES / 2);
        assert_eq!([kept.keep(half, 1), kept.keep(half - 4096, 2)], [None; 2]);
        assert_eq!(
            [4097, usize::MAX, 4096, 1].map(|size| kept.keep(size, 3)),
            [Some(3), Some(3), None, Some(3)]
        );
        assert_eq!(
            [4096, 4096, half, half, 0].map(|size| kept.take(size)),
            [Some(3), None, Some(1), None, None]
        );
        assert_eq!([kept.keep(half + 4097, 4), kept.keep(half + 4096, 4)], [Some(4), None]);
    }
}
