//! Bulk: pool segments are passed once to each connection, then offers name places in them.

use std::{
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::{Arc, Weak},
};

use rustix::io::Errno;

use super::{
    live::Live,
    pool::{Pool, PoolSegment},
    port::ShmPort,
    segment::{AttachError, POOL},
    slot, socket,
    theirs::{Limits, Theirs},
};
use crate::{
    BulkError, ConnId, Loan, LoanError, Offer, PortError, Refused, Violation, Waker,
    mem::{Bulk, Region, Release, moving},
    sync::prefetch::prefetch_to_read,
};

/// Pool segments that one connection may pass to us; so many of the smallest hold 16 GiB.
pub(super) const SEGMENTS: Limits = Limits {
    pieces_max: 1024,
    pieces: "pool segments",
    bytes: "bytes of pool segments",
    twice: "pool segment passed twice",
};

/// What one connection has passed, each way.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// By the place of our pool's segment: its name, if the peer has it.
    out: Vec<Option<u64>>,
    /// Names given so far.
    names: u64,
    /// The peer's segments.
    into: Theirs<Region>,
    /// Of bulk that is read, or was.
    releases: Vec<Arc<Release>>,
}

/// Releases that are used again; more bulk than that at once takes some of its own.
const RELEASES: usize = 16;
/// How many are made with the first.
const RELEASES_AT_ONCE: usize = 4;

impl Passed {
    fn release(&mut self, waker: &Waker) -> Arc<Release> {
        if let Some(known) = self.releases.iter_mut().find_map(|known| Release::reuse(known).then_some(known))
        {
            return Arc::clone(known);
        }
        let release = Release::new(Arc::clone(waker));
        if self.releases.is_empty() {
            // The next request may be here before this one's end is told: rarely, and then nothing is allocated for it.
            self.releases.extend((1..RELEASES_AT_ONCE).map(|_| Release::new(Arc::clone(waker))));
        }
        if self.releases.len() < RELEASES {
            self.releases.push(Arc::clone(&release));
        }
        release
    }
}

/// The pool's segments that this port has met, so that an offer takes no lock.
#[derive(Debug, Default)]
pub(super) struct Known(Vec<Weak<PoolSegment>>);

impl Known {
    /// Where `loan` is in `pool`.
    fn place(&mut self, pool: &Pool, loan: &Loan) -> Option<(Arc<PoolSegment>, usize)> {
        let index = usize::try_from(loan.ticket() >> 32).ok()?;
        if index >= self.0.len() {
            pool.segments_after(&mut self.0);
        }
        let segment = self.0.get(index)?.upgrade()?;
        let offset = segment.offset_of(loan)?;
        Some((segment, offset))
    }
}

impl ShmPort {
    /// What `offer` names, or why there is nothing: known at once, as the bytes stay where they are.
    pub(super) fn look_up(&mut self, conn: ConnId, offer: Offer) -> Result<Result<Bulk, BulkError>, Refused> {
        let config = self.gate.config();
        let (limit, piece_bytes) = (config.bulk_bytes_max, u64::from(config.bulk_piece_bytes));
        let live = self.live(conn).ok_or(Refused::Closed)?;
        if live.negotiated.initiator_depth.granted == 0 {
            return Err(Refused::NoReads);
        }
        if offer.len > limit {
            let in_words = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(Refused::TooLarge { bytes: in_words(offer.len), limit: in_words(limit) });
        }
        if live.passed.into.find(offer.key).is_none() {
            // It was sent before the offer, so it is there.
            self.read_socket_until(conn, |live| live.passed.into.find(offer.key).is_some());
        }
        let (live, counters) = slot::live(&mut self.slots, conn).ok_or(Refused::Closed)?;
        if live.is_mirrored() {
            let found = live.bulk_bytes(offer);
            let bulk = found.and_then(|(region, offset, len)| copied(&region, offset, len));
            if bulk.is_ok() {
                counters.reads += offer.len.div_ceil(piece_bytes);
                counters.read_bytes += offer.len;
            }
            return Ok(bulk);
        }
        let result = live.bulk(offer, self.gate.waker());
        if result.is_ok() {
            counters.in_place_bytes += offer.len;
        }
        Ok(result)
    }
}

