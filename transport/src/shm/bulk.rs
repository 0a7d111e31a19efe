//! Bulk: pool segments are passed once to each connection, then offers name places in them.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::io::Errno;

use super::{
    pool::{Pool, place},
    segment::{AttachError, POOL},
    socket,
    theirs::{Limits, Theirs},
};
use crate::{
    BulkError, Loan, LoanError, Offer, PortError, Refused, Violation, Waker,
    mem::{Account, Bulk, Region, Release, departing, moving},
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
    /// Segments of our pool that the peer has, number and name, in the order of their numbers.
    out: Vec<(u32, u64)>,
    /// Segments of our pool that were gone when `out` was last looked through.
    gone: u64,
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
    /// Describes `loan` of `pool`; passes its segment over `socket` first when the peer has not got it.
    pub(super) fn offer(
        &mut self,
        socket: &OwnedFd,
        pool: &Arc<Pool>,
        loan: &Loan,
    ) -> Result<Offer, Refused> {
        if !loan.is_of(pool) {
            return Err(Refused::Foreign);
        }
        let (number, offset) = place(loan.ticket());
        let key = match self.known(number) {
            Ok(at) => self.out[at].1,
            Err(_) => self.pass(socket, pool, number)?,
        };
        Ok(Offer { address: offset as u64, key, len: loan.len() as u64 })
    }

    /// Finds the segment `number` in `out`, or its place there.
    fn known(&self, number: u32) -> Result<usize, usize> {
        self.out.binary_search_by_key(&number, |&(known, _)| known)
    }

    /// Passes the segment `number` of `pool` to the peer. Its name.
    #[cold]
    fn pass(&mut self, socket: &OwnedFd, pool: &Pool, number: u32) -> Result<u64, Refused> {
        let segment = pool.segment(number).ok_or(Refused::Foreign)?;
        self.tell_gone(socket, pool);
        if self.out.len() == SEGMENTS.pieces_max {
            return Err(Refused::Full);
        }
        let (name, bytes) = (self.names, segment.bytes() as u64);
        let sent = socket::send_memory(socket, &socket::POOL, (name, bytes), segment.fd.as_fd());
        sent.map_err(|errno| if socket::is_full(errno) { Refused::Full } else { Refused::Closed })?;
        let (Ok(at) | Err(at)) = self.known(number);
        self.out.insert(at, (number, name));
        self.names += 1;
        Ok(name)
    }

    /// Tells the peer which segments of `pool` are gone: it unmaps them. What finds no room on the socket is told another
    /// time. Whether all was told.
    pub(super) fn tell_gone(&mut self, socket: &OwnedFd, pool: &Pool) -> bool {
        let gone = pool.gone();
        if gone == self.gone {
            return true;
        }
        // An error other than a full socket ends the connection elsewhere.
        let is_kept = |(number, name): &(u32, u64)| {
            pool.segment(*number).is_some() || socket::send_gone(socket, *name).is_err()
        };
        self.out.retain(is_kept);
        let is_told = self.out.iter().all(|(number, _)| pool.segment(*number).is_some());
        if is_told {
            self.gone = gone;
        }
        is_told
    }

    /// Whether the peer passed what `offer` names.
    pub(super) fn has(&self, offer: &Offer) -> bool {
        self.into.find(offer.key).is_some()
    }

    /// What the peer offered: to be read where it is, or a copy that `copies` counts.
    pub(super) fn bulk(
        &mut self,
        offer: Offer,
        copies: Option<&Arc<Account>>,
        waker: &Waker,
    ) -> Result<Bulk, BulkError> {
        let bad = || BulkError::Offer(Violation::Malformed { what: "bulk offer" });
        let region = Arc::clone(self.into.find(offer.key).ok_or_else(bad)?);
        let len = usize::try_from(offer.len).map_err(|_| bad())?;
        let offset = usize::try_from(offer.address).map_err(|_| bad())?;
        if len > region.len() || offset > region.len() - len {
            return Err(bad());
        }
        if let Some(account) = copies {
            return copied(&region, offset, len, account);
        }
        // It is read as soon as the engine has handed it out.
        prefetch_to_read(region.at(offset, len));
        let release = self.release(waker);
        // SAFETY: the bytes are inside a segment that this process maps read-only; the peer, of the same user, is
        // trusted to leave them alone until it hears of the release.
        Ok(unsafe { Bulk::in_place(region, offset, len, release) })
    }

    /// Takes a segment that the peer passed: its name, bytes and file.
    pub(super) fn take(&mut self, file: (u64, u64, BorrowedFd<'_>)) -> Result<(), AttachError> {
        self.into.take(file, &POOL, &SEGMENTS, |region| region)
    }

    /// Unmaps a segment that the peer has no more.
    pub(super) fn forget(&mut self, name: u64) -> Result<(), AttachError> {
        let unknown = AttachError::Peer(Violation::Malformed { what: "pool segment that was not passed" });
        let (segment, bytes) = self.into.forget(name).ok_or(unknown)?;
        departing::drop_large(bytes, segment);
        Ok(())
    }

    /// How many of the peer's segments are mapped, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        self.into.size()
    }

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

/// A copy of bulk that a peer may change while it is read.
fn copied(region: &Region, offset: usize, len: usize, account: &Arc<Account>) -> Result<Bulk, BulkError> {
    let debit = account.take(len as u64).map_err(LoanError::from)?;
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
    Ok(Bulk::on_heap(bytes.into_boxed_slice(), debit))
}
