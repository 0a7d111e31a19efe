//! Items in one buffer, and what they cost of a window.

use std::{collections::VecDeque, ops::Range};

/// What an item costs of the window beside its bytes, so that empty items are bounded too.
pub(super) const ITEM_COST: usize = 64;
/// A buffer above this that was mostly empty shrinks.
const KEPT: usize = 64 << 10;

/// What `bytes` in so many items cost.
pub(super) fn cost(bytes: usize, items: usize) -> i64 {
    let cost = bytes.saturating_add(items.saturating_mul(ITEM_COST));
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// As much of a cost as a number of a message holds.
pub(super) fn clamp(cost: i64) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}

/// Items one behind the other. A buffer that was emptied keeps its memory for the next ones.
#[derive(Default, Debug)]
pub(crate) struct Items {
    bytes: Vec<u8>,
    lens: VecDeque<usize>,
    /// Where the first item begins.
    at: usize,
}

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lens.len()
    }

    /// What its items cost.
    pub(super) fn cost(&self) -> i64 {
        cost(self.bytes.len().saturating_sub(self.at), self.lens.len())
    }

    /// Adds an item.
    pub(super) fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item); // an item
        self.lens.push_back(item.len());
    }

    /// Puts one item in the place of all, which `write` writes over the bytes.
    pub(super) fn put<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.clear();
        write(&mut self.bytes)?;
        self.lens.push_back(self.bytes.len());
        Ok(())
    }

    /// Adds bytes to the last item.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes); // a piece of an item
        match self.lens.back_mut() {
            Some(len) => *len += bytes.len(),
            None => self.lens.push_back(bytes.len()),
        }
    }

    /// The first item.
    pub(super) fn front(&self) -> Option<&[u8]> {
        self.lens.front().map(|len| &self.bytes[self.at..self.at + len])
    }

    /// Takes the first item out; its bytes stay until [`Items::clear`], or until another one is added to an empty buffer.
    pub(super) fn pop(&mut self) -> Option<Range<usize>> {
        let len = self.lens.pop_front()?;
        self.at += len;
        Some(self.at - len..self.at)
    }

    /// Takes the first `bytes` of the first item out, and the item when that was all of it.
    pub(super) fn consume(&mut self, bytes: usize) {
        let Some(len) = self.lens.front_mut() else { return };
        let bytes = bytes.min(*len);
        *len -= bytes;
        self.at += bytes;
        if *len == 0 {
            self.lens.pop_front();
        }
    }

    /// Takes the first `bytes` out, of one item or several, and every empty one before the next. Returns what that costs.
    pub(super) fn skip(&mut self, mut bytes: usize) -> i64 {
        let before = self.cost();
        while let Some(len) = self.lens.front()
            && (bytes > 0 || *len == 0)
        {
            let taken = bytes.min(*len);
            self.consume(taken);
            bytes -= taken;
        }
        before - self.cost()
    }

    /// The bytes of all items.
    pub(super) fn rest(&self) -> &[u8] {
        if self.lens.is_empty() { &[] } else { &self.bytes[self.at..] }
    }

    /// Takes everything out with its memory, and gets as much for the next items: the bytes, and where they begin.
    pub(super) fn take(&mut self) -> (Vec<u8>, usize) {
        let next = Self { bytes: Vec::with_capacity(self.bytes.len()), ..Self::default() };
        let Self { bytes, at, lens } = std::mem::replace(self, next);
        if lens.is_empty() { (Vec::new(), 0) } else { (bytes, at) }
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Forgets everything, and gives memory back that was hardly used.
    pub(super) fn clear(&mut self) {
        let used = self.bytes.len();
        self.bytes.clear();
        self.lens.clear();
        self.at = 0;
        let has = self.bytes.capacity();
        if has > KEPT && used < has / 8 {
            self.bytes.shrink_to(has / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_as_they_went_in() {
        let mut items = Items::default();
        for item in [&b"one"[..], b"", b"three"] {
            items.push(item);
        }
        assert_eq!((items.len(), items.cost()), (3, 8 + 3 * 64));
        assert_eq!(items.front(), Some(&b"one"[..]));
        let first = items.pop().unwrap();
        assert_eq!(items.bytes(first), b"one");
        assert_eq!(items.pop(), Some(3..3));
        items.consume(2);
        assert_eq!((items.front(), items.cost()), (Some(&b"ree"[..]), 3 + 64));
        items.extend(b"!");
        assert_eq!(items.front(), Some(&b"ree!"[..]));
        items.consume(9);
        assert!(items.is_empty() && items.front().is_none() && items.pop().is_none());
        assert_eq!(items.cost(), 0);
        let put = items.put(|bytes| bytes.try_reserve(3).map(|()| bytes.extend(b"new")));
        assert_eq!((put, items.len(), items.front()), (Ok(()), 1, Some(&b"new"[..])));
    }

    #[test]
    fn bytes_come_out_without_bounds() {
        let mut items = Items::default();
        for item in [&b""[..], b"one", b"", b"", b"three"] {
            items.push(item);
        }
        assert_eq!(items.rest(), b"onethree");
        assert_eq!((items.skip(4), items.len(), items.rest()), (4 + 4 * 64, 1, &b"hree"[..]));
        items.push(b"!");
        let (bytes, at) = items.take();
        assert_eq!((&bytes[at..], items.is_empty(), items.take()), (&b"hree!"[..], true, (Vec::new(), 0)));
    }

    #[test]
    fn memory_that_is_hardly_used_goes_back() {
        let mut items = Items::default();
        items.push(&vec![0; 1 << 20]);
        items.clear();
        let full = items.bytes.capacity();
        assert!(full >= 1 << 20, "used as a whole");
        for _ in 0..10 {
            items.push(&[1]);
            items.clear();
        }
        assert!(items.bytes.capacity() <= KEPT);
    }
}
