//! Memory for bulk: sealed segments of 16 MiB and more, cut first-fit, passed to a peer when it is first offered
//! something in them.
//!
//! ```text
//!  made ─► cut and lent ◄──► unused ─── 5 to 10 s, and another 16 MiB are kept ──► gone: peers are told, and unmap it
//!                └── a connection ended while its peer read a loan ─► retired ─ last loan ─► gone
//! ```
//! Several peers may map a segment. A piece that was given back stays as it was cut, for the next loan of its size, until
//! memory is swept. So a caller that lends one buffer after another of the same size looks for no gap.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{fs::MemfdFlags, io::Errno};

use super::segment::{SEALS, create_hollow};
use crate::{
    PortError, Time,
    kernel::{fill, mapping, system},
    mem::{
        Access, Account, Debit, Loan, LoanHome, MemoryNode, NotHuge, Pages, PoolMemory, Region, departing,
        pages::{HUGE_PAGE_BYTES, Setting, is_large, large_size},
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

/// Pieces that wait, as they were cut, for a loan of their size: a stream's window of them, and a few.
const RECENT: usize = 72;

/// From one sweep to the next. A segment of which nothing was lent in between goes, so memory is kept for twice as long at
/// most.
pub(super) const SWEEP: Duration = Duration::from_secs(5);
/// Unused bytes that stay: one segment, so that a port with little bulk makes no memory again and again.
const KEPT_BYTES: u64 = POOL_SEGMENT_BYTES as u64;
/// Bytes of a segment for a loan of `bytes`.
fn segment_bytes(bytes: usize) -> usize {
    large_size(bytes.max(POOL_SEGMENT_BYTES))
}

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
    /// Of all segments.
    bytes: AtomicU64,
    /// Segments that are gone since the start.
    gone: AtomicU64,
    state: Mutex<State>,
    /// Held while a segment of the usual size is made.
    growth: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// By number. Numbers go round, and those in use are skipped.
    parts: BTreeMap<u32, Part>,
    next: u32,
    /// What is lent, and what is recent, by ticket.
    lent: BTreeMap<u64, Lent>,
    /// What was given back and has not returned to the gaps: ticket and bytes, the last one last.
    recent: Vec<(u64, usize)>,
}

#[derive(Debug)]
struct Lent {
    bytes: usize,
    /// Of the connection that has it; `None` while it is recent.
    debit: Option<Debit>,
}

/// A segment, and what of it is free.
#[derive(Debug)]
struct Part {
    segment: Arc<PoolSegment>,
    /// Offset to bytes. `None`: it is retired, and nothing is cut any more.
    gaps: Option<BTreeMap<usize, usize>>,
    /// Something was lent since the last sweep.
    was_used: bool,
}

impl Pool {
    pub(super) fn new(wants_huge: bool, node: MemoryNode) -> Arc<Self> {
        let (bytes, gone) = (AtomicU64::new(0), AtomicU64::new(0));
        let (state, growth) = (Mutex::default(), Mutex::default());
        Arc::new(Self { wants_huge, node, bytes, gone, state, growth })
    }

    /// A loan of `bytes` for the connection of `account`.
    pub(super) fn allocate(
        self: &Arc<Self>,
        account: &Arc<Account>,
        bytes: usize,
    ) -> Result<Loan, PortError> {
        let limit = SEGMENT_BYTES_MAX as u64;
        let too_large = || PortError::Limit { field: "bytes of a loan", value: bytes as u64, limit };
        if bytes > SEGMENT_BYTES_MAX {
            return Err(too_large());
        }
        let rounded = bytes.max(1).next_multiple_of(GRAIN);
        let debit = account.take(rounded as u64)?;
        let mut state = lock(&self.state);
        let mut taken = state.take(rounded);
        if taken.is_none() {
            drop(state);
            let (locked, grown) = self.grow(rounded);
            state = locked;
            taken = grown?;
        }
        let ticket = taken.ok_or_else(too_large)?;
        if let Some(lent) = state.lent.get_mut(&ticket) {
            lent.debit = Some(debit);
        }
        let (number, offset) = place(ticket);
        let part = state.parts.get_mut(&number).ok_or_else(too_large)?;
        part.was_used = true;
        let memory = part.segment.region.at(offset, bytes);
        // SAFETY: the bytes were cut out of a gap and return there only by `give_back`; they came zeroed from the kernel;
        // the segment stays mapped while something in it is lent and the pool lives, which the loan keeps.
        Ok(unsafe { Loan::new(memory, bytes, ticket, Arc::clone(self) as Arc<dyn LoanHome>) })
    }

    /// Takes a piece of `bytes` out of a segment that it makes. The state is not locked meanwhile: pages take long, and a
    /// worker that takes a loan back must not wait for them.
    #[cold]
    fn grow(&self, bytes: usize) -> (MutexGuard<'_, State>, Result<Option<u64>, PortError>) {
        let size = segment_bytes(bytes);
        // Threads that want small pieces make one segment together.
        let _alone = (size == POOL_SEGMENT_BYTES).then(|| lock(&self.growth));
        let mut state = lock(&self.state);
        if let Some(ticket) = state.take(bytes) {
            return (state, Ok(Some(ticket)));
        }
        drop(state);
        let made = self.node.place(|| PoolSegment::create(size, self.wants_huge));
        state = lock(&self.state);
        let taken = made.map(|segment| {
            self.bytes.fetch_add(segment.bytes() as u64, Ordering::Relaxed);
            state.add(segment);
            state.take(bytes)
        });
        (state, taken)
    }

    /// The segment of that number.
    pub(super) fn segment(&self, number: u32) -> Option<Arc<PoolSegment>> {
        lock(&self.state).parts.get(&number).map(|part| Arc::clone(&part.segment))
    }

    /// What there is now.
    pub(super) fn memory(&self) -> Vec<PoolMemory> {
        let piece = |part: &Part| PoolMemory { bytes: part.segment.bytes(), pages: part.segment.pages };
        lock(&self.state).parts.values().map(piece).collect()
    }

    /// How many segments are gone since the start.
    pub(super) fn gone(&self) -> u64 {
        // SYNC POINT: segments gone.
        self.gone.load(Ordering::Acquire)
    }

    /// When to sweep after a sweep at `swept`: never while there is no more than what is kept.
    pub(super) fn sweep_at(&self, swept: Time) -> Time {
        let is_small = self.bytes.load(Ordering::Relaxed) <= KEPT_BYTES;
        if is_small { Time::NEVER } else { swept.plus(SWEEP) }
    }

    /// Lets go of segments of which nothing was lent since the last sweep.
    pub(super) fn sweep(&self) {
        let unused = lock(&self.state).sweep();
        unused.into_iter().for_each(|part| self.let_go(part));
    }

    /// Unmaps a segment. The state is not locked: it takes long.
    fn let_go(&self, part: Part) {
        let bytes = part.segment.bytes();
        tracing::debug!(bytes, "a pool segment less");
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        // SYNC POINT: segments gone. Whoever sees this finds the segment taken out.
        self.gone.fetch_add(1, Ordering::Release);
        departing::drop_large(bytes, part);
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.parts.len(), state.lent.len() - state.recent.len())
    }
}

