//! One-sided operations: exposed memory is a segment of its own, which the peer maps to write when it is first
//! shown, and the requester makes an operation itself, at once.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use super::{
    segment::{AttachError, EXPOSED, EXPOSED_SEALS, create_file},
    socket,
    theirs::{Limits, Theirs},
};
use crate::{
    AccessError, Offer, PortError, Remote, Violation,
    kernel::{mapping, system},
    mem::{
        Access, Accessed, Exposed, OneSided, Region, Words, departing,
        exposed::{ExposedHome, fresh_key},
    },
    sync::lock::lock,
};

/// What the kernel shows of its memory.
const NAME: &str = "gimmal-exposed";
/// Pieces of exposed memory that one connection knows at a time. Each costs its owner a descriptor.
pub(super) const KNOWN_MAX: usize = 256;
/// What a peer may pass.
pub(super) const PIECES: Limits = Limits {
    pieces_max: KNOWN_MAX,
    pieces: "pieces of exposed memory",
    bytes: "bytes of exposed memory",
    twice: "exposed memory passed twice",
};
/// Bytes of the largest.
const BYTES_MAX: u64 = 1 << 47;

/// What a port exposes.
#[derive(Debug, Default)]
pub(super) struct Exposures {
    table: Mutex<BTreeMap<u64, Arc<Exposure>>>,
}

#[derive(Debug)]
struct Exposure {
    fd: OwnedFd,
    bytes: u64,
}

impl Exposures {
    pub(super) fn expose(self: &Arc<Self>, bytes: usize) -> Result<Exposed, PortError> {
        if bytes as u64 > BYTES_MAX {
            return Err(PortError::Limit {
                field: "bytes of exposed memory",
                value: bytes as u64,
                limit: BYTES_MAX,
            });
        }
        let mapped = Words::mapped_bytes(bytes);
        let fd = create_file(NAME, mapped)?;
        rustix::fs::fcntl_add_seals(&fd, EXPOSED_SEALS).map_err(system("F_ADD_SEALS"))?;
        let region = Region::file(fd.as_fd(), mapped, Access::ReadWrite).map_err(|error| mapping(&error))?;
        let words = Arc::new(Words::new(region, bytes));
        let key = fresh_key();
        lock(&self.table).insert(key, Arc::new(Exposure { fd, bytes: bytes as u64 }));
        Ok(Exposed::new(words, key, Arc::clone(self) as Arc<dyn ExposedHome>))
    }

    fn find(&self, key: u64) -> Option<Arc<Exposure>> {
        lock(&self.table).get(&key).map(Arc::clone)
    }
}

impl ExposedHome for Exposures {
    fn withdraw(&self, key: u64) {
        let gone = lock(&self.table).remove(&key);
        // Closing a file takes long: not under the lock.
        drop(gone);
    }
}

/// What one connection knows of exposed memory, each way.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Of ours: what the peer has.
    out: Vec<u64>,
    /// Of the peer's.
    into: Theirs<Words>,
}

impl Shown {
    /// Names `exposed` for the peer; passes it over `socket` first when a peer that `may_use` it has not got it.
    pub(super) fn show(
        &mut self,
        socket: &OwnedFd,
        exposures: &Exposures,
        exposed: &Exposed,
        may_use: bool,
    ) -> Result<Remote, AccessError> {
        let key = exposed.key();
        let known = exposures.find(key).ok_or(AccessError::NotExposed)?;
        if may_use && !self.out.contains(&key) {
            if self.out.len() == KNOWN_MAX {
                self.out.retain(|key| exposures.find(*key).is_some());
            }
            if self.out.len() == KNOWN_MAX {
                return Err(AccessError::Full);
            }
            let sent = socket::send_memory(socket, &socket::EXPOSED, (key, known.bytes), known.fd.as_fd());
            let unsent = |errno| if socket::is_full(errno) { AccessError::Full } else { AccessError::Closed };
            sent.map_err(unsent)?;
            self.out.push(key);
        }
        Ok(Remote(Offer { address: 0, key, len: known.bytes }))
    }

    /// Whether the peer passed what `remote` names.
    pub(super) fn has(&self, remote: &Remote) -> bool {
        self.into.find(remote.key()).is_some()
    }

    /// Performs `op` on the peer's memory.
    pub(super) fn access(&self, remote: &Remote, op: OneSided) -> Result<Accessed, AccessError> {
        let words = self.into.find(remote.key()).ok_or(AccessError::NotExposed)?;
        op.perform(words).map_err(|(error, _)| error)
    }

    /// Takes memory that the peer exposes: its name, bytes and file.
    pub(super) fn take(&mut self, (key, bytes, fd): (u64, u64, BorrowedFd<'_>)) -> Result<(), AttachError> {
        if self.into.is_full(&PIECES) {
            let (gone, bytes) = self.into.take_out(|words| !words.is_withdrawn());
            departing::drop_large(bytes, gone);
        }
        let bad = Violation::Malformed { what: "exposed memory of an impossible size" };
        let size = usize::try_from(bytes).ok().filter(|_| bytes <= BYTES_MAX);
        let size = size.ok_or(AttachError::Peer(bad))?;
        let mapped = Words::mapped_bytes(size) as u64;
        self.into.take((key, mapped, fd), &EXPOSED, &PIECES, |region| Words::new(region, size))
    }

    /// How many pieces of the peer's memory are mapped, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        self.into.size()
    }
}
