//! A segment: one side's sealed memory, its own to write and the peer's to read.
//!
//! ```text
//!  0          128        256                 page                    page + ring
//!  │ consumed │ armed    │ closing │         │ ring: what its owner sends │ (mapped twice)
//! ```
//! Every byte has one writer, and the kernel keeps it so: the owner maps it writable, then seals it, then passes
//! it on. The three words are the owner's, each on a line pair of its own.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    rc::Rc,
    sync::atomic::AtomicU64,
};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::{
    PortError, Violation,
    frame::FRAME_ALIGN,
    kernel::{fill, mapping, memory_file, system},
    mem::{Access, Region, run::RingPlace},
};

const CONSUMED: usize = 0;
const ARMED: usize = 128;
const CLOSING: usize = 256;

/// What a segment must be sealed with before anyone maps it: it can never change its size, nobody but the one who
/// has mapped it already can write it, and this stays so.
pub(super) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Bytes before the ring: a page, so that the ring can be mapped twice.
pub(super) fn control_bytes() -> usize {
    rustix::param::page_size()
}

/// Control words and a ring, in a mapping kept by `K`.
#[derive(Debug)]
pub(super) struct Segment<K> {
    ring: NonNull<u8>,
    /// Of a position; also clears what is no multiple of a frame's alignment.
    mask: u64,
    control: NonNull<u8>,
    keeper: K,
}

// SAFETY: the pointers lead into the mapping that `keeper` owns alone, like a `Box`; all access goes through atomics or
// through whoever has the segment.
unsafe impl Send for Segment<Region> {}

impl Segment<Region> {
    /// A segment of our own, sealed; the descriptor is for the peer.
    pub(super) fn create(ring_bytes: u32) -> Result<(Self, OwnedFd), PortError> {
        let ring_bytes = ring_bytes as usize;
        let fd = create_file("gimmal-ring", control_bytes() + ring_bytes)?;
        let region = Region::ring(fd.as_fd(), control_bytes(), ring_bytes, Access::ReadWrite)
            .map_err(|error| mapping(&error))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system("F_ADD_SEALS"))?;
        Ok((Self::new(region, ring_bytes), fd))
    }

    /// The segment that a peer passed, whose ring must have `ring_bytes`.
    pub(super) fn attach(fd: BorrowedFd<'_>, ring_bytes: u32) -> Result<Self, AttachError> {
        let ring_bytes = ring_bytes as usize;
        check_file(fd, control_bytes() + ring_bytes, SEALS)?;
        let region = Region::ring(fd, control_bytes(), ring_bytes, Access::ReadOnly)
            .map_err(|error| AttachError::Port(mapping(&error)))?;
        Ok(Self::new(region, ring_bytes))
    }

    fn new(region: Region, ring_bytes: usize) -> Self {
        assert!(ring_bytes.is_power_of_two(), "`Hello::check` has seen both rings");
        let control = region.at(0, control_bytes());
        let ring = region.at(control_bytes(), 2 * ring_bytes);
        Self { ring, mask: (ring_bytes - 1) as u64 & !(FRAME_ALIGN as u64 - 1), control, keeper: region }
    }

    /// The same, for frames to keep it.
    pub(super) fn share(self) -> Segment<Rc<Region>> {
        let Self { ring, mask, control, keeper } = self;
        Segment { ring, mask, control, keeper: Rc::new(keeper) }
    }
}

impl Segment<Rc<Region>> {
    /// Whether no frame keeps it.
    pub(super) fn is_sole(&self) -> bool {
        Rc::strong_count(&self.keeper) == 1
    }

    /// The same, for another thread; `None` while a frame keeps it.
    pub(super) fn unshare(self) -> Option<Segment<Region>> {
        let Self { ring, mask, control, keeper } = self;
        Some(Segment { ring, mask, control, keeper: Rc::into_inner(keeper)? })
    }

