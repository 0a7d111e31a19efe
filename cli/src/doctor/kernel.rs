//! The kernel's modules, its files in `/dev/infiniband`, and the libraries above them.

use crate::{machine::Machine, report::Check};

const MODULES: &str = "kernel modules";
const FILES: &str = "device files";
const LIBRARIES: &str = "libraries";

/// Modules that bring devices; those that are loaded are shown.
const PROVIDERS: [&str; 12] = [
    "bnxt_re",
    "efa",
    "erdma",
    "hns_roce",
    "irdma",
    "iw_cxgb4",
    "mlx4_ib",
    "mlx5_ib",
    "qedr",
    "rdma_rxe",
    "siw",
    "vmw_pvrdma",
];

/// What a module makes in `/sys` when it works, also when it is built in.
const NEEDED: [(&str, &str); 2] =
    [("ib_uverbs", "/sys/class/infiniband_verbs"), ("rdma_ucm", "/sys/class/misc/rdma_cm")];

/// `ib_uverbs` and `rdma_ucm`: loaded, or built in.
pub(super) fn modules(machine: &impl Machine) -> Check {
    let tree = machine.tree();
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(_, place)| !tree.exists(place)).map(|(module, _)| *module).collect();
    if missing.is_empty() {
        let mut working: Vec<&str> = NEEDED.iter().map(|(module, _)| *module).collect();
        working.extend(PROVIDERS.iter().filter(|name| tree.exists(format!("/sys/module/{name}"))));
        return Check::fine(MODULES, working.join(", "));
    }
    let release = tree.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = format!("/lib/modules/{release}");
    let installed = tree.text(format!("{folder}/modules.dep")).unwrap_or_default();
    let is_installed = |module: &&str| installed.contains(&format!("/{module}.ko"));
    let sudo = machine.sudo();
    if missing.iter().all(is_installed) {
        let fix = format!("{sudo}modprobe -a {}", missing.join(" "));
        return Check::wrong(MODULES, format!("{} not loaded", missing.join(" and ")), fix);
    }
    let names = missing.join(" and no ");
    let detail =
        format!("this kernel ({release}) has no {names}, and none is installed; shm:// works without");
    let fix = if installed.is_empty() {
        let kernel = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        format!("{sudo}apt-get install linux-image-{kernel} && {sudo}reboot")
    } else {
        format!("{sudo}apt-get install linux-modules-extra-{release}")
    };
    Check::wrong(MODULES, detail, fix)
}

/// `/dev/infiniband/rdma_cm` and a `uverbs` file for each device: there, and ours to use. One device that has its file
/// will do.
pub(super) fn files(machine: &impl Machine) -> Check {
    let tree = machine.tree();
    let mut files = vec![("rdma_cm".to_owned(), "/sys/class/misc/rdma_cm".to_owned())];
    let verbs =
        tree.names("/sys/class/infiniband_verbs").into_iter().filter(|name| name.starts_with("uverbs"));
    files.extend(verbs.map(|name| (name.clone(), format!("/sys/class/infiniband_verbs/{name}"))));
    let place = |name: &str| format!("/dev/infiniband/{name}");
    let is_there = |name: &str| tree.exists(place(name));
    let is_ours = |name: &str| is_there(name) && machine.may_use(&tree.path(place(name)));
    let is_enough = is_ours("rdma_cm") && files.iter().skip(1).any(|(name, _)| is_ours(name));
    let judged = |wrong: Check| if is_enough { wrong.not_needed() } else { wrong };
    let sudo = machine.sudo();
    if let Some((name, class)) = files.iter().find(|(name, _)| !is_there(name)) {
        let numbers = tree.text(format!("{class}/dev")).unwrap_or_default().replace(':', " ");
        let detail = format!("{} is missing; a container needs --device=/dev/infiniband", place(name));
        let file = place(name);
        let fix = format!("{sudo}mkdir -p /dev/infiniband && {sudo}mknod -m 666 {file} c {numbers}");
        return judged(Check::wrong(FILES, detail, fix));
    }
    let closed: Vec<String> =
        files.iter().filter(|(name, _)| !is_ours(name)).map(|(name, _)| place(name)).collect();
    if !closed.is_empty() {
        let detail = format!("this user may not read and write {}", closed.join(", "));
        return judged(Check::wrong(FILES, detail, format!("{sudo}chmod 666 {}", closed.join(" "))));
    }
    Check::fine(FILES, files.iter().map(|(name, _)| place(name)).collect::<Vec<_>>().join(", "))
}

/// libibverbs and librdmacm.
pub(super) fn libraries(machine: &impl Machine) -> Check {
    match machine.libraries() {
        Ok(()) => Check::fine(LIBRARIES, "libibverbs.so.1, librdmacm.so.1"),
        Err(error) => {
            // The error ends with the command.
            let (what, command) = error
                .split_once("; install with: ")
                .unwrap_or((&error, "apt-get install librdmacm1 ibverbs-providers"));
            Check::wrong(LIBRARIES, what, format!("{}{command}", machine.sudo()))
        }
    }
}
