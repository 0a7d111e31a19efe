//! Copies of small messages, several in one block of memory: an allocation for each would cost more than the copy.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};

/// A message above this has memory of its own, so that one which is kept for long keeps no block of others.
pub(crate) const SMALL: usize = 1 << 10;
const BLOCK: usize = 32 << 10;

thread_local! {
    /// What is left of the block.
    static FREE: RefCell<BytesMut> = RefCell::default();
}

/// Copies `message`.
pub(crate) fn copy_of(message: &[u8]) -> Bytes {
    if message.len() > SMALL {
        return Bytes::copy_from_slice(message);
    }
    let copied = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.capacity() < message.len() {
            // This takes the same memory again once all of its messages are gone.
            free.reserve(BLOCK);
        }
        free.extend_from_slice(message);
        free.split().freeze()
    });
    // A thread that ends has no block.
    copied.unwrap_or_else(|_| Bytes::copy_from_slice(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_messages_share_a_block_and_large_ones_do_not() {
        let (first, second) = (copy_of(b"first"), copy_of(b"second"));
        assert_eq!((&first[..], &second[..]), (&b"first"[..], &b"second"[..]));
        assert_eq!(first.as_ptr_range().end, second.as_ptr(), "they lie side by side");
        let (small, large) = ([1; SMALL], [2; SMALL + 1]);
        for _ in 0..2 * BLOCK / SMALL {
            assert_eq!(copy_of(&small), &small[..]);
        }
        assert_eq!(copy_of(&large), &large[..]);
        assert_eq!((&first[..], copy_of(b"")), (&b"first"[..], Bytes::new()));
    }
}
