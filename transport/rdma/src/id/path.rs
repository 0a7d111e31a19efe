//! Path records of InfiniBand subnets.

/// `sizeof(struct ibv_path_data)`.
pub(crate) const PATH_BYTES: usize = 72;
/// `sizeof(struct ibv_path_record)`, which follows the flags.
const RECORD_BYTES: usize = 64;
pub(crate) const PATH_WORDS: usize = PATH_BYTES / size_of::<u64>();

/// A path record (`struct ibv_path_data`): a route of an InfiniBand subnet, as the subnet administrator gives it.
/// Kept as it is; the fields that people read can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathData([u64; PATH_WORDS]);

impl PathData {
    /// From the 72 bytes of the C structure; `None` for another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PATH_BYTES] = bytes.try_into().ok()?;
        let mut words = [0; PATH_WORDS];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(from.try_into().ok()?);
        }
        Some(Self(words))
    }

    /// From the 64 bytes of `struct ibv_path_record`, as the primary path of both directions; `None` for another length.
    #[must_use]
    pub fn from_record(bytes: &[u8]) -> Option<Self> {
        const PRIMARY_BOTH_WAYS: u32 = 1 | 2 | 32;
        let record: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let mut data = [0; PATH_BYTES];
        data[..4].copy_from_slice(&PRIMARY_BOTH_WAYS.to_ne_bytes());
        data[PATH_BYTES - RECORD_BYTES..].copy_from_slice(record);
        Self::from_bytes(&data)
    }

    /// The 72 bytes of the C structure.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PATH_BYTES] {
        let mut bytes = [0; PATH_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// `IBV_PATH_FLAG_*`: 1 GMP, 2 primary, 4 alternate, 8 outbound, 16 inbound, 32 inbound and reversible.
    #[must_use]
    pub fn flags(&self) -> u32 {
        let bytes = self.to_bytes();
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// GID of the other end.
    #[must_use]
    pub fn destination_gid(&self) -> [u8; 16] {
        self.gid(16)
    }

    /// GID of our end.
    #[must_use]
    pub fn source_gid(&self) -> [u8; 16] {
        self.gid(32)
    }

    fn gid(&self, at: usize) -> [u8; 16] {
        let mut gid = [0; 16];
        gid.copy_from_slice(&self.to_bytes()[at..at + 16]);
        gid
    }

    /// Partition.
    #[must_use]
    pub fn pkey(&self) -> u16 {
        let bytes = self.to_bytes();
        u16::from_be_bytes([bytes[58], bytes[59]])
    }

    /// Service level, 4 bits.
    #[must_use]
    pub fn service_level(&self) -> u8 {
        self.to_bytes()[61] & 0xf
    }

    pub(crate) fn words(paths: &[Self]) -> Vec<u64> {
        paths.iter().flat_map(|path| path.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_bytes() {
        let mut bytes = [0; PATH_BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::try_from(at).unwrap();
        }
        let path = PathData::from_bytes(&bytes).unwrap();
        assert_eq!(path.to_bytes(), bytes);
        assert_eq!((path.destination_gid()[0], path.source_gid()[0]), (16, 32));
        assert_eq!((path.pkey(), path.service_level()), (0x3a3b, 61 & 0xf));
        assert_eq!(PathData::words(&[path, path]).len(), 18);
        assert_eq!(PathData::from_bytes(&bytes[1..]), None);
        assert_eq!(path.flags(), u32::from_ne_bytes([0, 1, 2, 3]));
        // A record is the same path behind flags of its own.
        let record = PathData::from_record(&bytes[8..]).unwrap();
        assert_eq!((record.flags(), record.to_bytes()[8..].to_vec()), (0x23, bytes[8..].to_vec()));
        assert_eq!(PathData::from_record(&bytes), None);
    }
}
