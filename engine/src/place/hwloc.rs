//! The processors as hwloc shows them.

use hwlocality::{Topology, object::types::ObjectType};

use super::cpu::{Cpu, NumaNode};
use crate::error::PlaceError;

/// Reads them, those that this process may run on.
pub(super) fn read() -> Result<Vec<Cpu>, PlaceError> {
    let unreadable = |why: String| PlaceError::Unreadable { what: "hwloc", why };
    let topology = Topology::new().map_err(|error| unreadable(error.to_string()))?;
    // hwloc leaves out what a cgroup forbids; what this process was pinned away from, it does not.
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|errno| unreadable(errno.to_string()))?;
    let cpus = topology.objects_with_type(ObjectType::PU).filter_map(|unit| {
        let number = unit.os_index().filter(|number| allowed.is_set(*number))?;
        let core =
            unit.first_ancestor_with_type(ObjectType::Core).map_or(number, |core| core.logical_index());
        let node = unit.nodeset().and_then(|nodes| nodes.first_set());
        Some(Cpu {
            number,
            core: u32::try_from(core).unwrap_or(u32::MAX),
            node: node.and_then(|node| u32::try_from(usize::from(node)).ok()).map(NumaNode),
        })
    });
    let mut cpus: Vec<_> = cpus.collect();
    cpus.sort_unstable_by_key(|cpu| cpu.number);
    Ok(cpus)
}
