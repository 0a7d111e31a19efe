//! An owned mapping. memmap2 reserves and unmaps the address space; fixed mappings fill it.
//!
//! A ring is mapped twice, back to back, so that a frame or a chain is contiguous wherever it starts:
//!
//! ```text
//!   file    │ head │ ring │
//!   memory  │ head │ ring │ ring again │        offset p and p + ring are the same bytes
//! ```

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering},
};

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, mremap_fixed};

#[cfg(feature = "shm")]
use super::charge::Charge;
#[cfg(any(feature = "verbs", test))]
use super::pages::{HUGE_PAGE_BITS, HUGE_PAGE_BYTES, NotHuge, Pages, Setting, is_large};

/// What a mapping may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Ours to write.
    ReadWrite,
    /// A peer's: it changes under us, and we only read.
    ReadOnly,
}

/// A mapping that lives until the last holder drops it.
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
    shared: Shared,
    /// Somebody may read these pages through another mapping.
    is_viewed: AtomicBool,
    /// Of a peer's file, held for its drop.
    #[cfg(feature = "shm")]
    _charge: Option<Charge>,
}

/// Which pages of a region are a file's, that others map too.
#[derive(Clone, Copy, Debug)]
enum Shared {
    /// None.
    Nothing,
    /// All, once.
    Once,
    /// `bytes` from `head`, and again behind themselves.
    Twice { head: usize, bytes: usize },
}