/// A copy of bulk that a peer may change while it is read.
fn copied(region: &Region, offset: usize, len: usize) -> Result<Bulk, BulkError> {
    let mut bytes = Vec::new();
    let lack =
        |_| PortError::System { step: "memory for a copy of bulk", errno: Errno::NOMEM.raw_os_error() };
    bytes.try_reserve_exact(len).map_err(|error| LoanError::from(lack(error)))?;
    if let Some(to) = NonNull::new(bytes.as_mut_ptr()) {
        // SAFETY: `at` checks the range of a region that is mapped read-only and written by another process; the capacity
        // was reserved above, and nobody else knows it.
        unsafe { moving::copy(region.at(offset, len), to, len) };
    }
    // SAFETY: as many were reserved and written.
    unsafe { bytes.set_len(len) };
    Ok(Bulk::on_heap(bytes.into_boxed_slice()))
}

impl Live {
    /// Describes `loan`; passes its segment first when the peer has not got it.
    pub(super) fn offer(&mut self, known: &mut Known, pool: &Pool, loan: &Loan) -> Result<Offer, Refused> {
        if self.ending.is_some() {
            return Err(Refused::Closed);
        }
        if self.negotiated.responder_resources.granted == 0 {
            return Err(Refused::NoReads);
        }
        let (segment, offset) = known.place(pool, loan).ok_or(Refused::Foreign)?;
        let index = usize::try_from(segment.id).map_err(|_| Refused::Foreign)?;
        let key = match self.passed.out.get(index) {
            Some(Some(key)) => *key,
            _ => self.pass(index, &segment)?,
        };
        Ok(Offer { address: offset as u64, key, len: loan.len() as u64 })
    }

    /// Passes our pool's segment at `index` to the peer. Its name.
    #[cold]
    fn pass(&mut self, index: usize, segment: &PoolSegment) -> Result<u64, Refused> {
        let (name, bytes) = (self.passed.names, segment.bytes() as u64);
        socket::send_pool(&self.end.socket, name, bytes, segment.fd.as_fd()).map_err(
            |errno| match errno {
                // The peer has not read its socket, or too many descriptors are in flight.
                Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS => Refused::Full,
                _ => Refused::Closed,
            },
        )?;
        let out = &mut self.passed.out;
        out.resize(out.len().max(index + 1), None);
        out[index] = Some(name);
        self.passed.names += 1;
        Ok(name)
    }

    /// Checks what the peer offered against what it passed: the segment, offset and length.
    fn bulk_bytes(&self, offer: Offer) -> Result<(Arc<Region>, usize, usize), BulkError> {
        let bad = || BulkError::Offer(Violation::Malformed { what: "bulk offer" });
        let region = self.passed.into.find(offer.key).ok_or_else(bad)?;
        let len = usize::try_from(offer.len).map_err(|_| bad())?;
        let offset = usize::try_from(offer.address).map_err(|_| bad())?;
        if len > region.len() || offset > region.len() - len {
            return Err(bad());
        }
        Ok((Arc::clone(region), offset, len))
    }

    /// What the peer offered, to be read where it is.
    pub(super) fn bulk(&mut self, offer: Offer, waker: &Waker) -> Result<Bulk, BulkError> {
        let (region, offset, len) = self.bulk_bytes(offer)?;
        // It is read as soon as the engine has handed it out.
        prefetch_to_read(region.at(offset, len));
        let release = self.passed.release(waker);
        // SAFETY: the bytes are inside a segment that this process maps read-only; the peer, of the same user, is
        // trusted to leave them alone until it hears of the release.
        Ok(unsafe { Bulk::in_place(region, offset, len, release) })
    }

    /// Takes a segment that the peer passed, where bulk was agreed on.
    pub(super) fn take_segment(
        &mut self,
        name: u64,
        bytes: u64,
        fd: BorrowedFd<'_>,
    ) -> Result<(), AttachError> {
        if self.negotiated.initiator_depth.granted == 0 {
            return Err(AttachError::Peer(Violation::Malformed { what: "pool segment without bulk" }));
        }
        self.passed.into.take((name, bytes, fd), &POOL, &SEGMENTS, |region| region)
    }

    /// Pieces of the peer's memory that are mapped beside its ring, and their bytes.
    pub(super) fn mapped(&self) -> (u64, u64) {
        let (segments, exposed) = (self.passed.into.size(), self.shown.into.size());
        (segments.0 + exposed.0, segments.1 + exposed.1)
    }
}
