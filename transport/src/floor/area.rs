//! The shared file of the floors: its words, and where its two rings are.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::frames::window_bytes;
use crate::mem::{Access, Region};

const PHASE: usize = 0;
const HEARD: usize = 128;
const PING: usize = 0;
const PONG: usize = 128;
const BLOCK_PING: usize = 256;
const BLOCK_PONG: usize = 384;
/// Against SIGBUS: a file that was cut would kill whoever has it mapped.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Which of the two processes this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that measures.
    Caller,
    /// The one that echoes.
    Echo,
}

/// The shared file, mapped by one of the two processes.
#[derive(Debug)]
pub struct Area {
    side: Side,
    /// Control page, line page and the caller's ring, that one twice.
    caller: Region,
    /// Everything, and the echo's ring a second time.
    echo: Region,
    ring_bytes: usize,
}

impl Area {
    /// A new file for `window` frames of up to `payload_bytes`, and its descriptor for the other process.
    ///
    /// # Errors
    /// `InvalidInput` when a ring would have more than 1 GiB; else what the kernel says.
    pub fn create(payload_bytes: usize, window: usize) -> io::Result<(Self, OwnedFd)> {
        let ring_bytes = window_bytes(payload_bytes, window).filter(|bytes| *bytes <= 1 << 30);
        let ring_bytes = ring_bytes.ok_or(io::ErrorKind::InvalidInput)?.next_power_of_two().max(64 << 10);
        let bytes = (head_bytes() + 2 * ring_bytes) as u64;
        let fd = rustix::fs::memfd_create("gimmal-floor", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Self::map(fd.as_fd(), ring_bytes, Side::Caller)?, fd))
    }

    /// The file that the other process made.
    ///
    /// # Errors
    /// `InvalidData` when it is no such file; else what the kernel says.
    pub fn attach(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        let bytes =
            usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| io::ErrorKind::InvalidData)?;
        let ring_bytes = bytes.saturating_sub(head_bytes()) / 2;
        if !seals.contains(SEALS) || !ring_bytes.is_power_of_two() || ring_bytes < rustix::param::page_size()
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(fd, ring_bytes, Side::Echo)
    }

    fn map(fd: BorrowedFd<'_>, ring_bytes: usize, side: Side) -> io::Result<Self> {
        let caller = Region::ring(fd, head_bytes(), ring_bytes, Access::ReadWrite)?;
        let echo = Region::ring(fd, head_bytes() + ring_bytes, ring_bytes, Access::ReadWrite)?;
        Ok(Self { side, caller, echo, ring_bytes })
    }

    /// Which process this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Bytes of one ring.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// The mapping with `side`'s ring, and where that ring begins in it.
    pub(super) fn ring(&self, side: Side) -> (&Region, usize) {
        match side {
            Side::Caller => (&self.caller, head_bytes()),
            Side::Echo => (&self.echo, head_bytes() + self.ring_bytes),
        }
    }

    /// What is measured now, as the caller last announced it.
    #[inline]
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.word(PHASE).load(Ordering::Acquire)
    }

    /// Says what is measured next.
    pub fn announce(&self, phase: u64) {
        self.word(PHASE).store(phase, Ordering::Release);
    }

    /// What the other side has last answered.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.word(HEARD).load(Ordering::Acquire)
    }

    /// Says that `phase` was heard.
    pub fn answer(&self, phase: u64) {
        self.word(HEARD).store(phase, Ordering::Release);
    }

    /// The word that the caller writes in a bounce.
    pub(super) fn ping(&self) -> &AtomicU64 {
        self.word(rustix::param::page_size() + PING)
    }

    /// The word that the echo writes in a bounce.
    pub(super) fn pong(&self) -> &AtomicU64 {
        self.word(rustix::param::page_size() + PONG)
    }

    /// As [`Area::ping`], for blocks.
    pub(super) fn block_ping(&self) -> &AtomicU64 {
        self.word(rustix::param::page_size() + BLOCK_PING)
    }

    /// As [`Area::pong`], for blocks.
    pub(super) fn block_pong(&self) -> &AtomicU64 {
        self.word(rustix::param::page_size() + BLOCK_PONG)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let word = self.caller.at(offset, size_of::<u64>());
        // SAFETY: in the first two pages of our mapping, which lives as long as `self`; the offsets are multiples of
        // 128, and these words are touched in no other way than as atomics, by either process.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }
}

fn head_bytes() -> usize {
    2 * rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_words() {
        let (caller, fd) = Area::create(64, 1).unwrap();
        let echo = Area::attach(fd.as_fd()).unwrap();
        assert_eq!((caller.side(), echo.side()), (Side::Caller, Side::Echo));
        assert_eq!((caller.ring_bytes(), echo.ring_bytes()), (64 << 10, 64 << 10));
        caller.announce(7);
        assert_eq!(echo.phase(), 7);
        echo.answer(7);
        assert_eq!(caller.heard(), 7);
    }

    #[test]
    fn other_files_are_refused() {
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        let refused = Area::attach(other.as_fd()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Area::attach(null.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn rings_grow_with_the_payload() {
        let (area, _fd) = Area::create(100_000, 4).unwrap();
        assert_eq!(area.ring_bytes(), 512 << 10);
        assert_eq!(Area::create(1 << 30, 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
