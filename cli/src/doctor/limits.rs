//! What a process may have: locked memory, shared memory, huge pages, cores.

use gimmal::config::NumaNode;
use gimmal_transport::{PortConfig, address::runtime_folder};

use crate::{machine::Machine, report::Check};

const LOCKED: &str = "locked memory";
const SHARED: &str = "shared memory";
const HUGE: &str = "huge pages";
const CORES: &str = "cores";
/// Cores in the order of [`automatic`] that are shown.
const SHOWN: usize = 8;

/// What one connection of the default sizes registers: both rings, mapped twice, and the send/recv slots.
fn connection_bytes() -> u64 {
    let config = PortConfig::default();
    let rings = 2 * 2 * u64::from(config.ring_bytes);
    rings + (u64::from(config.arrivals) + 1) * u64::from(config.slot_bytes)
}

/// The memory file of one direction of one connection of the default sizes: its control page and its ring.
fn segment_bytes() -> u64 {
    rustix::param::page_size() as u64 + u64::from(PortConfig::default().ring_bytes)
}

fn amount(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// RLIMIT_MEMLOCK, unless CAP_IPC_LOCK lifts it; siw counts it even then.
pub(super) fn locked_memory(machine: &impl Machine) -> Check {
    let Some(limit) = machine.memlock() else { return Check::fine(LOCKED, "no limit") };
    let need = connection_bytes();
    let tree = machine.tree();
    let is_lifted = may_ipc_lock(&tree.text("/proc/self/status").unwrap_or_default());
    let counts_anyway = tree.devices().into_iter().find(|device| device.is_iwarp && device.is_software);
    let which = match &counts_anyway {
        Some(device) => format!(" (which {} counts for everybody)", device.name),
        None => String::new(),
    };
    if is_lifted && counts_anyway.is_none() {
        return Check::fine(LOCKED, format!("the limit of {} is lifted by CAP_IPC_LOCK", amount(limit)));
    }
    if limit < need {
        let detail = format!(
            "the limit is {}{which}, and a connection of the default sizes takes {}",
            amount(limit),
            amount(need)
        );
        let fix = if machine.is_root() {
            "ulimit -l unlimited".to_owned()
        } else {
            format!("{}prlimit --memlock=unlimited --pid $$", machine.sudo())
        };
        return Check::wrong(LOCKED, detail, fix);
    }
    let count = limit / need;
    Check::fine(LOCKED, format!("{}{which}: {count} connections of the default sizes", amount(limit)))
}

/// CAP_IPC_LOCK, number 14, among the effective capabilities.
fn may_ipc_lock(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits >> 14 & 1 == 1)
}

/// Sealed memory files, and the folder in which `shm://name` meets. `/dev/shm` is shown: it limits others, not us.
pub(super) fn shared_memory(machine: &impl Machine) -> Check {
    // Before any file is made: beyond it the kernel sends SIGXFSZ.
    if let Some(limit) = machine.file_size().filter(|limit| *limit < segment_bytes()) {
        let need = amount(segment_bytes());
        let detail = format!(
            "RLIMIT_FSIZE is {limit} bytes, and a connection of the default sizes takes a file of {need}"
        );
        return Check::wrong(SHARED, detail, "ulimit -f unlimited");
    }
    if let Err(error) = machine.memfd() {
        let detail = format!("no sealed memory file can be made: {error}");
        return Check::wrong(SHARED, detail, "podman run --security-opt seccomp=unconfined ...");
    }
    let folder = runtime_folder();
    let existing = folder.ancestors().find(|folder| folder.exists());
    if let Some(closed) = existing.filter(|folder| !machine.may_use(folder)) {
        let detail =
            format!("sockets go to {}, and this user may not write {}", folder.display(), closed.display());
        let fix = "export XDG_RUNTIME_DIR=/run/user/$(id -u), for the servers and the clients";
        return Check::wrong(SHARED, detail, fix);
    }
    let shm = match machine.room("/dev/shm") {
        Some((free, all)) => format!("{} of {} free", amount(free), amount(all)),
        None => "not mounted".to_owned(),
    };
    Check::fine(
        SHARED,
        format!("memfd with seals; sockets in {}; /dev/shm (not used): {shm}", folder.display()),
    )
}

/// Huge pages: nothing needs them, memory for bulk takes them.
pub(super) fn huge_pages(machine: &impl Machine) -> Check {
    let text = machine.tree().text("/proc/meminfo").unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (all, free) = (value("HugePages_Total:").unwrap_or(0), value("HugePages_Free:").unwrap_or(0));
    let size = value("Hugepagesize:").unwrap_or(0);
    Check::fine(
        HUGE,
        format!("{free} of {all} free ({} each), for bulk; nothing needs them", amount(size << 10)),
    )
}

/// Cores: a busy worker wants one for itself.
pub(super) fn cores(machine: &impl Machine) -> Check {
    let cores = machine.cores();
    let detail = match cores {
        1 => "1: busy workers would take turns; let them sleep (Idle::Event)".to_owned(),
        cores => format!("{cores}: a busy worker wants one for itself, and the rest one"),
    };
    Check::fine(CORES, format!("{detail}; Placement::Auto {}", automatic(machine)))
}

/// What workers get that are placed by themselves.
fn automatic(machine: &impl Machine) -> String {
    let near = NumaNode::of_devices(&machine.tree().path("/sys"), None);
    let order = machine.cpus().and_then(|cpus| cpus.spread(cpus.all().len(), near));
    let order = match order {
        Ok(order) => order,
        Err(error) => return format!("cannot choose: {error}"),
    };
    let shown: Vec<_> = order.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if order.len() > SHOWN { " and on" } else { "" };
    let node = near.map(|NumaNode(node)| format!(", near memory node {node}")).unwrap_or_default();
    format!("takes {}{more}{node}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        assert!(may_ipc_lock("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_ipc_lock("CapEff:\t00000000a80425fb\n"));
        assert!(!may_ipc_lock(""));
    }

    #[test]
    fn amounts() {
        assert_eq!(amount(64 << 10), "64 KiB");
        assert_eq!(amount(8 << 20), "8 MiB");
        assert!(connection_bytes() > 1 << 20);
    }
}
