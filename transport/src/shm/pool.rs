//! Memory for bulk: sealed segments of 16 MiB and more, cut first-fit, passed to a peer when it is first offered
//! something in them.
//!
//! A segment may be mapped by several peers, all of this user; it stays until the pool's last loan and handle are gone.
//! The pool so keeps the most that was ever lent at once. What was given back last stays as it was cut, for the next loan of
//! its size: who lends one buffer after another of the same size looks for no gap. Only where a connection ended while its peer was still reading
//! a loan is nothing cut any more: that segment goes with the last loan in it, and its pages with the last reader.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
};

use rustix::{fs::MemfdFlags, io::Errno};

use super::segment::{SEALS, create_hollow};
use crate::{
    PortError,
    kernel::{fill, mapping, system},
    mem::{
        Access, Loan, LoanHome, MemoryNode, NotHuge, Pages, PoolMemory, Region,
        pages::{HUGE_PAGE_BYTES, Setting, is_large},
    },
    pack::Field,
    sync::{lock::lock, prefetch::prefetch_to_write},
};

/// What the kernel shows of its memory.
const NAME: &str = "gimmal-pool";

/// Size of a segment, unless one loan needs more.
pub(super) const POOL_SEGMENT_BYTES: usize = 16 << 20;
/// Loans begin at multiples of this and are rounded up to it: two cache lines, so that neighbours share none.
const GRAIN: usize = 128;
/// The largest segment: tickets count its grains in 32 bits.
const SEGMENT_BYTES_MAX: usize = GRAIN * (1 << 32);
/// Loans of a page and more begin on a page.
const PAGE: usize = 4096;

/// Pieces that wait, as they were cut, for a loan of their size.
const RECENT: usize = 8;

/// One piece of memory that loans are cut from.
#[derive(Debug)]
pub(super) struct PoolSegment {
    pub(super) fd: OwnedFd,
    region: Region,
    pages: Pages,
}

impl PoolSegment {
    fn create(bytes: usize, wants_huge: bool) -> Result<Self, PortError> {
        let pages = if !wants_huge {
            Pages::Normal { why: NotHuge::Off }
        } else if !is_large(bytes) {
            Pages::Normal { why: NotHuge::Small }
        } else {
            match Self::on(Pages::Huge { bytes: HUGE_PAGE_BYTES }, bytes) {
                Err(PortError::System { errno, .. }) => Setting::Shared.without_pool(errno),
                made => return made,
            }
        };
        Self::on(pages, bytes)
    }

    fn on(pages: Pages, bytes: usize) -> Result<Self, PortError> {
        let is_huge = matches!(pages, Pages::Huge { .. });
        let kind = if is_huge { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
        let fd = create_hollow(NAME, bytes, kind)?;
        let writable = || Region::file(fd.as_fd(), bytes, Access::ReadWrite);
        let region = if matches!(pages, Pages::Advised { .. }) {
            let region = Region::file_advised(fd.as_fd(), bytes);
            fill(&fd, bytes)?;
            region
        } else {
            fill(&fd, bytes)?;
            writable()
        };
        let region = region.map_err(|error| mapping(&error))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system("F_ADD_SEALS"))?;
        // Kernels before 5.13 take this seal of huge pages, and then let a peer write all the same.
        if is_huge && writable().is_ok() {
            return Err(system("F_SEAL_FUTURE_WRITE")(Errno::OPNOTSUPP));
        }
        Ok(Self { fd, region, pages })
    }

    pub(super) fn bytes(&self) -> usize {
        self.region.len()
    }
}

/// All segments of a port.
#[derive(Debug)]
pub(super) struct Pool {
    wants_huge: bool,
    node: MemoryNode,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: it was retired and is gone.
    segments: Vec<Option<Arc<PoolSegment>>>,
    /// For each segment: the gaps, offset to bytes. `None`: it is retired.
    gaps: Vec<Option<BTreeMap<usize, usize>>>,
    /// What is lent, and what is recent: bytes by ticket.
    lent: BTreeMap<u64, usize>,
    /// What was given back and has not returned to the gaps: ticket and bytes, the last one last.
    recent: Vec<(u64, usize)>,
}

