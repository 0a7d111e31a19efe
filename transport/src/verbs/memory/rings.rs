//! Ring and slab memory that connections of a port left behind, kept for its next ones.
//!
//! Making a ring (a memory file, two mappings, its pages) costs more than registering it. Transmit rings, whose key no
//! peer ever learns, stay registered too. What a peer wrote is registered anew: its key ends with its connection.

use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use gimmal_rdma::verbs::{Mr, Pd};
use rustix::fs::MemfdFlags;

use crate::{
    PortError,
    kernel::{mapping, memory_file},
    mem::{Access, MemoryNode, Region},
    sync::lock::lock,
    verbs::memory::purpose::Purpose,
};

/// Memory that is kept although nobody uses it, bytes for each port.
const KEPT_BYTES: usize = 16 << 20;
/// Of those, how much may stay registered: each ring's pages are pinned twice, and the limit of locked memory is shared
/// with bulk.
const KEPT_PINNED_BYTES: usize = 1 << 20;

/// What a connection receives into or sends from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Mapped twice, back to back.
    Ring {
        bytes: usize,
    },
    Slab {
        bytes: usize,
    },
}

impl Shape {
    /// What may hold something: the second view of a ring is the first.
    const fn bytes(self) -> usize {
        match self {
            Self::Ring { bytes } | Self::Slab { bytes } => bytes,
        }
    }

    fn make(self) -> Result<Region, PortError> {
        match self {
            Self::Ring { bytes } => ring(bytes),
            Self::Slab { bytes } => slab(bytes),
        }
    }
}

/// Whose memory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Transmit,
    Receive,
}

/// Memory and what it is.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) region: Region,
    pub(crate) shape: Shape,
    /// For our own device alone. Each owner of a queue pair that uses it has a share.
    pub(crate) registration: Option<Arc<Mr>>,
}

impl Room {
    /// Where it begins, as work requests and grants say it.
    pub(crate) fn address(&self) -> u64 {
        self.region.base().as_ptr().addr() as u64
    }

    /// Its registration with `pd`, made if it has none there.
    pub(crate) fn registered(&mut self, pd: &Arc<Pd>) -> Result<Arc<Mr>, PortError> {
        if let Some(known) = self.registration.as_ref().filter(|known| known.is_of(pd)) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(Mr::new(pd, &self.region, Purpose::Local.rights())?);
        self.registration = Some(Arc::clone(&new));
        Ok(new)
    }
}

/// Ring and slab memory that connections of a port left behind, kept for its next ones.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    node: MemoryNode,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    rooms: Vec<Room>,
    bytes: usize,
    pinned: usize,
}

impl Rings {
    /// On `node`.
    pub(crate) fn new(node: MemoryNode) -> Self {
        Self { node, idle: Mutex::default() }
    }

    /// Zeroed memory of this shape, if possible for the `end` that it served before: only one of them keeps its
    /// registration.
    pub(crate) fn take(&self, shape: Shape, end: End) -> Result<Room, PortError> {
        let kept = {
            let mut idle = lock(&self.idle);
            let served = |room: &Room| room.registration.is_some() == (end == End::Transmit);
            let at = idle.rooms.iter().rposition(|room| room.shape == shape && served(room));
            let at = at.or_else(|| idle.rooms.iter().rposition(|room| room.shape == shape));
            at.map(|at| {
                let room = idle.rooms.swap_remove(at);
                idle.bytes -= shape.bytes();
                idle.pinned -= if room.registration.is_some() { shape.bytes() } else { 0 };
                room
            })
        };
        let Some(mut room) = kept else {
            return Ok(Room { region: self.node.place(|| shape.make())?, shape, registration: None });
        };
        // One peer's bytes must not turn up in what another one sends or is sent.
        // SAFETY: it was given back, so no device and nobody here uses it any more.
        unsafe { room.region.clear(shape.bytes()) };
        Ok(room)
    }

    /// Keeps it, if there is not too much already.
    ///
    /// # Safety
    /// The queue pair and the registrations that knew this memory are gone, but for its own, or all work that named it has
    /// completed; and nothing points into it.
    pub(crate) unsafe fn give_back(&self, mut room: Room) {
        let bytes = room.shape.bytes();
        let mut idle = lock(&self.idle);
        // What goes takes long to unmap: not under the lock.
        let surplus = if idle.bytes + bytes > KEPT_BYTES {
            (Some(room), None)
        } else {
            let too_much = idle.pinned + bytes > KEPT_PINNED_BYTES;
            let registration = if too_much { room.registration.take() } else { None };
            idle.bytes += bytes;
            idle.pinned += if room.registration.is_some() { bytes } else { 0 };
            idle.rooms.push(room);
            (None, registration)
        };
        drop(idle);
        drop(surplus);
    }

    /// Nothing that is kept stays registered with `pd`.
    pub(crate) fn forget(&self, pd: &Arc<Pd>) {
        let mut idle = lock(&self.idle);
        let Idle { rooms, pinned, .. } = &mut *idle;
        for room in rooms {
            if room.registration.take_if(|known| known.is_of(pd)).is_some() {
                *pinned -= room.shape.bytes();
            }
        }
    }
}

fn ring(bytes: usize) -> Result<Region, PortError> {
    let fd = memory_file("gimmal-ring", bytes, MemfdFlags::empty())?;
    Region::ring(fd.as_fd(), 0, bytes, Access::ReadWrite).map_err(|error| mapping(&error))
}

/// A file's pages, not private ones: held frames are read through a second mapping of them.
pub(crate) fn slab(bytes: usize) -> Result<Region, PortError> {
    let fd = memory_file("gimmal-slots", bytes, MemfdFlags::empty())?;
    Region::file(fd.as_fd(), bytes, Access::ReadWrite).map_err(|error| mapping(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give_back(rings: &Rings, room: Room) {
        // SAFETY: no device ever knew it, and the tests keep no pointer.
        unsafe { rings.give_back(room) };
    }

    #[test]
    fn memory_is_taken_again_and_holds_nothing_of_before() {
        let rings = Rings::default();
        let shape = Shape::Ring { bytes: 8192 };
        let room = rings.take(shape, End::Receive).unwrap();
        let base = room.region.base();
        // SAFETY: inside the mapping, which is ours.
        unsafe { room.region.at(8191, 1).write(7) };
        give_back(&rings, room);
        let slab = rings.take(Shape::Slab { bytes: 8192 }, End::Receive).unwrap();
        assert_ne!(slab.region.base(), base, "another shape");
        let again = rings.take(shape, End::Receive).unwrap();
        assert_eq!((again.region.base(), again.region.len()), (base, 2 * 8192));
        // SAFETY: as above; the second view.
        assert_eq!(unsafe { again.region.at(2 * 8192 - 1, 1).read() }, 0);
        assert_ne!(rings.take(shape, End::Receive).unwrap().region.base(), base, "it is in use");
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let rings = Rings::default();
        let shape = Shape::Slab { bytes: KEPT_BYTES / 2 };
        let rooms: Vec<Room> = (0..3).map(|_| rings.take(shape, End::Receive).unwrap()).collect();
        rooms.into_iter().for_each(|room| give_back(&rings, room));
        assert_eq!(lock(&rings.idle).rooms.len(), 2);
        assert_eq!(lock(&rings.idle).bytes, KEPT_BYTES);
    }
}
