//! The shared file of the floors: its words, and where its two rings are.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::{
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES},
    kernel::{fill, memory_file},
    mem::{Access, Region},
};

/// Bytes of the second half of the header of a frame.
pub(super) const AUX_BYTES: usize = 8;

const PHASE: usize = 0;
const HEARD: usize = 128;
const SLOTS: usize = 256;
const PING: usize = 0;
const PONG: usize = 128;
const BLOCK_PING: usize = 256;
const BLOCK_PONG: usize = 384;
const PUT: usize = 512;
const TAKEN: usize = 768;
/// From the caller's word to the echo's.
const NEXT_SIDE: usize = 128;
/// Against SIGBUS: truncating a file would kill each process that has it mapped.
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
    /// The ring of the echo.
    echo: Region,
    /// Everything.
    slots: Region,
    ring_bytes: usize,
    slots_bytes: usize,
    page_bytes: usize,
}

/// Bytes of ring that `window` frames of `payload_bytes` need, with one more for the word behind them.
pub(super) fn window_bytes(payload_bytes: usize, window: usize) -> Option<usize> {
    let frame = payload_bytes.checked_add(AUX_BYTES + FRAME_WORD_BYTES + FRAME_ALIGN)? & !(FRAME_ALIGN - 1);
    frame.checked_mul(window.checked_add(1)?)
}

/// Of a ring for `window` frames of up to `payload_bytes`, if it has at most 1 GiB.
fn room(payload_bytes: usize, window: usize) -> io::Result<usize> {
    let bytes = window_bytes(payload_bytes, window).filter(|bytes| *bytes <= 1 << 30);
    Ok(bytes.ok_or(io::ErrorKind::InvalidInput)?.next_power_of_two().max(64 << 10))
}

impl Area {
    /// A new file for `window` frames of up to `payload_bytes`, and as many messages of `slot_bytes` on bare rings; and its
    /// descriptor for the other process.
    ///
    /// # Errors
    /// `InvalidInput` when a ring would have more than 1 GiB; else what the kernel says.
    pub fn create(payload_bytes: usize, window: usize, slot_bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let (ring_bytes, slots_bytes) = (room(payload_bytes, window)?, room(slot_bytes, window)?);
        let bytes = head_bytes() + 2 * ring_bytes + 2 * slots_bytes;
        let fd = memory_file("gimmal-floor", bytes, MemfdFlags::ALLOW_SEALING).map_err(io::Error::other)?;
        fill(&fd, bytes).map_err(io::Error::other)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let slots = Region::file(fd.as_fd(), bytes, Access::ReadWrite)?;
        word(&slots, SLOTS).store(slots_bytes as u64, Ordering::Release);
        Ok((Self::map(fd.as_fd(), (ring_bytes, slots_bytes), slots, Side::Caller)?, fd))
    }

    /// The file that the other process made.
    ///
    /// # Errors
    /// `InvalidData` when it is no such file; else what the kernel says.
    pub fn attach(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        let bytes =
            usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| io::ErrorKind::InvalidData)?;
        if !seals.contains(SEALS) || bytes <= head_bytes() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let slots = Region::file(fd, bytes, Access::ReadWrite)?;
        let slots_bytes = usize::try_from(word(&slots, SLOTS).load(Ordering::Acquire)).unwrap_or(bytes);
        let ring_bytes = (bytes - head_bytes()).saturating_sub(slots_bytes.saturating_mul(2)) / 2;
        let is_ring =
            |bytes: usize| bytes.is_power_of_two() && bytes.is_multiple_of(rustix::param::page_size());
        if !is_ring(ring_bytes) || !is_ring(slots_bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(fd, (ring_bytes, slots_bytes), slots, Side::Echo)
    }

    fn map(
        fd: BorrowedFd<'_>,
        (ring_bytes, slots_bytes): (usize, usize),
        slots: Region,
        side: Side,
    ) -> io::Result<Self> {
        let caller = Region::ring(fd, head_bytes(), ring_bytes, Access::ReadWrite)?;
        let echo = Region::ring(fd, head_bytes() + ring_bytes, ring_bytes, Access::ReadWrite)?;
        let page_bytes = rustix::param::page_size();
        Ok(Self { side, caller, echo, slots, ring_bytes, slots_bytes, page_bytes })
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

    /// The mapping with `side`'s slots, where they begin in it, and how many bytes they have.
    pub(super) fn slots(&self, side: Side) -> (&Region, usize, usize) {
        let first = head_bytes() + 2 * self.ring_bytes + side as usize * self.slots_bytes;
        (&self.slots, first, self.slots_bytes)
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
        self.word(self.page_bytes + PING)
    }

    /// The word that the echo writes in a bounce.
    pub(super) fn pong(&self) -> &AtomicU64 {
        self.word(self.page_bytes + PONG)
    }

    /// As [`Area::ping`], for blocks.
    pub(super) fn block_ping(&self) -> &AtomicU64 {
        self.word(self.page_bytes + BLOCK_PING)
    }

    /// As [`Area::pong`], for blocks.
    pub(super) fn block_pong(&self) -> &AtomicU64 {
        self.word(self.page_bytes + BLOCK_PONG)
    }

    /// Messages that `sender` put into its slots.
    pub(super) fn put(&self, sender: Side) -> &AtomicU64 {
        self.word(self.page_bytes + PUT + sender as usize * NEXT_SIDE)
    }

    /// Those of them that the other side took out.
    pub(super) fn taken(&self, sender: Side) -> &AtomicU64 {
        self.word(self.page_bytes + TAKEN + sender as usize * NEXT_SIDE)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        word(&self.caller, offset)
    }
}

/// A word of the first two pages of the file, which `region` maps.
fn word(region: &Region, offset: usize) -> &AtomicU64 {
    let word = region.at(offset, size_of::<u64>());
    // SAFETY: in the first two pages of our mapping, which lives as long as `region`; the offsets are multiples of
    // 128, and these words are touched in no other way than as atomics, by either process.
    unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
}

fn head_bytes() -> usize {
    2 * rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_words() {
        let (caller, fd) = Area::create(64, 1, 64).unwrap();
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
        let (area, _fd) = Area::create(100_000, 4, 0).unwrap();
        assert_eq!(area.ring_bytes(), 512 << 10);
        assert_eq!(Area::create(1 << 30, 4, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
