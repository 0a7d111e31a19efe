//! The processors as sysfs shows them.

use std::{fs, path::Path};

use super::cpu::{Cpu, NumaNode};
use crate::error::PlaceError;

/// Reads them below `sys`, those that this process may run on.
pub(super) fn read(sys: &Path) -> Result<Vec<Cpu>, PlaceError> {
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|errno| PlaceError::Unreadable { what: "sched_getaffinity", why: errno.to_string() })?;
    let nodes = nodes(&sys.join("devices/system/node"));
    let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    Ok(cpus.map(|number| cpu(sys, number, &nodes)).collect())
}

/// What a container hides is taken for a core of its own.
fn cpu(sys: &Path, number: usize, nodes: &[(NumaNode, Vec<usize>)]) -> Cpu {
    let topology = sys.join(format!("devices/system/cpu/cpu{number}/topology"));
    let siblings = fs::read_to_string(topology.join("thread_siblings_list")).unwrap_or_default();
    let first = list(&siblings).into_iter().min().unwrap_or(number);
    let node = nodes.iter().find(|(_, cpus)| cpus.contains(&number)).map(|(node, _)| *node);
    Cpu { number, core: u32::try_from(first).unwrap_or(u32::MAX), node }
}

/// Each node with its processors; none on a kernel without NUMA.
fn nodes(folder: &Path) -> Vec<(NumaNode, Vec<usize>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some((NumaNode(number), list(&cpus)))
    };
    entries.filter_map(|entry| node(entry.ok()?)).collect()
}

/// A list as the kernel writes it: `0-3,8,10-11`.
fn list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(list("\n"), Vec::<usize>::new());
        assert_eq!(list("5"), [5]);
    }

    #[test]
    fn a_processor_knows_its_siblings_and_its_node() {
        let sys = std::env::temp_dir().join(format!("gimmal-place-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/system/cpu/cpu0/topology/thread_siblings_list", "0,64\n");
        write("devices/system/node/node1/cpulist", "0-3\n");
        let cpus = read(&sys).unwrap();
        let nodes = nodes(&sys.join("devices/system/node"));
        assert_eq!(cpu(&sys, 0, &nodes), Cpu { number: 0, core: 0, node: Some(NumaNode(1)) });
        assert_eq!(cpu(&sys, 9, &nodes), Cpu { number: 9, core: 9, node: None });
        assert!(!cpus.is_empty());
        fs::remove_dir_all(sys).unwrap();
    }
}