impl Pool {
    pub(super) fn new(wants_huge: bool, node: MemoryNode) -> Arc<Self> {
        Arc::new(Self { wants_huge, node, state: Mutex::default() })
    }

    /// A loan of `bytes`.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Loan, PortError> {
        let limit = SEGMENT_BYTES_MAX as u64;
        let too_large = || PortError::Limit { field: "bytes of a loan", value: bytes as u64, limit };
        if bytes > SEGMENT_BYTES_MAX {
            return Err(too_large());
        }
        let rounded = bytes.max(1).next_multiple_of(GRAIN);
        let mut state = lock(&self.state);
        let ticket = match state.take(rounded) {
            Some(ticket) => ticket,
            None => {
                self.node.place(|| state.grow(rounded, self.wants_huge))?;
                state.take(rounded).ok_or_else(too_large)?
            }
        };
        let (segment, offset) = place(ticket);
        let memory = state.segments[segment].as_ref().map(|segment| segment.region.at(offset, bytes));
        let memory = memory.ok_or_else(too_large)?;
        // SAFETY: the bytes were cut out of a gap and return there only by `give_back`; they came zeroed from the kernel;
        // the segment stays mapped while something in it is lent and the pool lives, which the loan keeps.
        Ok(unsafe { Loan::new(memory, bytes, ticket, Arc::clone(self) as Arc<dyn LoanHome>) })
    }

    /// The segment at `index`.
    pub(super) fn segment(&self, index: usize) -> Option<Arc<PoolSegment>> {
        lock(&self.state).segments.get(index).cloned().flatten()
    }

    /// What there is now.
    pub(super) fn memory(&self) -> Vec<PoolMemory> {
        let state = lock(&self.state);
        let piece = |segment: &Arc<PoolSegment>| PoolMemory { bytes: segment.bytes(), pages: segment.pages };
        state.segments.iter().flatten().map(piece).collect()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.segments.iter().flatten().count(), state.lent.len() - state.recent.len())
    }
}

impl LoanHome for Pool {
    fn give_back(&self, ticket: u64) {
        lock(&self.state).give_back(ticket);
    }

    fn set_aside(&self, ticket: u64) {
        lock(&self.state).set_aside(ticket);
    }
}

impl State {
    /// A piece of `bytes`: one that was lent with this size before, else a part of a gap.
    fn take(&mut self, bytes: usize) -> Option<u64> {
        if let Some(at) = self.recent.iter().rposition(|(_, size)| *size == bytes) {
            return Some(self.recent.remove(at).0);
        }
        let place = self.cut(bytes).or_else(|| {
            self.forget_recent();
            self.cut(bytes)
        });
        let (segment, offset) = place?;
        let ticket = ticket(segment, offset);
        self.lent.insert(ticket, bytes);
        Some(ticket)
    }

    /// The first gap that fits.
    fn cut(&mut self, bytes: usize) -> Option<(usize, usize)> {
        for (index, gaps) in self.gaps.iter_mut().enumerate() {
            let Some(gaps) = gaps else { continue };
            let fit = gaps.iter().find_map(|(&start, &size)| {
                let offset = if bytes < PAGE { start } else { start.next_multiple_of(PAGE) };
                (offset - start <= size && bytes <= size - (offset - start)).then_some((start, size, offset))
            });
            let Some((start, size, offset)) = fit else { continue };
            gaps.remove(&start);
            if offset > start {
                gaps.insert(start, offset - start);
            }
            if start + size > offset + bytes {
                gaps.insert(offset + bytes, start + size - offset - bytes);
            }
            return Some((index, offset));
        }
        None
    }

    fn grow(&mut self, bytes: usize, wants_huge: bool) -> Result<(), PortError> {
        let bytes = bytes.max(POOL_SEGMENT_BYTES).next_power_of_two();
        let segment = PoolSegment::create(bytes, wants_huge)?;
        tracing::debug!(bytes, pages = %segment.pages, "a pool segment more");
        self.segments.push(Some(Arc::new(segment)));
        self.gaps.push(Some(BTreeMap::from([(0, bytes)])));
        Ok(())
    }

