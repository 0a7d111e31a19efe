//! Made-up machines with one fault each: exactly that one is named, with its command, and nothing that follows from it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use gimmal::{
    config::{Cpu, Cpus, NumaNode},
    error::PlaceError,
};
use gimmal_rdma::{
    DeviceError,
    cm::Route,
    device::{Assigned, Unusable, Why},
};
use gimmal_transport::Address;
use tempfile::TempDir;

use super::examine;
use crate::{
    machine::Machine,
    report::{Report, Verdict},
    tree::Tree,
};

/// A machine with an rxe device on `v0` where all is well; tests break one thing of it.
struct Fake {
    folder: TempDir,
    tree: Tree,
    addresses: Vec<Assigned>,
    libraries: Result<(), String>,
    seen: Vec<Result<String, Unusable>>,
    closed: Vec<PathBuf>,
    memlock: Option<u64>,
    file_size: Option<u64>,
    memfd: Result<(), String>,
    is_root: bool,
    route: Result<Route, String>,
    connect: Result<String, String>,
}

const RXE: &str = "/sys/class/infiniband/rxe0";

impl Fake {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::new(folder.path());
        let fake = Self {
            folder,
            tree,
            addresses: vec![
                assigned("v0", "10.77.1.1"),
                assigned("v0", "fe80::1"),
                assigned("lo", "127.0.0.1"),
            ],
            libraries: Ok(()),
            seen: vec![Ok("rxe0".to_owned())],
            closed: Vec::new(),
            memlock: None,
            file_size: None,
            memfd: Ok(()),
            is_root: true,
            route: Ok(Route {
                device: "rxe0".to_owned(),
                port: 1,
                local: Some("10.77.1.1:0".parse().unwrap()),
                peer: "10.77.1.1:7471".parse().unwrap(),
            }),
            connect: Ok("verbs on rxe0 port 1, ring".to_owned()),
        };
        for (path, text) in [
            ("/sys/class/misc/rdma_cm/dev", "10:61"),
            ("/sys/class/infiniband_verbs/abi_version", "6"),
            ("/sys/class/infiniband_verbs/uverbs0/dev", "231:192"),
            ("/sys/module/rdma_rxe/refcnt", "1"),
            ("/dev/infiniband/rdma_cm", ""),
            ("/dev/infiniband/uverbs0", ""),
            ("/sys/class/net/lo/flags", "0x9"),
            ("/sys/class/net/v0/flags", "0x1003"),
            ("/sys/class/net/v0/ifindex", "4"),
            ("/sys/class/net/v0/iflink", "5"),
            ("/sys/class/net/v1/flags", "0x1003"),
            ("/sys/class/net/v1/ifindex", "5"),
            ("/sys/class/net/v1/iflink", "4"),
            ("/proc/sys/kernel/osrelease", "6.1.0-1-amd64"),
            ("/proc/self/status", "CapEff:\t0000000000000000"),
            (
                "/proc/meminfo",
                "HugePages_Total:       2\nHugePages_Free:        1\nHugepagesize:       2048 kB",
            ),
        ] {
            fake.write(path, text);
        }
        fake.write_device();
        fake
    }

    fn write(&self, path: &str, text: &str) {
        let place = self.tree.path(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }

    fn write_device(&self) {
        self.write(&format!("{RXE}/node_type"), "1: CA");
        self.write(&format!("{RXE}/ports/1/state"), "4: ACTIVE");
        self.write(&format!("{RXE}/ports/1/link_layer"), "Ethernet");
        self.write(&format!("{RXE}/ports/1/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001");
        self.write(&format!("{RXE}/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a4d:0101");
        self.write(&format!("{RXE}/ports/1/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000");
        self.write(&format!("{RXE}/ports/1/gid_attrs/ndevs/0"), "v0");
    }

    fn remove(&self, path: &str) {
        let place = self.tree.path(path);
        if place.is_dir() { fs::remove_dir_all(place) } else { fs::remove_file(place) }.unwrap();
    }

    fn examine(&self, url: Option<&str>) -> Report {
        examine(self, url.map(|url| url.parse::<Address>().unwrap()).as_ref())
    }

    /// The one thing that is wrong: its name, detail and command.
    fn one_fault(&self) -> (&'static str, String, String) {
        let report = self.examine(Some("rdma://10.77.1.1:7471"));
        assert!(!report.ok, "{report:#?}");
        let mut faults = report.checks.into_iter().filter_map(|check| match check.verdict {
            Verdict::Wrong { detail, fix, .. } => Some((check.name, detail, fix)),
            _ => None,
        });
        let fault = faults.next().unwrap();
        assert_eq!(faults.next(), None);
        fault
    }
}

fn assigned(netdev: &str, address: &str) -> Assigned {
    Assigned { netdev: netdev.to_owned(), address: address.parse().unwrap(), prefix: 24 }
}

impl Machine for Fake {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn may_use(&self, path: &Path) -> bool {
        !self.closed.iter().any(|closed| self.folder.path().join(closed) == path)
    }

    fn is_root(&self) -> bool {
        self.is_root
    }

    fn addresses(&self) -> Vec<Assigned> {
        self.addresses.clone()
    }

    fn libraries(&self) -> Result<(), String> {
        self.libraries.clone()
    }

    fn devices(&self) -> Result<Vec<Result<String, Unusable>>, String> {
        Ok(self.seen.clone())
    }

    fn memlock(&self) -> Option<u64> {
        self.memlock
    }

    fn file_size(&self) -> Option<u64> {
        self.file_size
    }

    fn memfd(&self) -> Result<(), String> {
        self.memfd.clone()
    }

    fn room(&self, _path: &str) -> Option<(u64, u64)> {
        Some((32 << 20, 64 << 20))
    }

    fn cores(&self) -> usize {
        2
    }

    /// Two nodes, each a core of two threads.
    fn cpus(&self) -> Result<Cpus, PlaceError> {
        let cpu =
            |number: u32| Cpu { number: number as usize, core: number / 2, node: Some(NumaNode(number / 2)) };
        Ok(Cpus::from((0..4).map(cpu).collect::<Vec<_>>()))
    }

    fn route(&self, _host: &str, _port: u16) -> Result<Route, String> {
        self.route.clone()
    }

    fn connect_best(&self, url: &str) -> Result<String, String> {
        Err(format!("no way leads to {url}"))
    }

    fn connect(&self, _address: &Address) -> Result<String, String> {
        self.connect.clone()
    }
}

#[test]
fn the_cores_that_workers_get_by_themselves_are_shown() {
    let fake = Fake::new();
    let cores = |fake: &Fake| {
        let report = fake.examine(None);
        report.checks.into_iter().find(|check| check.name == "cores").unwrap()
    };
    let said = |fake: &Fake| format!("{:?}", cores(fake));
    assert!(said(&fake).contains("Placement::Auto takes 0, 2, 1, 3\""), "{}", said(&fake));
    fake.write(&format!("{RXE}/device/numa_node"), "1");
    assert!(said(&fake).contains("takes 2, 0, 3, 1, near memory node 1"), "{}", said(&fake));
}

#[test]
fn nothing_is_wrong() {
    let report = Fake::new().examine(Some("rdma://10.77.1.1:7471"));
    assert!(report.ok && report.checks.iter().all(crate::report::Check::is_fine), "{report:#?}");
    let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), 12, "{names:?}");
}

#[test]
fn modules_that_are_installed_are_loaded() {
    let fake = Fake::new();
    fake.remove("/sys/class/infiniband_verbs");
    fake.remove("/sys/class/misc/rdma_cm");
    fake.write(
        "/lib/modules/6.1.0-1-amd64/modules.dep",
        "kernel/ib_uverbs.ko: x\nkernel/rdma_ucm.ko.xz: x\n",
    );
    let (name, detail, fix) = fake.one_fault();
    assert_eq!((name, detail.as_str()), ("kernel modules", "ib_uverbs and rdma_ucm not loaded"));
    assert_eq!(fix, "modprobe -a ib_uverbs rdma_ucm");
}

#[test]
fn a_kernel_without_rdma_is_named() {
    let fake = Fake::new();
    fake.remove("/sys/class/infiniband_verbs");
    fake.remove("/sys/class/misc/rdma_cm");
    let (name, detail, fix) = fake.one_fault();
    assert_eq!(name, "kernel modules");
    assert!(detail.contains("this kernel (6.1.0-1-amd64) has no ib_uverbs"), "{detail}");
    assert!(fix.starts_with("apt-get install linux-image-"), "{fix}");
    let not_checked = |report: &Report| {
        report.checks.iter().filter(|check| matches!(check.verdict, Verdict::NotChecked { .. })).count()
    };
    let report = fake.examine(None);
    assert_eq!(not_checked(&report), 4, "{report:#?}");
    // Shared memory needs none of it.
    assert!(fake.examine(Some("shm://name")).ok);
}

#[test]
fn only_the_cm_is_missing() {
    let fake = Fake::new();
    fake.remove("/sys/class/misc/rdma_cm");
    fake.write("/lib/modules/6.1.0-1-amd64/modules.dep", "kernel/rdma_ucm.ko: x\n");
    assert_eq!(fake.one_fault().2, "modprobe -a rdma_ucm");
}

#[test]
fn a_file_that_is_missing_is_made() {
    let fake = Fake::new();
    fake.remove("/dev/infiniband/rdma_cm");
    let (name, _, fix) = fake.one_fault();
    assert_eq!(name, "device files");
    assert_eq!(fix, "mkdir -p /dev/infiniband && mknod -m 666 /dev/infiniband/rdma_cm c 10 61");
}

#[test]
fn a_file_that_is_closed_is_opened() {
    let mut fake = Fake::new();
    fake.is_root = false;
    fake.closed = vec!["dev/infiniband/uverbs0".into()];
    let (name, detail, fix) = fake.one_fault();
    assert_eq!(name, "device files");
    assert!(detail.contains("/dev/infiniband/uverbs0") && !detail.contains("rdma_cm"), "{detail}");
    assert_eq!(fix, "sudo chmod 666 /dev/infiniband/uverbs0");
}

#[test]
fn a_missing_library_is_installed() {
    let mut fake = Fake::new();
    let why =
        "librdmacm.so.1 cannot be opened: none; install with: apt-get install librdmacm1 ibverbs-providers";
    fake.libraries = Err(why.to_owned());
    let (name, detail, fix) = fake.one_fault();
    assert_eq!((name, detail.as_str()), ("libraries", "librdmacm.so.1 cannot be opened: none"));
    assert_eq!(fix, "apt-get install librdmacm1 ibverbs-providers");
}

#[test]
fn no_device_is_one_command_away() {
    let fake = Fake::new();
    fake.remove(RXE);
    let (name, _, fix) = fake.one_fault();
    assert_eq!((name, fix.as_str()), ("devices", "rdma link add rxe0 type rxe netdev v0"));
}

#[test]
fn a_device_without_a_library_of_its_own() {
    let mut fake = Fake::new();
    fake.seen.clear();
    let (name, detail, fix) = fake.one_fault();
    assert_eq!((name, fix.as_str()), ("devices", "apt-get install ibverbs-providers"));
    assert!(detail.contains("rxe0"), "{detail}");
}

#[test]
fn one_device_that_cannot_be_used_leaves_the_others() {
    let mut fake = Fake::new();
    fake.write("/sys/class/infiniband/siw0/ports/1/state", "4: ACTIVE");
    fake.write("/sys/class/infiniband_verbs/uverbs1/dev", "231:193");
    fake.seen.push(Err(Unusable { name: "siw0".into(), file: "uverbs1".into(), why: Why::NoFile }));
    let report = fake.examine(Some("rdma://10.77.1.1:7471"));
    assert!(report.ok, "{report:#?}");
    let text: Vec<String> = report.checks.iter().map(ToString::to_string).collect();
    let has =
        |start: &str, part: &str| text.iter().any(|line| line.starts_with(start) && line.contains(part));
    assert!(has("unused       device files", "/dev/infiniband/uverbs1 is missing"), "{text:#?}");
    assert!(has("unused       devices", "siw0 (uverbs1) cannot be used"), "{text:#?}");
    assert!(has("fine         devices", "rxe0 on v0") && has("fine         peer", ""), "{text:#?}");
    // ENOENT, for a closed file; EAGAIN, when the cgroup's objects are used up.
    for (why, fix) in [
        (Why::NoAccess(refused(2)), "chmod 666 /dev/infiniband/uverbs1"),
        (Why::CgroupLimit(refused(11)), "rdma.max"),
    ] {
        fake.seen[1] = Err(Unusable { name: "siw0".into(), file: "uverbs1".into(), why });
        let report = fake.examine(None);
        assert!(
            report.ok && report.checks.iter().any(|check| check.to_string().contains(fix)),
            "{report:#?}"
        );
    }
}

fn refused(errno: i32) -> DeviceError {
    DeviceError::System { step: "ibv_open_device", errno }
}

#[test]
fn a_link_that_is_down() {
    let fake = Fake::new();
    fake.write(&format!("{RXE}/ports/1/state"), "1: DOWN");
    fake.write("/sys/class/net/v0/flags", "0x1002");
    assert_eq!(fake.one_fault().2, "ip link set v0 up");
    fake.write("/sys/class/net/v0/flags", "0x1003");
    fake.write("/sys/class/net/v1/flags", "0x1002");
    assert_eq!(fake.one_fault().2, "ip link set v1 up");
    fake.write("/sys/class/net/v1/flags", "0x1003");
    assert_eq!(fake.one_fault().2, "ethtool v0");
    fake.write(&format!("{RXE}/ports/1/link_layer"), "InfiniBand");
    assert_eq!(fake.one_fault().2, "systemctl start opensm");
}

#[test]
fn a_link_without_an_address() {
    let mut fake = Fake::new();
    fake.addresses = vec![assigned("v0", "fe80::1")];
    let (name, _, fix) = fake.one_fault();
    assert_eq!((name, fix.as_str()), ("address", "ip address add 10.77.0.1/24 dev v0"));
}

#[test]
fn an_address_without_its_gid() {
    let fake = Fake::new();
    fake.remove(&format!("{RXE}/ports/1/gids/1"));
    let (name, detail, _) = fake.one_fault();
    assert_eq!((name, detail.as_str()), ("address", "rxe0 has no GID for 10.77.1.1 of v0"));
}

#[test]
fn a_small_memlock() {
    let mut fake = Fake::new();
    fake.memlock = Some(64 << 10);
    let (name, detail, fix) = fake.one_fault();
    assert_eq!((name, fix.as_str()), ("locked memory", "ulimit -l unlimited"));
    assert!(detail.starts_with("the limit is 64 KiB"), "{detail}");
    fake.memlock = Some(8 << 20);
    assert!(fake.examine(None).ok);
    // A capability lifts it, but not for siw.
    fake.memlock = Some(64 << 10);
    fake.write("/proc/self/status", "CapEff:\t000001ffffffffff");
    assert!(fake.examine(None).ok);
    fake.write("/sys/class/infiniband/siw0/node_type", "4: RNIC");
    fake.write("/sys/class/infiniband/siw0/ports/1/state", "4: ACTIVE");
    fake.write("/sys/class/infiniband/siw0/ports/1/gid_attrs/ndevs/0", "v0");
    fake.seen.push(Ok("siw0".to_owned()));
    assert!(fake.one_fault().1.contains("siw0 counts for everybody"));
}

#[test]
fn a_host_for_shared_memory_alone_is_well() {
    let mut fake = Fake::new();
    fake.remove(RXE);
    assert!(fake.examine(None).ok, "devices could be made, and none is there");
    fake.remove("/sys/class/infiniband_verbs");
    fake.libraries = Err("librdmacm.so.1 cannot be opened".to_owned());
    fake.memlock = Some(64 << 10);
    let report = fake.examine(None);
    assert!(report.ok, "{report:#?}");
    assert!(report.checks.iter().any(|check| check.to_string().starts_with("unused       kernel modules")));
    assert!(!fake.examine(Some("rdma://10.77.1.1:7471")).ok, "a peer over RDMA needs them");
    fake.memfd = Err("Function not implemented".to_owned());
    assert!(!fake.examine(None).ok, "nothing works there");
}

#[test]
fn one_device_of_two_is_enough() {
    let mut fake = Fake::new();
    fake.write("/sys/class/infiniband/siw0/node_type", "4: RNIC");
    fake.write("/sys/class/infiniband/siw0/ports/1/state", "1: DOWN");
    fake.seen.push(Ok("siw0".to_owned()));
    let report = fake.examine(None);
    assert!(report.ok, "{report:#?}");
    let unused =
        |check: &&crate::report::Check| matches!(check.verdict, Verdict::Wrong { needed: false, .. });
    assert_eq!(report.checks.iter().filter(unused).count(), 1);
}

#[test]
fn no_memory_files() {
    let mut fake = Fake::new();
    fake.memfd = Err("Function not implemented".to_owned());
    assert_eq!(fake.one_fault().0, "shared memory");
    let report = fake.examine(Some("shm://name"));
    assert_eq!(report.checks.last().unwrap().verdict, Verdict::NotChecked { needs: "shared memory" });
}

/// A file beyond the limit would end the doctor, and any client, by a signal.
#[test]
fn a_limit_of_file_sizes() {
    let mut fake = Fake::new();
    fake.file_size = Some(100_000);
    let (name, detail, fix) = fake.one_fault();
    assert_eq!((name, fix.as_str()), ("shared memory", "ulimit -f unlimited"));
    assert!(detail.contains("RLIMIT_FSIZE is 100000 bytes"), "{detail}");
}

#[test]
fn a_peer_without_a_route() {
    let mut fake = Fake::new();
    fake.route = Err("cannot resolve rdma://10.9.9.9:1 (ADDR_ERROR)".to_owned());
    let (name, _, fix) = fake.one_fault();
    assert_eq!((name, fix.as_str()), ("route", "ip route add 10.77.1.1 dev v0"));
}

#[test]
fn a_peer_that_does_not_listen() {
    let mut fake = Fake::new();
    fake.connect = Err("connect to rdma://10.77.1.1:7471 failed: no server is listening".to_owned());
    assert_eq!(fake.one_fault().0, "peer");
}
