//! Copies of memory that somebody else may be writing.

use std::{
    mem::MaybeUninit,
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
};

const WORD_BYTES: usize = size_of::<u64>();

/// Copies `bytes` bytes, each as it was at some moment of the copy; words at once where they lie as words.
///
/// # Safety
/// Both ranges are mapped; nobody else reads or writes the one at `to`, and only another process writes the one at
/// `from`.
pub(crate) unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
    let count = if from.cast::<u64>().is_aligned() { bytes / WORD_BYTES } else { 0 };
    let (front_bytes, rest) = (count * WORD_BYTES, from.as_ptr().wrapping_add(count * WORD_BYTES));
    let words: &[AtomicU64] = match count {
        0 => &[],
        // SAFETY: the first part of `from`'s range, aligned; only atomic loads, whoever writes meanwhile.
        _ => unsafe { std::slice::from_raw_parts(from.as_ptr().cast(), count) },
    };
    // SAFETY: the other part of it.
    let rest: &[AtomicU8] = unsafe { std::slice::from_raw_parts(rest.cast(), bytes - front_bytes) };
    // SAFETY: `to`'s range, which is ours alone and need not hold anything yet.
    let sink: &mut [MaybeUninit<u8>] = unsafe { std::slice::from_raw_parts_mut(to.as_ptr().cast(), bytes) };
    let (front, back) = sink.split_at_mut(front_bytes);
    for (word, place) in words.iter().zip(front.as_chunks_mut().0) {
        *place = word.load(Ordering::Relaxed).to_ne_bytes().map(MaybeUninit::new);
    }
    for (byte, place) in rest.iter().zip(back) {
        place.write(byte.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_no_other() {
        let mut source: Vec<u8> = (0..=255).collect();
        for first in 0..9 {
            for bytes in [0, 1, 7, 8, 9, 64, 200] {
                let mut sink = [0xEE; 256];
                let from = NonNull::from(&mut source[first..]).cast();
                // SAFETY: inside both buffers, which are this test's.
                unsafe { copy(from, NonNull::from(&mut sink[1..]).cast(), bytes) };
                assert_eq!(sink[1..=bytes], source[first..first + bytes]);
                assert!(sink[0] == 0xEE && sink[bytes + 1..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }
}
