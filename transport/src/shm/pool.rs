//! Memory for bulk: sealed segments of 16 MiB and more, cut first-fit, passed to a peer when it is first offered
//! something in them.
//!
//! A segment may be mapped by several peers, all of this user; it stays until the pool's last loan and handle are gone.
//! The pool so keeps the most that was ever lent at once. Only where a connection ended while its peer was still reading
//! a loan is nothing cut any more: that segment goes with the last loan in it, and its pages with the last reader.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{
    segment::{SEALS, create_file, system_io},
    system,
};
use crate::{
    PortError,
    mem::{Access, Loan, LoanHome, Region},
};

/// Size of a segment, unless one loan needs more.
pub(super) const POOL_SEGMENT_BYTES: usize = 16 << 20;
/// Loans begin at multiples of this and are rounded up to it: two cache lines, so that neighbours share none.
const GRAIN: usize = 128;
/// Loans of a page and more begin on a page.
const PAGE: usize = 4096;

/// One piece of memory that loans are cut from.
#[derive(Debug)]
pub(super) struct PoolSegment {
    /// Its name in offers; also its place in the pool.
    pub(super) id: u64,
    pub(super) fd: OwnedFd,
    region: Region,
}

impl PoolSegment {
    fn create(id: u64, bytes: usize) -> Result<Self, PortError> {
        let fd = create_file("gimmal-pool", bytes)?;
        let region = Region::file(fd.as_fd(), bytes, Access::ReadWrite).map_err(system_io("mmap"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(system("F_ADD_SEALS"))?;
        Ok(Self { id, fd, region })
    }

    pub(super) fn bytes(&self) -> usize {
        self.region.len()
    }

    /// Where in it `loan` is, if it is.
    pub(super) fn offset_of(&self, loan: &Loan) -> Option<usize> {
        let offset = loan.as_ptr().addr().checked_sub(self.region.base().addr().get())?;
        (offset <= self.bytes() && loan.len() <= self.bytes() - offset).then_some(offset)
    }
}

/// All segments of a port.
#[derive(Debug)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: it was retired and is gone.
    segments: Vec<Option<Arc<PoolSegment>>>,
    /// For each segment: the gaps, offset to bytes. `None`: it is retired.
    gaps: Vec<Option<BTreeMap<usize, usize>>>,
    /// What is lent: bytes by ticket.
    lent: BTreeMap<u64, usize>,
}

impl Pool {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loan of `bytes`.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Loan, PortError> {
        let too_large = || PortError::Limit { field: "bytes of a loan", value: bytes as u64, limit: 1 << 47 };
        if bytes as u64 > 1 << 47 {
            return Err(too_large());
        }
        let rounded = bytes.max(1).next_multiple_of(GRAIN);
        let mut state = self.state();
        let (segment, offset) = match state.cut(rounded) {
            Some(place) => place,
            None => {
                state.grow(rounded)?;
                state.cut(rounded).ok_or_else(too_large)?
            }
        };
        let ticket = ticket(segment, offset);
        state.lent.insert(ticket, rounded);
        let memory = state.segments[segment].as_ref().map(|segment| segment.region.at(offset, bytes));
        let memory = memory.ok_or_else(too_large)?;
        // SAFETY: the bytes were cut out of a gap and return there only by `give_back`; they came zeroed from the kernel;
        // the segment stays mapped while something in it is lent and the pool lives, which the loan keeps.
        Ok(unsafe { Loan::new(memory, bytes, ticket, Arc::clone(self) as Arc<dyn LoanHome>) })
    }

    /// Adds the segments that are new to `known`.
    pub(super) fn segments_after(&self, known: &mut Vec<Weak<PoolSegment>>) {
        let state = self.state();
        let weak =
            |segment: &Option<Arc<PoolSegment>>| segment.as_ref().map(Arc::downgrade).unwrap_or_default();
        known.extend(state.segments.iter().skip(known.len()).map(weak));
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.segments.iter().flatten().count(), state.lent.len())
    }
}

impl LoanHome for Pool {
    fn give_back(&self, ticket: u64) {
        self.state().give_back(ticket);
    }

    fn set_aside(&self, ticket: u64) {
        self.state().set_aside(ticket);
    }
}

impl State {
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

    fn grow(&mut self, bytes: usize) -> Result<(), PortError> {
        let bytes = bytes.max(POOL_SEGMENT_BYTES).next_power_of_two();
        let segment = PoolSegment::create(self.segments.len() as u64, bytes)?;
        self.segments.push(Some(Arc::new(segment)));
        self.gaps.push(Some(BTreeMap::from([(0, bytes)])));
        Ok(())
    }

    fn give_back(&mut self, ticket: u64) {
        let Some(mut bytes) = self.lent.remove(&ticket) else { return };
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

/// Segment and offset in one number: offsets are counted in grains, so 32 bits reach 512 GiB.
fn ticket(segment: usize, offset: usize) -> u64 {
    ((segment as u64) << 32) | (offset / GRAIN) as u64
}

fn place(ticket: u64) -> (usize, usize) {
    ((ticket >> 32) as usize, (ticket & 0xffff_ffff) as usize * GRAIN)
}