impl LoanHome for Pool {
    fn give_back(&self, ticket: u64) {
        let gone = lock(&self.state).give_back(ticket);
        gone.into_iter().for_each(|part| self.let_go(part));
    }

    fn set_aside(&self, ticket: u64) {
        let gone = lock(&self.state).set_aside(ticket);
        gone.into_iter().for_each(|part| self.let_go(part));
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
        let (number, offset) = place?;
        let ticket = ticket(number, offset);
        self.lent.insert(ticket, Lent { bytes, debit: None });
        Some(ticket)
    }

    /// The first gap that fits.
    fn cut(&mut self, bytes: usize) -> Option<(u32, usize)> {
        for (number, part) in &mut self.parts {
            let Some(gaps) = &mut part.gaps else { continue };
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
            return Some((*number, offset));
        }
        None
    }

    /// Adds a segment of which nothing is lent.
    fn add(&mut self, segment: PoolSegment) {
        let bytes = segment.bytes();
        tracing::debug!(bytes, pages = %segment.pages, "a pool segment more");
        while self.parts.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let gaps = Some(BTreeMap::from([(0, bytes)]));
        self.parts.insert(self.next, Part { segment: Arc::new(segment), gaps, was_used: true });
        self.next = self.next.wrapping_add(1);
    }