#[cfg(feature = "verbs")]
// SAFETY: the mapping is owned and stays where it is until the last holder drops it. Whoever lends bytes of it takes care
// that no device and no peer writes them meanwhile: that is what credit and loans are for.
unsafe impl gimmal_rdma::Memory for Region {
    fn base(&self) -> NonNull<u8> {
        Self::base(self)
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Region {
    /// Private zeroed memory, present from the start and not inherited by a fork.
    ///
    /// # Errors
    /// What mmap says.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes).populate().map_anon()?;
        Ok(Self::whole(MmapRaw::from(map), Shared::Nothing))
    }

    /// Private zeroed memory whose pages come when they are touched.
    pub(crate) fn reserved(bytes: usize) -> io::Result<Self> {
        Ok(Self::new(MmapRaw::from(MmapMut::map_anon(bytes)?), Shared::Nothing))
    }

    /// Maps `head_bytes + ring_bytes` of `fd` from its start, and the ring part a second time behind it.
    ///
    /// Both sizes are multiples of the page size (`head_bytes` may be 0).
    ///
    /// # Errors
    /// What mmap says; `InvalidInput` for sizes that are no multiples.
    pub fn ring(
        fd: BorrowedFd<'_>,
        head_bytes: usize,
        ring_bytes: usize,
        access: Access,
    ) -> io::Result<Self> {
        let page = rustix::param::page_size();
        if !head_bytes.is_multiple_of(page) || !ring_bytes.is_multiple_of(page) || ring_bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let first = head_bytes + ring_bytes;
        let map = MmapRaw::from(MmapMut::map_anon(first + ring_bytes)?);
        let region = Self::new(map, Shared::Twice { head: head_bytes, bytes: ring_bytes });
        region.fill(0, first, fd, 0, access)?;
        region.fill(first, ring_bytes, fd, head_bytes as u64, access)?;
        region.not_for_children();
        Ok(region)
    }

    /// Bytes of the first view that have pages.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> usize {
        let page = rustix::param::page_size();
        let bytes = if let Shared::Twice { head, bytes } = self.shared { head + bytes } else { self.len() };
        let mut pages = vec![0u8; bytes.div_ceil(page)];
        // SAFETY: mapped, and a byte for each of its pages.
        let failed = unsafe { libc::mincore(self.map.as_mut_ptr().cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(failed, 0, "mincore");
        pages.iter().filter(|page| **page & 1 == 1).count() * page
    }

    /// Gives the pages of a ring back to the kernel. They come again, zeroed, when they are touched.
    ///
    /// # Safety
    /// Nobody reads or writes the ring meanwhile, or needs what lies in it.
    #[cfg(feature = "tcp")]
    pub(crate) unsafe fn give_back(&self) {
        let Shared::Twice { head, bytes } = self.shared else { return };
        let first = self.map.as_mut_ptr().wrapping_add(head).cast();
        // SAFETY: the ring's own pages, in its first view, which nobody uses by the caller's promise.
        let done = unsafe { rustix::mm::madvise(first, bytes, Advice::LinuxRemove) };
        if let Err(errno) = done {
            tracing::debug!(%errno, "an idle ring keeps its pages");
        }
    }

    /// Maps the first `bytes` of `fd`, with all its pages.
    ///
    /// # Errors
    /// What mmap says.
    pub fn file(fd: BorrowedFd<'_>, bytes: usize, access: Access) -> io::Result<Self> {
        Ok(Self::whole(map_file(MmapOptions::new().len(bytes).populate(), fd, access)?, Shared::Once))
    }

    /// Maps all of a peer's file. No page is touched: each comes when it is first used.
    ///
    /// # Errors
    /// What mmap says.
    #[cfg(feature = "shm")]
    pub(crate) fn theirs(
        fd: BorrowedFd<'_>,
        bytes: usize,
        access: Access,
        charge: Charge,
    ) -> io::Result<Self> {
        let map = map_file(MmapOptions::new().len(bytes), fd, access)?;
        Ok(Self { _charge: Some(charge), ..Self::whole(map, Shared::Once) })
    }

    /// As [`Region::file`], to be written, of a file without pages yet, which then come as huge ones if the kernel finds
    /// any. None at all come where it cannot be asked to bring them: give the file its pages afterwards.
    ///
    /// # Errors
    /// What mmap says.
    #[cfg(any(feature = "shm", test))]
    pub(crate) fn file_advised(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let region = Self::whole(MmapOptions::new().len(bytes).map_raw(&fd)?, Shared::Once);
        region.bring_huge();
        Ok(region)
    }

    /// Private zeroed memory as [`Region::anonymous`], on huge pages if `is_wanted` and there are some.
    ///
    /// # Errors
    /// What mmap says of normal ones.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn large(bytes: usize, is_wanted: bool) -> io::Result<(Self, Pages)> {
        if !is_wanted || !is_large(bytes) {
            let why = if is_wanted { NotHuge::Small } else { NotHuge::Off };
            return Ok((Self::anonymous(bytes)?, Pages::Normal { why }));
        }
        let errno = match Self::from_pool(bytes) {
            Ok(region) => return Ok((region, Pages::Huge { bytes: HUGE_PAGE_BYTES })),
            Err(error) => error.raw_os_error().unwrap_or(0),
        };
        let pages = Setting::Private.without_pool(errno);
        if !matches!(pages, Pages::Advised { .. }) {
            return Ok((Self::anonymous(bytes)?, pages));
        }
        let region = Self::whole(MmapRaw::from(MmapMut::map_anon(bytes)?), Shared::Nothing);
        region.bring_huge();
        Ok((region, pages))
    }

    /// Memory on pages of the system's pool, all of them there.
    ///
    /// A cgroup's limit lets the mapping be made, even with MAP_POPULATE, and kills who touches it. So the pages are brought
    /// by a call that says so.
    #[cfg(any(feature = "verbs", test))]
    fn from_pool(bytes: usize) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(bytes).huge(Some(HUGE_PAGE_BITS));
        let map = MmapRaw::from(options.map_anon()?);
        match map.advise(memmap2::Advice::PopulateWrite) {
            Ok(()) => Ok(Self::whole(map, Shared::Nothing)),
            // A kernel before 5.14 has no such call.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                drop(map);
                let map = options.populate().map_anon()?;
                Ok(Self::whole(MmapRaw::from(map), Shared::Nothing))
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for huge pages, and for all pages now. What is refused comes later, when it is touched.
    #[cfg(any(feature = "shm", feature = "verbs", test))]
    fn bring_huge(&self) {
        let _ = self.map.advise(memmap2::Advice::HugePage);
        let _ = self.map.advise(memmap2::Advice::PopulateWrite);
    }

    fn whole(map: MmapRaw, shared: Shared) -> Self {
        let region = Self::new(map, shared);
        region.not_for_children();
        region
    }

    const fn new(map: MmapRaw, shared: Shared) -> Self {
        Self {
            map,
            shared,
            is_viewed: AtomicBool::new(false),
            #[cfg(feature = "shm")]
            _charge: None,
        }
    }

    /// Another mapping of the same pages: a ring's without its head, and all of another file's. The first byte of it
    /// is the byte at the offset that is returned beside it.
    ///
    /// # Errors
    /// `Unsupported` for memory that is nobody else's; what mmap and mremap say.
    pub(crate) fn view(&self) -> io::Result<(Self, usize)> {
        let (head, bytes, times) = match self.shared {
            Shared::Nothing => return Err(io::ErrorKind::Unsupported.into()),
            Shared::Once => (0, self.len(), 1),
            Shared::Twice { head, bytes } => (head, bytes, 2),
        };
        let view = Self::reserved(times * bytes)?;
        self.is_viewed.store(true, Ordering::Relaxed);
        for time in 0..times {
            let (from, to) = (self.at(head, bytes), view.at(time * bytes, bytes));
            // SAFETY: an old size of 0 leaves the old mapping as it is and maps its pages, which are shared, once more;
            // the new place is a part of our own reservation that nobody points into yet.
            let moved = unsafe {
                mremap_fixed(from.as_ptr().cast(), 0, bytes, MremapFlags::MAYMOVE, to.as_ptr().cast())
            };
            moved?;
        }
        view.not_for_children();
        Ok((view, head))
    }

    /// Whether a view of it was ever made: it may outlive its creator.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn is_viewed(&self) -> bool {
        self.is_viewed.load(Ordering::Relaxed)
    }

    /// Puts the pages of `fresh` in the place of those from `at` on. Concurrent readers see one change from the old
    /// bytes to the new ones. When this returns, nobody sees the old ones.
    ///
    /// # Errors
    /// What mremap says; then everything is as it was.
    ///
    /// # Safety
    /// `fresh` must have the same bytes for all readers of the range.
    pub(crate) unsafe fn replace(&self, at: usize, fresh: Self) -> io::Result<()> {
        let to = self.at(at, fresh.len());
        let (from, bytes) = (fresh.base().as_ptr().cast(), fresh.len());
        // SAFETY: `fresh` is ours alone and moves as a whole; its new place lies inside our own mapping. The kernel takes the
        // old pages away and brings the new ones under one lock, which a reader that faults in between waits for, and
        // checks beforehand what can fail (the number of mappings).
        unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to.as_ptr().cast()) }?;
        // Where it was is nothing now: unmapping it could hit whatever comes there next.
        std::mem::forget(fresh);
        Ok(())
    }

    fn fill(
        &self,
        at: usize,
        bytes: usize,
        fd: BorrowedFd<'_>,
        offset: u64,
        access: Access,
    ) -> io::Result<()> {
        let protection = match access {
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Access::ReadOnly => ProtFlags::READ,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        assert!(at <= self.map.len() && bytes <= self.map.len() - at, "a mapping beyond its reservation");
        // SAFETY: `at + bytes` lies inside our own reservation, by the check above.
        let place = unsafe { self.map.as_mut_ptr().add(at) };
        // SAFETY: MAP_FIXED replaces pages of a reservation that only this region owns and nobody points into yet.
        unsafe { rustix::mm::mmap(place.cast(), bytes, protection, flags, fd, offset) }?;
        Ok(())
    }

    /// A forked child must not share rings; failure only means that it would.
    fn not_for_children(&self) {
        // SAFETY: the range is exactly our mapping; DONTFORK changes nothing for this process.
        let _ = unsafe {
            rustix::mm::madvise(self.map.as_mut_ptr().cast(), self.map.len(), Advice::LinuxDontFork)
        };
    }

    /// Sets the first `bytes` to zero.
    ///
    /// # Safety
    /// No other process and no device uses this memory, nor does anybody here point into it.
    ///
    /// # Panics
    /// When `bytes` are more than are mapped.
    pub unsafe fn clear(&mut self, bytes: usize) {
        let base = self.at(0, bytes);
        // SAFETY: inside the mapping, which is writable unless a peer owns it, and then the caller may not call; nobody
        // else uses it, by the caller's promise.
        unsafe { base.write_bytes(0, bytes) };
    }

    /// The first byte.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).expect("a mapping is never at address zero")
    }

    /// All bytes that are mapped, the second view of a ring included.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// A region is never empty; this exists for symmetry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where `offset` is.
    ///
    /// # Panics
    /// When `offset + bytes` is outside: callers derive offsets from masked positions.
    #[inline]
    #[must_use]
    pub fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            bytes <= self.len() && offset <= self.len() - bytes,
            "{offset}+{bytes} outside {}",
            self.len()
        );
        // SAFETY: just checked to lie inside the mapping.
        unsafe { self.base().add(offset) }
    }
}

