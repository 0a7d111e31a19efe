//! How items become bytes.

use crate::codec::{Encode, EncodeError, compose_into_with};

/// Most bytes of an item before it is tried: whether it fits in a message, the worker knows.
const ITEM_BYTES_MAX: usize = 1 << 30;

/// How the items of a stream are written.
pub(crate) struct Encoder<T> {
    /// The codec's name.
    pub(crate) codec: &'static str,
    encode: fn(&T, &mut [u8]) -> Result<usize, EncodeError>,
    bytes: fn(&T) -> Option<usize>,
}

impl<T> Clone for Encoder<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Encoder<T> {}

impl<T> Encoder<T> {
    pub(super) fn new<E: Encode<T>>() -> Self {
        let encode = |value: &T, out: &mut [u8]| E::encode(value, out);
        Self { codec: E::NAME, encode, bytes: |value| E::encoded_bytes(value) }
    }

    /// How many bytes `item` has, if its codec can say it.
    pub(super) fn bytes(&self, item: &T) -> Option<usize> {
        (self.bytes)(item)
    }

    pub(super) fn encode(&self, item: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
        (self.encode)(item, out)
    }

    /// Writes `item` over what is in `buffer`.
    pub(crate) fn encode_into(&self, item: &T, buffer: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode_up_to(item, ITEM_BYTES_MAX, buffer)
    }

    /// As [`Encoder::encode_into`], of an item with no more than `limit` bytes.
    pub(super) fn encode_up_to(
        &self,
        item: &T,
        limit: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        compose_into_with(buffer, limit.min(ITEM_BYTES_MAX), |out| (self.encode)(item, out))
    }
}
