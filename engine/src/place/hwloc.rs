//! The processors as hwloc shows them.

use hwlocality::{Topology, object::types::ObjectType};
use rustix::thread::CpuSet;

use super::cpu::{Cpu, NumaNode};
use crate::error::PlaceError;

/// Reads those of this machine that are `allowed`.
pub(super) fn read(allowed: &CpuSet) -> Result<Vec<Cpu>, PlaceError> {
    let unreadable = |why: String| PlaceError::Unreadable { what: "hwloc", why };
    Ok(of(&Topology::new().map_err(|error| unreadable(error.to_string()))?, allowed))
}

/// hwloc leaves out what a cgroup forbids. What this process was pinned away from, it does not.
fn of(topology: &Topology, allowed: &CpuSet) -> Vec<Cpu> {
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
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{Cpus, tests::set};

    /// Two nodes of two cores with two threads each, the threads of a core side by side.
    fn made_up() -> Topology {
        Topology::builder().from_synthetic("node:2 core:2 pu:2").unwrap().build().unwrap()
    }

    #[test]
    fn a_made_up_machine_is_read_with_its_cores_and_nodes() {
        let cpus = of(&made_up(), &set(&[0, 1, 2, 3, 4, 5, 6, 7]));
        let seen: Vec<_> = cpus.iter().map(|cpu| (cpu.number, cpu.core, cpu.node.unwrap().0)).collect();
        let wanted = [(0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 2, 1), (5, 2, 1), (6, 3, 1), (7, 3, 1)];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn a_cpuset_with_gaps_gives_whole_cores_first() {
        let cpus = Cpus::from(of(&made_up(), &set(&[1, 2, 3, 5])));
        assert_eq!(cpus.spread(3, Some(NumaNode(1))).unwrap(), [5, 1, 2]);
        assert_eq!(cpus.spread(4, None).unwrap(), [1, 2, 5, 3]);
        assert!(cpus.spread(5, None).is_err());
    }
}