fn map_file(options: &MmapOptions, fd: BorrowedFd<'_>, access: Access) -> io::Result<MmapRaw> {
    match access {
        Access::ReadWrite => options.map_raw(&fd),
        Access::ReadOnly => options.map_raw_read_only(&fd),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_ring_is_the_same_bytes_twice() {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 3 * 4096).unwrap();
        let region = Region::ring(fd.as_fd(), 4096, 8192, Access::ReadWrite).unwrap();
        assert_eq!(region.len(), 4096 + 2 * 8192);
        // SAFETY: inside the mapping, nobody else has it.
        unsafe { region.at(4096 + 5, 1).write(7) };
        // SAFETY: as above; the second view of the same byte.
        assert_eq!(unsafe { region.at(4096 + 8192 + 5, 1).read() }, 7);
        let reader = Region::ring(fd.as_fd(), 4096, 8192, Access::ReadOnly).unwrap();
        // SAFETY: inside the mapping, written above and not since.
        assert_eq!(unsafe { reader.at(4096 + 5, 1).read() }, 7);
    }

    #[test]
    fn large_memory_says_what_it_lies_on() {
        for (bytes, is_wanted) in [(4096, true), (3 << 20, true), (4 << 20, false), (4 << 20, true)] {
            let (region, pages) = Region::large(bytes, is_wanted).unwrap();
            let last = region.at(bytes - 1, 1);
            // SAFETY: inside the mapping, nobody else has it.
            assert_eq!(unsafe { last.read() }, 0);
            // SAFETY: as above.
            unsafe { last.write(7) };
            match pages {
                Pages::Normal { why: NotHuge::Off } => assert!(!is_wanted),
                Pages::Normal { why: NotHuge::Small } => assert!(!is_large(bytes)),
                _ => assert!(is_wanted && bytes == 4 << 20, "{pages}"),
            }
        }
    }

    #[test]
    fn a_view_outlives_its_region_and_pages_can_be_replaced_in_it() {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 3 * 4096).unwrap();
        let region = Region::ring(fd.as_fd(), 4096, 8192, Access::ReadWrite).unwrap();
        let reader = Region::ring(fd.as_fd(), 4096, 8192, Access::ReadOnly).unwrap();
        let (view, head) = reader.view().unwrap();
        assert!(reader.is_viewed());
        drop(reader);
        assert_eq!((view.len(), head), (2 * 8192, 4096));
        assert!(!region.is_viewed(), "it is another mapping that was");
        // SAFETY: inside the mapping, one byte, read and written by this thread alone.
        let write = |at: usize, value| unsafe { region.at(4096 + at, 1).write(value) };
        // SAFETY: as above.
        let read = |at| unsafe { view.at(at, 1).read_volatile() };
        write(5, 7);
        write(4096, 8);
        assert_eq!([read(5), read(8192 + 5), read(4096)], [7, 7, 8]);
        let fresh = Region::anonymous(4096).unwrap();
        // SAFETY: inside the mapping, nobody else has it.
        unsafe { fresh.at(5, 1).write(7) };
        // SAFETY: nobody reads there but this thread.
        unsafe { view.replace(8192, fresh) }.unwrap();
        write(5, 9);
        assert_eq!([read(5), read(8192 + 5), read(4096)], [9, 7, 8], "only the replaced page is apart");
        assert!(Region::anonymous(4096).unwrap().view().is_err());
    }
}