    /// Takes out what was used by nobody since this was last called, except for what is kept.
    fn sweep(&mut self) -> Vec<Part> {
        self.forget_recent();
        let (mut kept, mut unused) = (0, Vec::new());
        for (&number, part) in &mut self.parts {
            let bytes = part.segment.bytes();
            let is_free = part.gaps.as_ref().is_some_and(|gaps| gaps.get(&0) == Some(&bytes));
            if std::mem::take(&mut part.was_used) || !is_free {
                continue;
            }
            if kept + bytes as u64 <= KEPT_BYTES {
                kept += bytes as u64;
            } else {
                unused.push(number);
            }
        }
        unused.iter().filter_map(|number| self.parts.remove(number)).collect()
    }

    /// Takes a piece back. A retired segment whose last loan it was.
    fn give_back(&mut self, ticket: u64) -> Option<Part> {
        let lent = self.lent.get_mut(&ticket)?;
        let bytes = lent.bytes;
        lent.debit = None;
        let (number, offset) = place(ticket);
        let part = self.parts.get(&number)?;
        if part.gaps.is_none() {
            self.lent.remove(&ticket);
            return self.forget(number);
        }
        // Most likely this is the next loan, and its reader has its first line.
        prefetch_to_write(part.segment.region.at(offset, 1));
        if self.recent.len() == RECENT {
            let (oldest, bytes) = self.recent.remove(0);
            self.join(oldest, bytes);
        }
        self.recent.push((ticket, bytes));
        None
    }

    fn forget_recent(&mut self) {
        for (ticket, bytes) in std::mem::take(&mut self.recent) {
            self.join(ticket, bytes);
        }
    }

