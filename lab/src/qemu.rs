//! The command line of one guest.
//!
//! QEMU runs in the guest's own folder on the host, so that its files and sockets have short, relative names:
//! `ctl/` (scripts, output, exit code), `console.log`, `qemu.log`, and in a pair `qmp`, `../net-a` and `../net-b`.
//! Acceleration is TCG, always: where a virtual machine monitor hands on a `/dev/kvm` that does not work, a guest
//! hangs at its first instruction.

use std::path::Path;

use crate::{cache::Cache, spec::Spec, wire};

/// The clock options save a system call on every reading of the time. An oops ends the guest: what follows one
/// proves nothing. Stall detectors, and the check of the timer at boot, would report a busy host as a fault of the guest.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable clocksource=tsc \
                              no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 log_buf_len=1M";

/// QEMU's arguments. `out` is the folder of the host that the guest may write to.
pub(crate) fn args(spec: &Spec, cache: &Cache, out: &Path) -> Vec<String> {
    let mut args = Args(Vec::new());
    args.all("-nodefaults -no-user-config -display none -no-reboot");
    args.all("-machine pc -accel tcg,thread=multi -cpu max");
    args.pair("-smp", &processors(spec));
    args.pair("-m", &spec.mem_mb.to_string());
    args.nodes(spec);
    args.pair("-kernel", &cache.vmlinux.to_string_lossy());
    args.pair("-initrd", &cache.initrd.to_string_lossy());
    args.pair("-append", KERNEL_OPTIONS);
    args.pair("-serial", "file:console.log");
    args.share("ctl", Path::new("ctl"), Access::Write);
    args.share("out", out, Access::Write);
    args.share("root", Path::new("/"), Access::Read);
    for (index, share) in spec.shares.iter().enumerate() {
        args.share(&format!("share{index}"), share, Access::Read);
    }
    if let Some(role) = spec.role {
        let (own, peer) = (role.name(), role.peer().name());
        args.pair(
            "-netdev",
            &format!(
                "dgram,id={},local.type=unix,local.path=../net-{own},remote.type=unix,remote.path=../net-{peer}",
                wire::NETDEV
            ),
        );
        args.pair(
            "-device",
            &format!("virtio-net-pci,netdev={},host_mtu=9000,mac={},romfile=", wire::NETDEV, role.mac()),
        );
        args.pair("-qmp", &format!("unix:{},server=on,wait=off", wire::SOCKET));
    }
    args.0
}

/// Each memory node is a socket: a kernel that finds one socket on two warns.
fn processors(spec: &Spec) -> String {
    if spec.nodes > 1 { format!("{},sockets={}", spec.cpus, spec.nodes) } else { spec.cpus.to_string() }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[derive(Debug)]
struct Args(Vec<String>);

impl Args {
    fn all(&mut self, words: &str) {
        self.0.extend(words.split_whitespace().map(str::to_owned));
    }

    fn pair(&mut self, name: &str, value: &str) {
        self.0.extend([name.to_owned(), value.to_owned()]);
    }

    /// Nothing for one, which a guest has by itself.
    fn nodes(&mut self, spec: &Spec) {
        for node in (0..spec.nodes).filter(|_| spec.nodes > 1) {
            let mem_mb = spec.mem_mb / spec.nodes;
            let (first, next) = (node * spec.cpus / spec.nodes, (node + 1) * spec.cpus / spec.nodes);
            self.pair("-object", &format!("memory-backend-ram,id=mem{node},size={mem_mb}M"));
            let cpus = if first < next { format!(",cpus={first}-{}", next - 1) } else { String::new() };
            self.pair("-numa", &format!("node,nodeid={node},memdev=mem{node}{cpus}"));
        }
    }

    fn share(&mut self, tag: &str, path: &Path, access: Access) {
        let path = path.to_string_lossy().replace(',', ",,");
        let access = if access == Access::Read { "on" } else { "off" };
        // Below `/` there are other file systems with inode numbers of their own: remap keeps them apart.
        self.pair(
            "-fsdev",
            &format!("local,id={tag},path={path},security_model=none,readonly={access},multidevs=remap"),
        );
        self.pair("-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        fabric::{Fabrics, Role},
        spec::Memlock,
    };

    fn spec(role: Option<Role>, shares: &[&str]) -> Spec {
        Spec {
            role,
            fabrics: Fabrics::Both,
            command: vec!["true".into()],
            cwd: "/".into(),
            env: Vec::new(),
            shares: shares.iter().map(PathBuf::from).collect(),
            memlock: Memlock::Unlimited,
            mem_mb: 512,
            cpus: 2,
            nodes: 1,
        }
    }

    fn line(role: Option<Role>, shares: &[&str]) -> String {
        let cache = Cache { vmlinux: "/c/vmlinux".into(), initrd: "/c/initrd".into() };
        args(&spec(role, shares), &cache, Path::new("/o")).join(" ")
    }

    #[test]
    fn a_guest_is_emulated_and_alone() {
        let line = line(None, &[]);
        assert!(line.contains("-accel tcg,thread=multi -cpu max -smp 2 -m 512"), "{line}");
        assert!(!line.contains("kvm") && !line.contains("-netdev"), "{line}");
    }

    #[test]
    fn nodes_share_what_there_is() {
        let mut args = Args(Vec::new());
        args.nodes(&spec(None, &[]));
        assert!(args.0.is_empty());
        args.nodes(&Spec { nodes: 2, ..spec(None, &[]) });
        let line = args.0.join(" ");
        assert!(
            line.contains(
                "-object memory-backend-ram,id=mem1,size=256M -numa node,nodeid=1,memdev=mem1,cpus=1-1"
            ),
            "{line}"
        );
    }

    #[test]
    fn only_control_and_results_are_writable() {
        let line = line(None, &["/data,1"]);
        assert!(line.contains("id=root,path=/,security_model=none,readonly=on"), "{line}");
        assert!(line.contains("id=share0,path=/data,,1,security_model=none,readonly=on"), "{line}");
        assert!(line.contains("id=out,path=/o,security_model=none,readonly=off"), "{line}");
        assert_eq!(line.matches("readonly=off").count(), 2);
    }

    #[test]
    fn a_pair_meets_on_sockets_of_its_own() {
        let (a, b) = (line(Some(Role::A), &[]), line(Some(Role::B), &[]));
        assert!(a.contains("local.path=../net-a") && a.contains("remote.path=../net-b"), "{a}");
        assert!(b.contains("local.path=../net-b") && b.contains("remote.path=../net-a"), "{b}");
    }
}
