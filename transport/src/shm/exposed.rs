//! One-sided operations: exposed memory is a segment of its own, which the peer maps to write when it is first
//! shown, and the requester makes an operation itself, at once.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::io::Errno;

use super::{
    live::Live,
    port::ShmPort,
    segment::{AttachError, EXPOSED, EXPOSED_SEALS, create_file},
    slot, socket,
    theirs::{Limits, Theirs},
};
use crate::{
    AccessError, ConnId, Event, Offer, PortError, Remote, Violation,
    kernel::{mapping, system},
    mem::{
        Access, Exposed, OneSided, Region, Words,
        exposed::{ExposedHome, fresh_key},
    },
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
    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Exposure>>> {
        // A table of files is whole after any panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        self.table().insert(key, Arc::new(Exposure { fd, bytes: bytes as u64 }));
        Ok(Exposed::new(words, key, Arc::clone(self) as Arc<dyn ExposedHome>))
    }

    fn find(&self, key: u64) -> Option<Arc<Exposure>> {
        self.table().get(&key).map(Arc::clone)
    }
}

impl ExposedHome for Exposures {
    fn withdraw(&self, key: u64) {
        let gone = self.table().remove(&key);
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
    pub(super) into: Theirs<Words>,
}

impl ShmPort {
    /// The steps of [`Port::show`](crate::Port::show).
    pub(super) fn show_exposed(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        let exposures = Arc::clone(self.gate.exposures());
        let live = self.live(conn).filter(|live| live.ending.is_none()).ok_or(AccessError::Closed)?;
        let key = exposed.key();
        let known = exposures.find(key).ok_or(AccessError::NotExposed)?;
        // Who was granted no reads makes no operation, and takes no memory for one.
        let may_use = live.negotiated.responder_resources.granted > 0;
        let shown = &mut live.shown.out;
        if may_use && !shown.contains(&key) {
            if shown.len() == KNOWN_MAX {
                shown.retain(|key| exposures.find(*key).is_some());
            }
            if shown.len() == KNOWN_MAX {
                return Err(AccessError::Full);
            }
            socket::send_exposed(&live.end.socket, key, known.bytes, known.fd.as_fd()).map_err(|errno| {
                match errno {
                    // The peer has not read its socket, or too many descriptors are in flight.
                    Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS => AccessError::Full,
                    _ => AccessError::Closed,
                }
            })?;
            shown.push(key);
        }
        Ok(Remote(Offer { address: 0, key, len: known.bytes }))
    }

    /// The steps of [`Port::access`](crate::Port::access): it is over when this returns, and told by a poll.
    pub(super) fn make_access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        let Some(live) = self.live(conn) else { return Err((AccessError::Closed, op)) };
        if live.negotiated.initiator_depth.granted == 0 {
            return Err((AccessError::Off, op));
        }
        if let Err(error) = op.check(&remote, live.negotiated.atomics) {
            return Err((error, op));
        }
        let key = remote.0.key;
        if live.shown.into.find(key).is_none() {
            // It was sent before the peer could tell of it, so it is there.
            self.read_socket_until(conn, |live| live.shown.into.find(key).is_some());
        }
        let Some((live, counters)) = slot::live(&mut self.slots, conn) else {
            return Err((AccessError::Closed, op));
        };
        let result = match live.shown.into.find(key) {
            Some(words) => op.perform(words).map_err(|(error, _)| error),
            None => Err(AccessError::NotExposed),
        };
        counters.accesses += u64::from(result.is_ok());
        self.news.push_back(Event::Accessed { conn, token, result });
        Ok(())
    }
}

impl Live {
    /// Takes memory that the peer exposes, where one-sided operations were agreed on.
    pub(super) fn take_exposed(
        &mut self,
        key: u64,
        bytes: u64,
        fd: BorrowedFd<'_>,
    ) -> Result<(), AttachError> {
        let bad = |what| AttachError::Peer(Violation::Malformed { what });
        if self.negotiated.initiator_depth.granted == 0 {
            return Err(bad("exposed memory without one-sided operations"));
        }
        let into = &mut self.shown.into;
        if into.is_full(&PIECES) {
            into.retain(|words| !words.is_withdrawn());
        }
        let size = usize::try_from(bytes).ok().filter(|_| bytes <= BYTES_MAX);
        let size = size.ok_or_else(|| bad("exposed memory of an impossible size"))?;
        let mapped = Words::mapped_bytes(size) as u64;
        into.take((key, mapped, fd), &EXPOSED, &PIECES, |region| Words::new(region, size))
    }
}