    /// The mapping.
    #[inline]
    pub(super) fn region(&self) -> &Rc<Region> {
        &self.keeper
    }
}

impl<K> Segment<K> {
    /// What keeps the mapping.
    #[cfg(feature = "conformance")]
    pub(super) fn keeper(&self) -> &K {
        &self.keeper
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked by the ring's size, which is below 2 GiB")]
    fn offset(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// The word of the frame at `position`.
    #[inline]
    pub(super) fn word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the mask keeps the offset inside the ring, and 16 bytes from its end at least.
        let word = unsafe { self.ring.add(self.offset(position)) };
        // SAFETY: mapped while `keeper` lives, aligned to 16 by the mask, and touched only as an atomic while it
        // may be shared (a payload that covers it is written by its one owner, before it is published).
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// Where the ring is.
    #[inline]
    pub(super) const fn place(&self) -> RingPlace {
        RingPlace { base: self.ring, mask: self.mask }
    }

    /// Where the payload of the frame at `position` begins; the ring is contiguous for its whole size from here.
    #[inline]
    pub(super) fn payload(&self, position: u64) -> NonNull<u8> {
        // SAFETY: inside the double mapping: below the ring's size, and the word's eight bytes further.
        unsafe { self.ring.add(self.offset(position) + crate::frame::FRAME_WORD_BYTES) }
    }

    fn control(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the three offsets lie inside the control page.
        let word = unsafe { self.control.add(offset) };
        // SAFETY: mapped while `keeper` lives, aligned to 128, and only ever touched as an atomic.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// How far its owner has read the other ring.
    #[inline]
    pub(super) fn consumed(&self) -> &AtomicU64 {
        self.control(CONSUMED)
    }

    /// The number of its owner's sleep, 0 while it is awake.
    #[inline]
    pub(super) fn armed(&self) -> &AtomicU64 {
        self.control(ARMED)
    }

    /// Not 0 when its owner has closed.
    #[inline]
    pub(super) fn closing(&self) -> &AtomicU64 {
        self.control(CLOSING)
    }
}

/// A memfd of `bytes`, not sealed yet. It has its pages: a lack of them is an error now, and no SIGBUS in the middle of a frame.
pub(super) fn create_file(name: &str, bytes: usize) -> Result<OwnedFd, PortError> {
    let fd = create_hollow(name, bytes, MemfdFlags::empty())?;
    fill(&fd, bytes)?;
    Ok(fd)
}

/// A memfd of `bytes` without its pages.
pub(super) fn create_hollow(name: &str, bytes: usize, kind: MemfdFlags) -> Result<OwnedFd, PortError> {
    memory_file(name, bytes, MemfdFlags::ALLOW_SEALING | kind)
}

/// Why a peer's segment was not taken.
#[derive(Debug)]
pub(super) enum AttachError {
    /// It is not what it must be.
    Peer(Violation),
    /// It could not be mapped.
    Port(PortError),
}

/// Whether `fd` is a memfd with `seals`, of exactly `bytes`, all of them allocated.
pub(super) fn check_file(fd: BorrowedFd<'_>, bytes: usize, wanted: SealFlags) -> Result<(), AttachError> {
    let bad = |what| AttachError::Peer(Violation::Malformed { what });
    // Only a memfd has seals, so this also excludes pipes, devices and files that someone could cut.
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| bad("segment that is no memfd"))?;
    if !seals.contains(wanted) {
        return Err(bad("segment without its seals"));
    }
    let stat = rustix::fs::fstat(fd).map_err(|errno| AttachError::Port(system("fstat")(errno)))?;
    if u64::try_from(stat.st_size) != Ok(bytes as u64) {
        return Err(bad("segment of another size"));
    }
    // A hole would be filled, and charged to us, by our first look. The seals keep pages where they are.
    if u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < bytes as u64 {
        return Err(bad("segment with holes"));
    }
    Ok(())
}