    fn give_back(&mut self, ticket: u64) {
        let Some(&bytes) = self.lent.get(&ticket) else { return };
        let (segment, offset) = place(ticket);
        let is_retired = !matches!(self.gaps.get(segment), Some(Some(_)));
        let Some(Some(segment)) = self.segments.get(segment).filter(|_| !is_retired) else {
            return self.join(ticket, bytes);
        };
        // Most likely this is the next loan, and its reader has its first line.
        prefetch_to_write(segment.region.at(offset, 1));
        if self.recent.len() == RECENT {
            let (oldest, bytes) = self.recent.remove(0);
            self.join(oldest, bytes);
        }
        self.recent.push((ticket, bytes));
    }

    fn forget_recent(&mut self) {
        for (ticket, bytes) in std::mem::take(&mut self.recent) {
            self.join(ticket, bytes);
        }
    }

    /// Joins what is not lent any more to the gaps around it.
    fn join(&mut self, ticket: u64, mut bytes: usize) {
        self.lent.remove(&ticket);
        let (segment, mut start) = place(ticket);
        let Some(Some(gaps)) = self.gaps.get_mut(segment) else { return self.forget(segment) };
        if let Some((&before, &size)) = gaps.range(..start).next_back()
            && before + size == start
        {
            gaps.remove(&before);
            start = before;
            bytes += size;
        }
        if let Some(size) = gaps.remove(&(start + bytes)) {
            bytes += size;
        }
        gaps.insert(start, bytes);
    }

    /// Retires the segment: the rest of it is given up with what may still be read, and not kept apart for ever.
    fn set_aside(&mut self, ticket: u64) {
        self.forget_recent();
        self.lent.remove(&ticket);
        let (segment, _) = place(ticket);
        if let Some(gaps) = self.gaps.get_mut(segment) {
            *gaps = None;
        }
        self.forget(segment);
    }

    /// Lets go of a retired segment in which nothing is lent any more.
    fn forget(&mut self, segment: usize) {
        let tickets = ticket(segment, 0)..ticket(segment + 1, 0);
        if self.lent.range(tickets).next().is_none()
            && let Some(segment) = self.segments.get_mut(segment)
        {
            *segment = None;
        }
    }
}

/// A ticket is the offset of a loan in its segment, in grains, and above it the segment.
type Grains = Field<0, 32>;
type Index = Field<{ Grains::END }, 32>;

fn ticket(segment: usize, offset: usize) -> u64 {
    let grains = Grains::put((offset / GRAIN) as u64).expect("a segment has at most SEGMENT_BYTES_MAX");
    // Each has 16 MiB at least, so an address space has room for 2^24 of them.
    grains | Index::turn(segment as u64)
}

/// The segment that a loan of a pool lies in, and its offset there.
pub(super) fn place(ticket: u64) -> (usize, usize) {
    (Index::get_u32(ticket) as usize, Grains::get_u32(ticket) as usize * GRAIN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_every_grain_of_the_largest_segment() {
        let last = (SEGMENT_BYTES_MAX - 1) / GRAIN * GRAIN;
        for (segment, offset) in [(0, 0), (0, last), (1, 0), (3, last), (u32::MAX as usize, last)] {
            assert_eq!(place(ticket(segment, offset)), (segment, offset));
        }
        assert!(ticket(0, last) < ticket(1, 0), "the loans of a segment lie together");
        assert!(
            std::panic::catch_unwind(|| ticket(0, SEGMENT_BYTES_MAX)).is_err(),
            "it would be of segment 1"
        );
    }

    #[test]
    fn a_loan_above_the_largest_segment_is_refused_by_its_limit() {
        let pool = Pool::new(false, MemoryNode::of_this_thread());
        let (value, limit) = (SEGMENT_BYTES_MAX as u64 + 1, SEGMENT_BYTES_MAX as u64);
        let refused = pool.allocate(SEGMENT_BYTES_MAX + 1).map(|_| ());
        assert_eq!(refused, Err(PortError::Limit { field: "bytes of a loan", value, limit }));
    }
}
