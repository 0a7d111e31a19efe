//! A refusal as it travels: the reason, and up to 132 bytes of the application's own.

use crate::{
    RejectReason,
    hello::{REJECT_BYTES, REJECT_PRIVATE_BYTES, decode_reject, encode_reject},
};

/// Bytes of its own that an application can refuse with: the same on every provider.
pub const REFUSAL_DATA_BYTES: usize = REJECT_PRIVATE_BYTES - REJECT_BYTES;

/// Where the length of the application's bytes lies; 0 in a reject that has none.
pub(crate) const DATA_LEN_AT: usize = 7;

/// Why a request is refused, and what the client's program is told beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    reason: RejectReason,
    data: Vec<u8>,
}

impl Refusal {
    /// Makes a refusal with bytes that the client's program reads; `None` above 132 bytes. Without bytes: `Refusal::from(reason)`.
    #[must_use]
    pub fn with_data(reason: RejectReason, data: &[u8]) -> Option<Self> {
        (data.len() <= REFUSAL_DATA_BYTES).then(|| Self { reason, data: data.to_vec() })
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> RejectReason {
        self.reason
    }

    /// Returns the application's bytes; empty if there are none.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The application's bytes, owned.
    #[must_use]
    #[doc(hidden)]
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// As it travels.
    #[must_use]
    #[doc(hidden)]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = encode_reject(self.reason).to_vec();
        out[DATA_LEN_AT] = u8::try_from(self.data.len()).unwrap_or(0);
        out.extend_from_slice(&self.data);
        out
    }

    /// Reads what a peer sent; `None` when it is not ours. A length beyond the received bytes is cut.
    #[must_use]
    #[doc(hidden)]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let reason = decode_reject(bytes)?;
        let rest = &bytes[REJECT_BYTES..];
        let len = usize::from(bytes[DATA_LEN_AT]).min(rest.len()).min(REFUSAL_DATA_BYTES);
        Some(Self { reason, data: rest[..len].to_vec() })
    }
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self { reason, data: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_every_length_travels() {
        for len in 0..=REFUSAL_DATA_BYTES {
            let data: Vec<u8> = (1..=132).take(len).collect();
            let refusal = Refusal::with_data(RejectReason::Application { code: 7 }, &data).unwrap();
            let mut padded = refusal.encode();
            assert_eq!(padded.len(), REJECT_BYTES + len);
            assert_eq!(Refusal::decode(&padded).unwrap(), refusal);
            // InfiniBand pads.
            padded.resize(REJECT_PRIVATE_BYTES, 0);
            assert_eq!(Refusal::decode(&padded).unwrap(), refusal);
        }
        assert_eq!(Refusal::with_data(RejectReason::Overloaded, &[0; REFUSAL_DATA_BYTES + 1]), None);
    }

    #[test]
    fn a_length_that_lies_is_cut() {
        let mut bytes = Refusal::from(RejectReason::Authentication).encode();
        bytes[DATA_LEN_AT] = 255;
        assert_eq!(Refusal::decode(&bytes).unwrap().data(), b"");
        bytes.resize(300, 1);
        assert_eq!(Refusal::decode(&bytes).unwrap().data().len(), REFUSAL_DATA_BYTES);
        for len in 0..REJECT_BYTES {
            assert_eq!(Refusal::decode(&bytes[..len]), None);
        }
    }
}
