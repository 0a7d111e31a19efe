//! The places where the bytes of a payload are copied, each with its counter. Everywhere else they are encoded where they
//! leave from and decoded where they landed; `cargo xtask tidy` checks that no other file copies.

use gimmal_engine::transport::copy;

use crate::stats::Counter;

/// Puts a copy of `payload` in place of what `buffer` held.
#[inline]
pub(crate) fn into_buffer(buffer: &mut Vec<u8>, payload: &[u8], copies: &Counter) {
    if buffer.len() == payload.len() {
        copy(payload, buffer);
    } else {
        buffer.clear();
        buffer.extend_from_slice(payload);
    }
    count(payload, copies);
}

/// Counts a payload that the caller copies.
#[inline]
pub(crate) fn count(payload: &[u8], copies: &Counter) {
    if !payload.is_empty() {
        copies.increment();
    }
}
