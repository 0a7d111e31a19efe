//! Memory that devices may be given.

use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::error::DeviceError;

/// A mapping of this process that a device may be given.
///
/// # Safety
/// `base` and `bytes` name the same mapping as long as the value lives. No reference into it exists while a device or a
/// peer may write the bytes that it refers to.
pub unsafe trait Memory {
    /// Its first byte.
    fn base(&self) -> NonNull<u8>;

    /// Its length.
    fn bytes(&self) -> usize;

    /// Where `bytes` from `offset` on are.
    ///
    /// # Panics
    /// When they are not inside it.
    fn place(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes());
        assert!(end.is_some(), "{bytes} bytes at {offset} of {}", self.bytes());
        // SAFETY: inside the mapping, by the check.
        unsafe { self.base().add(offset) }
    }
}

/// Private zeroed memory, present from the start and not inherited by a fork.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    pub(crate) fn new(bytes: usize) -> Result<Self, DeviceError> {
        let map = MmapOptions::new().len(bytes).populate().map_anon().map_err(|error| {
            DeviceError::System { step: "mmap", errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
        })?;
        let map = MmapRaw::from(map);
        // A child that writes there would take the pages away from the device. What is refused here is old advice.
        let _ = map.advise(Advice::DontFork);
        Ok(Self(map))
    }
}

// SAFETY: the mapping is owned and never moves; references into it are made by the owners of its slots alone, between a
// completion and the next post.
unsafe impl Memory for Mapping {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr()).expect("a mapping is not at zero")
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}