    /// Joins what is not lent any more to the gaps around it. No segment is retired while something recent lies in it.
    fn join(&mut self, ticket: u64, mut bytes: usize) {
        self.lent.remove(&ticket);
        let (number, mut start) = place(ticket);
        let Some(gaps) = self.parts.get_mut(&number).and_then(|part| part.gaps.as_mut()) else { return };
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

    /// Retires the segment: the rest of it is given up with what may still be read, and not kept apart for ever. The
    /// segment, if nothing else of it is lent.
    fn set_aside(&mut self, ticket: u64) -> Option<Part> {
        self.forget_recent();
        self.lent.remove(&ticket)?;
        let (number, _) = place(ticket);
        self.parts.get_mut(&number)?.gaps = None;
        self.forget(number)
    }

    /// Takes out a retired segment in which nothing is lent any more.
    fn forget(&mut self, number: u32) -> Option<Part> {
        let (first, last) = (ticket(number, 0), ticket(number, SEGMENT_BYTES_MAX - GRAIN));
        let is_unused = self.lent.range(first..=last).next().is_none();
        is_unused.then(|| self.parts.remove(&number)).flatten()
    }
}

/// A ticket is the offset of a loan in its segment, in grains, and above it the segment's number.
type Grains = Field<0, 32>;
type Number = Field<{ Grains::END }, 32>;

fn ticket(number: u32, offset: usize) -> u64 {
    let grains = Grains::put((offset / GRAIN) as u64).expect("a segment has at most SEGMENT_BYTES_MAX");
    grains | Number::turn(number.into())
}

/// The number of the segment that a loan of a pool lies in, and its offset there.
pub(super) fn place(ticket: u64) -> (u32, usize) {
    (Number::get_u32(ticket), Grains::get_u32(ticket) as usize * GRAIN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_every_grain_of_the_largest_segment() {
        let last = (SEGMENT_BYTES_MAX - 1) / GRAIN * GRAIN;
        for (segment, offset) in [(0, 0), (0, last), (1, 0), (3, last), (u32::MAX, last)] {
            assert_eq!(place(ticket(segment, offset)), (segment, offset));
        }
        assert!(ticket(0, last) < ticket(1, 0), "the loans of a segment lie together");
        assert!(
            std::panic::catch_unwind(|| ticket(0, SEGMENT_BYTES_MAX)).is_err(),
            "it would be of segment 1"
        );
    }

    fn pool() -> (Arc<Pool>, Arc<Account>) {
        (Pool::new(false, MemoryNode::of_this_thread()), Account::new(u64::MAX))
    }

    #[test]
    fn a_loan_above_the_largest_segment_is_refused_by_its_limit() {
        let (value, limit) = (SEGMENT_BYTES_MAX as u64 + 1, SEGMENT_BYTES_MAX as u64);
        let (pool, account) = pool();
        let refused = pool.allocate(&account, SEGMENT_BYTES_MAX + 1).map(|_| ());
        assert_eq!(refused, Err(PortError::Limit { field: "bytes of a loan", value, limit }));
    }

    #[test]
    fn no_segment_wastes_more_than_an_eighth() {
        assert_eq!(segment_bytes(1), POOL_SEGMENT_BYTES);
        assert_eq!(segment_bytes(33 << 30), 36 << 30);
        for power in 24..38 {
            for bytes in [(1 << power) - 128, 1 << power, (1 << power) + 128, 3 << (power - 1)] {
                let segment = segment_bytes(bytes);
                assert!(segment >= bytes && segment <= SEGMENT_BYTES_MAX);
                assert!(segment.is_multiple_of(HUGE_PAGE_BYTES));
                assert!(segment <= POOL_SEGMENT_BYTES.max(bytes + bytes / 8), "{bytes} in {segment}");
            }
        }
        assert_eq!(segment_bytes(SEGMENT_BYTES_MAX), SEGMENT_BYTES_MAX);
    }

    #[test]
    fn unused_memory_goes_at_the_second_sweep() {
        let ((pool, account), large) = (pool(), 40 << 20);
        assert_eq!(pool.sweep_at(Time(7)), Time::NEVER, "there is nothing to give back");
        let (small, loan) = (pool.allocate(&account, 100).unwrap(), pool.allocate(&account, large).unwrap());
        assert_eq!(pool.sweep_at(Time(7)), Time(7).plus(SWEEP));
        for _ in 0..3 {
            pool.sweep();
        }
        assert_eq!((pool.counts(), pool.gone()), ((2, 2), 0), "what is lent stays");
        // It was unused for less than the time between two sweeps.
        drop(loan);
        drop(pool.allocate(&account, large).unwrap());
        pool.sweep();
        assert_eq!(pool.counts(), (2, 1));
        pool.sweep();
        assert_eq!((pool.counts(), pool.gone()), ((1, 1), 1));
        drop(small);
        for _ in 0..3 {
            pool.sweep();
        }
        assert_eq!(pool.counts(), (1, 0), "one segment is kept");
        assert_eq!(pool.sweep_at(Time(7)), Time::NEVER);
        // Numbers are not used again at once, so nobody takes a new segment for an old one.
        let again = pool.allocate(&account, large).unwrap();
        assert_eq!(place(again.ticket()).0, 2);
    }
}
