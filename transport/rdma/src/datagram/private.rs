//! Private data that cannot be too long: the limits of `RDMA_PS_UDP` as types.

use thiserror::Error;

/// What a look-up can carry: 216 bytes of a SIDR request less the CM's own 36 (`rdma_connect(3)`).
pub const LOOK_UP_DATA_BYTES: usize = 180;
/// What an answer can carry, accepting or rejecting (`rdma_accept(3)`).
pub const ANSWER_DATA_BYTES: usize = 136;

/// Private data above its limit: nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{bytes} bytes of private data, the limit is {limit}")]
pub struct TooLong {
    /// What was given.
    pub bytes: usize,
    /// 180 on a look-up, 136 on an answer.
    pub limit: usize,
}

/// At most `LIMIT` bytes. The wire pads them with zeroes up to `LIMIT` and hides their length: a protocol that
/// needs it puts it into the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const LIMIT: usize> {
    bytes: [u8; LIMIT],
    len: usize,
}

/// Data of a look-up.
pub type LookUpData = PrivateData<LOOK_UP_DATA_BYTES>;
/// Data of an answer to one.
pub type AnswerData = PrivateData<ANSWER_DATA_BYTES>;

impl<const LIMIT: usize> PrivateData<LIMIT> {
    /// No data.
    pub const EMPTY: Self = Self { bytes: [0; LIMIT], len: 0 };

    /// Copies `bytes`.
    ///
    /// # Errors
    /// There are more than `LIMIT`; nothing went to the fabric.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut data = Self::EMPTY;
        let too_long = TooLong { bytes: bytes.len(), limit: LIMIT };
        data.bytes.get_mut(..bytes.len()).ok_or(too_long)?.copy_from_slice(bytes);
        data.len = bytes.len();
        Ok(data)
    }

    /// The bytes that were given; of data that arrived, all `LIMIT` of them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// What arrived, as much of it as the limit says: the fabric is not trusted to keep it.
    pub(super) fn arrived(bytes: &[u8]) -> Self {
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
