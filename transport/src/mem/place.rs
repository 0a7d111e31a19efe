//! Making memory on a node: which one, and how the kernel is asked.
//!
//! Rings are made by the thread that connects or accepts and pools by the one that lends, so the first touch is not the
//! worker's. The thread's policy is changed for as long as the memory is made (`set_mempolicy(2)`), because that holds for the
//! pages of files too, which no mapping has yet.

use std::{fs, io, path::Path};

use rustix::thread::{CpuSet, sched_getaffinity};

use super::{MemoryNode, NotNear};

/// Nodes that a policy can name here.
const NODES_MAX: usize = 1024;
const WORD_BITS: usize = u64::BITS as usize;

impl MemoryNode {
    /// That of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self::read(Path::new("/sys/devices/system/node"))
    }

    fn read(sysfs: &Path) -> Self {
        let nodes = nodes(sysfs);
        if nodes.len() < 2 {
            return Self::Only;
        }
        // A machine with more processors than a set holds says so by an error.
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let near = near(&nodes, |cpu| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu));
        match near {
            Ok(node) => match prefer(node) {
                Ok(_) => Self::Near { node },
                Err(why) => Self::Anywhere { why },
            },
            Err(why) => Self::Anywhere { why },
        }
    }

    /// Makes memory there: what `make` allocates must have its pages when it returns.
    pub(crate) fn place<T>(self, make: impl FnOnce() -> T) -> T {
        // A thread with a policy of its own keeps it; what is refused was reported when the port was opened.
        let _preferred = if let Self::Near { node } = self { prefer(node).ok() } else { None };
        make()
    }
}

/// Nodes and the ranges of their processors.
fn nodes(sysfs: &Path) -> Vec<(u32, Vec<(usize, usize)>)> {
    let entries = fs::read_dir(sysfs).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, ranges(&fs::read_to_string(entry.path().join("cpulist")).ok()?)))
    };
    entries.filter_map(node).collect()
}

/// `0-3,8` of the kernel's lists.
fn ranges(list: &str) -> Vec<(usize, usize)> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    list.trim().split(',').filter_map(range).collect()
}

/// The one node that has processors which may be run on.
fn near(nodes: &[(u32, Vec<(usize, usize)>)], may_run: impl Fn(usize) -> bool) -> Result<u32, NotNear> {
    let runs = |ranges: &[(usize, usize)]| ranges.iter().any(|&(first, last)| (first..=last).any(&may_run));
    let mut those = nodes.iter().filter(|(_, ranges)| runs(ranges));
    match (those.next(), those.next()) {
        (Some((node, _)), None) => Ok(*node),
        _ => Err(NotNear::Several),
    }
}

/// Has the calling thread prefer a node, which it stops doing when this is dropped.
struct Preferred;

fn prefer(node: u32) -> Result<Preferred, NotNear> {
    let refused = |errno| NotNear::Refused { node, errno };
    match policy().map_err(refused)? {
        libc::MPOL_DEFAULT => {}
        mode => return Err(NotNear::Chosen { mode }),
    }
    let mut mask = [0_u64; NODES_MAX / WORD_BITS];
    let word = mask.get_mut(node as usize / WORD_BITS).ok_or_else(|| refused(libc::EINVAL))?;
    *word = 1 << (node as usize % WORD_BITS);
    set_policy(libc::MPOL_PREFERRED, Some(&mask)).map_err(refused)?;
    Ok(Preferred)
}

impl Drop for Preferred {
    fn drop(&mut self) {
        if let Err(errno) = set_policy(libc::MPOL_DEFAULT, None) {
            tracing::warn!(errno, "a thread keeps preferring a memory node");
        }
    }
}

/// The calling thread's policy, `get_mempolicy(2)`.
fn policy() -> Result<i32, i32> {
    let mut mode: libc::c_int = 0;
    let (mask, address) = (std::ptr::null_mut::<u64>(), std::ptr::null_mut::<u8>());
    // SAFETY: it writes `mode`; without flags it reads no address, and a null mask is not written.
    let returned =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask, 0_usize, address, 0_usize) };
    if returned == 0 { Ok(mode) } else { Err(errno()) }
}

/// Sets it, `set_mempolicy(2)`.
fn set_policy(mode: libc::c_int, mask: Option<&[u64; NODES_MAX / WORD_BITS]>) -> Result<(), i32> {
    // The kernel reads one bit less than it is told.
    let (mask, bits) = mask.map_or((std::ptr::null(), 0), |mask| (mask.as_ptr(), NODES_MAX + 1));
    // SAFETY: it reads at most `NODES_MAX` bits of the mask, which is as long, or nothing of none; it changes where this thread's
    // memory comes from and no memory.
    let returned = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) };
    if returned == 0 { Ok(()) } else { Err(errno()) }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn machine(lists: &[&str]) -> io::Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        for (node, list) in lists.iter().enumerate() {
            let node = folder.path().join(format!("node{node}"));
            fs::create_dir(&node)?;
            fs::write(node.join("cpulist"), list)?;
        }
        fs::write(folder.path().join("online"), "0-1\n")?;
        Ok(folder)
    }

    #[test]
    fn a_thread_is_near_one_node_or_none() {
        let folder = machine(&["0-3,8-11\n", "4-7,12-15\n", "\n"]).unwrap();
        let mut nodes = nodes(folder.path());
        nodes.sort_unstable();
        assert_eq!(nodes[1], (1, vec![(4, 7), (12, 15)]));
        assert_eq!(nodes[2], (2, vec![]), "memory without processors");
        assert_eq!(near(&nodes, |cpu| cpu == 9), Ok(0));
        assert_eq!(near(&nodes, |cpu| cpu > 11), Ok(1));
        assert_eq!(near(&nodes, |cpu| cpu % 4 == 0), Err(NotNear::Several));
        assert_eq!(near(&nodes, |_| false), Err(NotNear::Several));
    }

    #[test]
    fn nothing_is_asked_where_there_is_one_node() {
        assert_eq!(MemoryNode::read(machine(&["0-63\n"]).unwrap().path()), MemoryNode::Only);
        assert_eq!(MemoryNode::read(Path::new("/nowhere")), MemoryNode::Only);
        let before = policy();
        assert_eq!(MemoryNode::Only.place(policy), before);
    }

    /// The second node has no processors, so this thread is near the first, which every machine has.
    #[test]
    fn memory_is_made_under_the_policy_and_the_thread_keeps_none() {
        let node = MemoryNode::read(machine(&["0-1023\n", "\n"]).unwrap().path());
        match policy() {
            Ok(libc::MPOL_DEFAULT) => {
                if let MemoryNode::Anywhere { why: NotNear::Refused { node: 0, errno } } = node {
                    assert!([libc::EPERM, libc::ENOSYS].contains(&errno), "errno {errno}");
                    return;
                }
                assert_eq!(node, MemoryNode::Near { node: 0 });
                let made = node.place(|| {
                    assert_eq!(policy(), Ok(libc::MPOL_PREFERRED));
                    assert_eq!(prefer(0).err(), Some(NotNear::Chosen { mode: libc::MPOL_PREFERRED }));
                    vec![1_u8; 1 << 20]
                });
                assert_eq!((made[1 << 19], policy()), (1, Ok(libc::MPOL_DEFAULT)));
            }
            // As under numactl, or where such calls are filtered.
            Ok(mode) => assert_eq!(node, MemoryNode::Anywhere { why: NotNear::Chosen { mode } }),
            Err(errno) => assert_eq!(node, MemoryNode::Anywhere { why: NotNear::Refused { node: 0, errno } }),
        }
    }
}
