//! Which cores the workers get: near the device, one each, and away from each other's hyper-threads.
//!
//! With the cargo feature `hwloc` the machine is read by hwloc, which knows containers, offline cores and odd
//! topologies; otherwise from sysfs.

mod cpu;
#[cfg(feature = "hwloc")]
mod hwloc;
mod near;
mod placement;
#[cfg(any(test, not(feature = "hwloc")))]
mod sysfs;

pub use cpu::{Cpu, NumaNode};
pub(crate) use placement::Placed;
pub use placement::Placement;

use std::{sync::LazyLock, thread::available_parallelism};

use crate::error::PlaceError;

/// Threads that a call keeps busy which is handed to a worker: its caller's, its worker's, its server's.
const THREADS_OF_CALL: usize = 3;

/// The processors that this process may run on, to choose cores for workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpus {
    /// In the kernel's order.
    cpus: Vec<Cpu>,
}

impl Cpus {
    /// Reads the machine: sched_getaffinity(2) and sysfs, or hwloc with the feature `hwloc`. Blocks for some file reads.
    ///
    /// # Errors
    /// [`PlaceError::Unreadable`] when the system does not show its processors.
    pub fn read() -> Result<Self, PlaceError> {
        let allowed = rustix::thread::sched_getaffinity(None)
            .map_err(|errno| PlaceError::Unreadable { what: "sched_getaffinity", why: errno.to_string() })?;
        #[cfg(feature = "hwloc")]
        let cpus = hwloc::read(&allowed)?;
        #[cfg(not(feature = "hwloc"))]
        let cpus = sysfs::read(std::path::Path::new("/sys"), &allowed);
        Ok(Self { cpus })
    }

    /// Returns all processors, in the kernel's order.
    #[must_use]
    pub fn all(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns cores for `workers` workers, by their numbers: whole cores before second hyper-threads, and among them those of node
    /// `near` first.
    ///
    /// # Errors
    /// [`PlaceError::TooFew`] when there are more workers than processors: two on one would wait for each other.
    pub fn spread(&self, workers: usize, near: Option<NumaNode>) -> Result<Vec<usize>, PlaceError> {
        if workers > self.cpus.len() {
            return Err(PlaceError::TooFew { workers, cpus: self.cpus.len() });
        }
        let mut ranked: Vec<_> = self.cpus.iter().map(|cpu| (self.rank(*cpu, near), cpu.number)).collect();
        ranked.sort_unstable();
        Ok(ranked.into_iter().take(workers).map(|(_, number)| number).collect())
    }

    /// A far core of its own is worth more than the other half of a near one that works already.
    fn rank(&self, cpu: Cpu, near: Option<NumaNode>) -> (usize, bool) {
        let siblings = self.cpus.iter().filter(|other| other.core == cpu.core && other.number < cpu.number);
        (siblings.count(), near.is_some() && cpu.node != near)
    }
}

/// Processors that are known from elsewhere.
impl From<Vec<Cpu>> for Cpus {
    fn from(cpus: Vec<Cpu>) -> Self {
        Self { cpus }
    }
}

/// Whether this process has so few cores that a thread which spins may keep one from a thread that it waits for: a caller, its worker and
/// the peer's are three. Judged once.
#[must_use]
pub fn cores_are_few() -> bool {
    static FEW: LazyLock<bool> =
        LazyLock::new(|| available_parallelism().is_ok_and(|cores| cores.get() < THREADS_OF_CALL));
    *FEW
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::thread::CpuSet;

    use super::*;

    /// A set of these processors.
    pub(crate) fn set(numbers: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        numbers.iter().for_each(|number| set.set(*number));
        set
    }

    /// Two nodes of two cores with two threads each, numbered as kernels do: first threads first.
    fn machine() -> Cpus {
        let cpu = |number: u32| Cpu {
            number: number as usize,
            core: number % 4,
            node: Some(NumaNode(number % 4 / 2)),
        };
        Cpus { cpus: (0..8).map(cpu).collect() }
    }

    #[test]
    fn whole_cores_come_first_and_near_ones_before_far_ones() {
        let machine = machine();
        assert_eq!(machine.spread(4, None).unwrap(), [0, 1, 2, 3]);
        assert_eq!(machine.spread(3, Some(NumaNode(1))).unwrap(), [2, 3, 0]);
        assert_eq!(machine.spread(8, Some(NumaNode(1))).unwrap(), [2, 3, 0, 1, 6, 7, 4, 5]);
    }

    #[test]
    fn more_workers_than_processors_are_refused() {
        let refused = machine().spread(9, None).unwrap_err();
        assert_eq!(refused, PlaceError::TooFew { workers: 9, cpus: 8 });
    }

    #[test]
    fn this_machine_can_be_read_and_its_processors_used() {
        let cpus = Cpus::read().unwrap();
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(cpus.all().len(), allowed.count() as usize);
        assert!(cpus.all().iter().all(|cpu| allowed.is_set(cpu.number)));
        let chosen = cpus.spread(1, None).unwrap();
        std::thread::spawn(move || crate::worker::thread::pin_to(chosen[0]).unwrap()).join().unwrap();
    }
}
