//! The processors as sysfs shows them.

use std::{fs, path::Path};

use rustix::thread::CpuSet;

use super::cpu::{Cpu, NumaNode};

/// Reads those of them below `sys` that are `allowed`.
pub(super) fn read(sys: &Path, allowed: &CpuSet) -> Vec<Cpu> {
    let nodes = nodes(&sys.join("devices/system/node"));
    let cpus = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    cpus.map(|number| cpu(sys, number, &nodes)).collect()
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
    use crate::place::{Cpus, tests::set};

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
        let wanted =
            [Cpu { number: 0, core: 0, node: Some(NumaNode(1)) }, Cpu { number: 9, core: 9, node: None }];
        assert_eq!(read(&sys, &set(&[0, 9])), wanted);
        fs::remove_dir_all(sys).unwrap();
    }

    /// Two nodes of two cores with two threads each; the set leaves out whole cores and halves of them.
    #[test]
    fn a_set_with_gaps_gives_whole_cores_first() {
        let sys = std::env::temp_dir().join(format!("gimmal-gaps-{}", std::process::id()));
        for number in 0..8 {
            let topology = sys.join(format!("devices/system/cpu/cpu{number}/topology"));
            fs::create_dir_all(&topology).unwrap();
            let siblings = format!("{},{}\n", number % 4, number % 4 + 4);
            fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        for (node, cpus) in [(0, "0-1,4-5\n"), (1, "2-3,6-7\n")] {
            let folder = sys.join(format!("devices/system/node/node{node}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpulist"), cpus).unwrap();
        }
        let cpus = Cpus::from(read(&sys, &set(&[1, 3, 5, 6])));
        assert_eq!(cpus.spread(3, Some(NumaNode(1))).unwrap(), [3, 6, 1]);
        assert_eq!(cpus.spread(4, None).unwrap(), [1, 3, 6, 5]);
        assert!(cpus.spread(5, None).is_err());
        fs::remove_dir_all(sys).unwrap();
    }
}
