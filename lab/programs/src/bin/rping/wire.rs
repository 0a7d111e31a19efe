//! The 16 bytes that rping sends: where its buffer is.

use anyhow::Context as _;
use gimmal_rdma::cm::RemoteBuffer;

/// Address, key, length, each big endian.
pub(crate) const INFO_BYTES: usize = 16;

/// A buffer as it is told to the other side.
#[must_use]
pub(crate) fn encode(buffer: &RemoteBuffer) -> [u8; INFO_BYTES] {
    let mut out = [0; INFO_BYTES];
    out[0..8].copy_from_slice(&buffer.address.to_be_bytes());
    out[8..12].copy_from_slice(&buffer.rkey.to_be_bytes());
    out[12..16].copy_from_slice(&u32::try_from(buffer.bytes).unwrap_or(u32::MAX).to_be_bytes());
    out
}

/// Reads what the other side told.
///
/// # Errors
/// Another length than rping's.
pub(crate) fn decode(bytes: &[u8]) -> anyhow::Result<RemoteBuffer> {
    let bytes: &[u8; INFO_BYTES] =
        bytes.try_into().with_context(|| format!("{} bytes are no message of rping's", bytes.len()))?;
    let (address, rest) = bytes.split_at(8);
    let word = |at: usize| u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    Ok(RemoteBuffer {
        address: u64::from_be_bytes(address.try_into()?),
        rkey: word(0),
        bytes: word(4).into(),
    })
}
