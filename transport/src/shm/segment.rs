//! A segment: one side's sealed memory, its own to write and the peer's to read.
//!
//! ```text
//!  0          128        256       384            page                    page + ring
//!  │ consumed │ armed    │ closing │ pulse │      │ ring: what its owner sends │ (mapped twice)
//! ```
//! Every byte has one writer, and the kernel keeps it so: the owner maps it writable, then seals it, then passes
//! it on. The four words are the owner's, each on a line pair of its own.
//!
//! # A peer's files
//!
//! Every file that a peer passes is checked here before it is mapped. What the peer can do to it afterwards:
//!
//! | | ring | pool segment | exposed memory |
//! |---|---|---|---|
//! | mapped | to read, twice, with all pages: our own hello chose its size | to read, each page when it is read | to write, each page when it is used |
//! | how many | one | by number, bytes and file ([`theirs`](super::theirs)), and for all peers together (`mem/charge.rs`) | likewise |
//! | pages | ordinary | ordinary or huge | ordinary |
//! | the peer cuts or extends it | SHRINK and GROW | SHRINK and GROW | SHRINK and GROW |
//! | the peer lacks a seal, or adds one | refused; SEAL | refused; SEAL | refused; SEAL |
//! | the peer punches a hole | FUTURE_WRITE forbids it | FUTURE_WRITE forbids it | the page comes back zeroed, charged to the process that touches it first |
//! | the peer takes a huge page back | there is none | as a hole | there is none: touching it would be SIGBUS |
//!
//! A hole in exposed memory stays safe as long as the kernel can give a page for it. Where memory is accounted strictly
//! (`vm.overcommit_memory` = 2) and used up, it cannot, and the access is SIGBUS: expose nothing there to peers that are
//! not trusted.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{MemfdFlags, SealFlags};

use super::lock::FileId;
use crate::{
    PortError, Violation,
    frame::FRAME_ALIGN,
    kernel::{fill, mapping, memory_file, system},
    mem::{Access, Region, RxMemory, charge::Charge, run::RingPlace},
    pulse,
};

const CONSUMED: usize = 0;
const ARMED: usize = 128;
const CLOSING: usize = 256;
const PULSE: usize = 384;

/// What a segment must be sealed with before anyone maps it: it can never change its size, nobody but the one who
/// has mapped it already can write it, and this stays so.
pub(super) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Exposed memory must be sealed with these: its size is fixed for ever.
pub(super) const EXPOSED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What a file of a peer must be.
#[derive(Debug)]
pub(super) struct Kind {
    seals: SealFlags,
    /// Seals that it must not have.
    never: SealFlags,
    may_be_huge: bool,
    access: Access,
}

/// A ring with its control words.
const RING: Kind =
    Kind { seals: SEALS, never: SealFlags::empty(), may_be_huge: false, access: Access::ReadOnly };
/// A segment that loans lie in.
pub(super) const POOL: Kind =
    Kind { seals: SEALS, never: SealFlags::empty(), may_be_huge: true, access: Access::ReadOnly };
/// Memory that the peer exposes. The kernel would refuse to map it with the other seals, and that would look like a fault of ours.
pub(super) const EXPOSED: Kind = Kind {
    seals: EXPOSED_SEALS,
    never: SealFlags::WRITE.union(SealFlags::FUTURE_WRITE),
    may_be_huge: false,
    access: Access::ReadWrite,
};

/// `f_type` of ordinary shared memory (`statfs(2)`), and of huge pages.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

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

// SAFETY: as above; whoever shares the mapping moves its pulse on, atomically, and nothing else.
unsafe impl Send for Segment<Arc<Region>> {}

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
        check_file(fd, control_bytes() + ring_bytes, &RING)?;
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

    /// One of our own, whose pulse moves on from now on.
    pub(super) fn pulsing(self) -> Segment<Arc<Region>> {
        let Self { ring, mask, control, keeper } = self;
        let keeper = Arc::new(keeper);
        pulse::keep(&keeper, bump);
        Segment { ring, mask, control, keeper }
    }

    /// Makes the segment shared, so that frames can keep it.
    pub(super) fn share(self) -> Segment<Rc<RxMemory>> {
        let Self { ring, mask, control, keeper } = self;
        Segment { ring, mask, control, keeper: Rc::new(RxMemory::new(keeper)) }
    }
}

impl Segment<Rc<RxMemory>> {
    /// The mapping, for what is lent from it.
    #[inline]
    pub(super) fn memory(&self) -> &Rc<RxMemory> {
        &self.keeper
    }
}

impl<K> Segment<K> {
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
        // SAFETY: the four offsets lie inside the control page.
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

impl<K> Segment<K> {
    /// Moves on while its owner's process runs; 0 where nothing moves it.
    pub(super) fn pulse(&self) -> &AtomicU64 {
        self.control(PULSE)
    }
}

/// Moves the pulse of a segment of ours on.
fn bump(region: &Region, beat: u64) {
    let word = region.at(PULSE, size_of::<u64>());
    // SAFETY: inside the control page that every mapping of a segment begins with, mapped writable while `region` lives,
    // aligned to 128, and only ever touched as an atomic.
    unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }.store(beat, Ordering::Relaxed);
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

/// Checks that `fd` is a memfd of `kind` with exactly `bytes`, all of them allocated. Which file it is.
fn check_file(fd: BorrowedFd<'_>, bytes: usize, kind: &Kind) -> Result<FileId, AttachError> {
    let bad = |what| AttachError::Peer(Violation::Malformed { what });
    // Only a memfd has seals, so this also excludes pipes, devices and files that someone could cut.
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| bad("segment that is no memfd"))?;
    if !seals.contains(kind.seals) {
        return Err(bad("segment without its seals"));
    }
    if seals.intersects(kind.never) {
        return Err(bad("exposed memory that may not be written"));
    }
    let failed = |step| move |errno| AttachError::Port(system(step)(errno));
    let lies_on = rustix::fs::fstatfs(fd).map_err(failed("fstatfs"))?;
    match u64::try_from(lies_on.f_type) {
        Ok(TMPFS) => {}
        Ok(HUGETLBFS) if kind.may_be_huge => {}
        _ => return Err(bad("segment on pages of another kind")),
    }
    let stat = rustix::fs::fstat(fd).map_err(failed("fstat"))?;
    if u64::try_from(stat.st_size) != Ok(bytes as u64) {
        return Err(bad("segment of another size"));
    }
    // A hole would be filled, and charged to us, by our first look.
    if u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < bytes as u64 {
        return Err(bad("segment with holes"));
    }
    Ok(FileId::of(&stat))
}

/// As [`check_file`], of a size that the peer says.
pub(super) fn check_theirs(
    fd: BorrowedFd<'_>,
    bytes: u64,
    kind: &Kind,
) -> Result<(FileId, usize), AttachError> {
    let of_no_size = AttachError::Peer(Violation::Malformed { what: "segment of another size" });
    let size = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or(of_no_size)?;
    Ok((check_file(fd, size, kind)?, size))
}

/// Maps a file that was checked for `kind`. No page of it is touched.
pub(super) fn map_theirs(fd: BorrowedFd<'_>, bytes: usize, kind: &Kind) -> Result<Region, AttachError> {
    let charge = Charge::take(bytes as u64).map_err(AttachError::Port)?;
    Region::theirs(fd, bytes, kind.access, charge).map_err(|error| AttachError::Port(mapping(&error)))
}
