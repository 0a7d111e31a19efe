//! Ring and slab memory that connections of a port left behind, kept for its next ones.
//!
//! Making a ring (a memory file, two mappings, its pages) costs more than registering it. What lies here is registered
//! nowhere: each connection has registrations of its own, so a key ends with the connection it was granted to.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
};

use rustix::fs::MemfdFlags;

use crate::{
    PortError,
    mem::{Access, Region},
    verbs::gate::lock,
};

/// Memory that is kept although nobody uses it, bytes for each port.
const KEPT_BYTES: usize = 16 << 20;

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

/// Memory and what it is.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) region: Region,
    pub(crate) shape: Shape,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    rooms: Vec<Room>,
    bytes: usize,
}

impl Rings {
    /// Zeroed memory of this shape.
    pub(crate) fn take(&self, shape: Shape) -> Result<Room, PortError> {
        let kept = {
            let mut idle = lock(&self.idle);
            let at = idle.rooms.iter().rposition(|room| room.shape == shape);
            at.map(|at| {
                idle.bytes -= shape.bytes();
                idle.rooms.swap_remove(at)
            })
        };
        let Some(mut room) = kept else { return Ok(Room { region: shape.make()?, shape }) };
        // One peer's bytes must not turn up in what another one sends or is sent.
        // SAFETY: it was given back, so no device and nobody here uses it any more.
        unsafe { room.region.clear(shape.bytes()) };
        Ok(room)
    }

    /// Keeps it, if there is not too much already.
    ///
    /// # Safety
    /// The queue pair and the registrations that knew this memory are gone, and nothing points into it.
    pub(crate) unsafe fn give_back(&self, room: Room) {
        let mut idle = lock(&self.idle);
        if idle.bytes + room.shape.bytes() <= KEPT_BYTES {
            idle.bytes += room.shape.bytes();
            idle.rooms.push(room);
        } else {
            drop(idle);
            // Unmapping takes long: not under the lock.
            drop(room);
        }
    }
}

fn ring(bytes: usize) -> Result<Region, PortError> {
    let fd = memory_file("gimmal-ring", bytes)?;
    Region::ring(fd.as_fd(), 0, bytes, Access::ReadWrite).map_err(|error| system("mmap", &error))
}

/// A file's pages, not private ones: held frames are read through a second mapping of them.
fn slab(bytes: usize) -> Result<Region, PortError> {
    let fd = memory_file("gimmal-slots", bytes)?;
    Region::file(fd.as_fd(), bytes, Access::ReadWrite).map_err(|error| system("mmap", &error))
}

fn memory_file(name: &str, bytes: usize) -> Result<OwnedFd, PortError> {
    let failed =
        |step| move |errno: rustix::io::Errno| PortError::System { step, errno: errno.raw_os_error() };
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(failed("memfd_create"))?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(failed("ftruncate"))?;
    Ok(fd)
}

pub(crate) fn system(step: &'static str, error: &std::io::Error) -> PortError {
    PortError::System { step, errno: error.raw_os_error().unwrap_or(0) }
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
        let room = rings.take(shape).unwrap();
        let base = room.region.base();
        // SAFETY: inside the mapping, which is ours.
        unsafe { room.region.at(8191, 1).write(7) };
        give_back(&rings, room);
        let slab = rings.take(Shape::Slab { bytes: 8192 }).unwrap();
        assert_ne!(slab.region.base(), base, "another shape");
        let again = rings.take(shape).unwrap();
        assert_eq!((again.region.base(), again.region.len()), (base, 2 * 8192));
        // SAFETY: as above; the second view.
        assert_eq!(unsafe { again.region.at(2 * 8192 - 1, 1).read() }, 0);
        assert_ne!(rings.take(shape).unwrap().region.base(), base, "it is in use");
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let rings = Rings::default();
        let shape = Shape::Slab { bytes: KEPT_BYTES / 2 };
        let rooms: Vec<Room> = (0..3).map(|_| rings.take(shape).unwrap()).collect();
        rooms.into_iter().for_each(|room| give_back(&rings, room));
        assert_eq!(lock(&rings.idle).rooms.len(), 2);
        assert_eq!(lock(&rings.idle).bytes, KEPT_BYTES);
    }
}
