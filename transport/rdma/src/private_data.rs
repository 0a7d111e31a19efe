//! Private data that cannot be too long: the limit is part of its type.

use thiserror::Error;

/// Private data above its limit. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{bytes} bytes of private data, the limit is {limit}")]
pub struct TooLong {
    /// Bytes that were given.
    pub bytes: usize,
    /// The most that this message carries, bytes.
    pub limit: usize,
}

/// Private data of at most `LIMIT` bytes, the same limit on every fabric. The receiver of InfiniBand and RoCE sees the whole
/// field, padded with zeroes: a protocol that needs a length puts it into the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const LIMIT: usize> {
    bytes: [u8; LIMIT],
    len: usize,
}

impl<const LIMIT: usize> PrivateData<LIMIT> {
    /// No data.
    pub const EMPTY: Self = Self { bytes: [0; LIMIT], len: 0 };

    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] above `LIMIT`.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        Self::behind(&[], bytes)
    }

    /// Copies `bytes` behind `first`: the `ai_connect` data of `rdma_getaddrinfo(3)` must come first.
    ///
    /// # Errors
    /// [`TooLong`] when both together are above `LIMIT`.
    pub fn behind(first: &[u8], bytes: &[u8]) -> Result<Self, TooLong> {
        let mut data = Self::EMPTY;
        let len = first.len().saturating_add(bytes.len());
        let place = data.bytes.get_mut(..len).ok_or(TooLong { bytes: len, limit: LIMIT })?;
        let (front, rest) = place.split_at_mut(first.len());
        front.copy_from_slice(first);
        rest.copy_from_slice(bytes);
        data.len = len;
        Ok(data)
    }

    /// Returns the bytes that were given; of data that arrived, all `LIMIT` of them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Private data that arrived, cut at the limit: the fabric is not trusted to keep it.
    pub(crate) fn arrived(bytes: &[u8]) -> Self {
        Self::new(&bytes[..bytes.len().min(LIMIT)]).unwrap_or(Self::EMPTY)
    }
}

impl<const LIMIT: usize> Default for PrivateData<LIMIT> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const LIMIT: usize> std::fmt::Debug for PrivateData<LIMIT> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateData({} of {LIMIT} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{ANSWER_DATA_BYTES, AnswerData, LOOK_UP_DATA_BYTES, LookUpData};

    #[test]
    fn every_length_up_to_the_limit_and_one_above() {
        fn all<const LIMIT: usize>() {
            for bytes in 0..=LIMIT {
                let given: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
                assert_eq!(PrivateData::<LIMIT>::new(&given).unwrap().bytes(), given);
            }
            let refused = PrivateData::<LIMIT>::new(&vec![0; LIMIT + 1]);
            assert_eq!(refused, Err(TooLong { bytes: LIMIT + 1, limit: LIMIT }));
        }
        all::<LOOK_UP_DATA_BYTES>();
        all::<ANSWER_DATA_BYTES>();
        assert_eq!((LOOK_UP_DATA_BYTES, ANSWER_DATA_BYTES), (180, 136));
    }

    #[test]
    fn more_than_the_limit_from_the_fabric_is_cut() {
        assert_eq!(AnswerData::arrived(&[7; 255]).bytes(), [7; 136]);
        assert_eq!(LookUpData::arrived(&[]).bytes(), [0_u8; 0]);
    }

    #[test]
    fn the_limit_is_said() {
        assert_eq!(
            TooLong { bytes: 181, limit: 180 }.to_string(),
            "181 bytes of private data, the limit is 180"
        );
    }
}
