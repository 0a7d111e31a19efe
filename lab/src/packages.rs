//! Which programs the lab needs, which Debian package brings each, and what to type when some are missing.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

/// A program the lab starts (on the host or in the guest) and the package it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub name: &'static str,
    pub package: &'static str,
}

const fn program(name: &'static str, package: &'static str) -> Program {
    Program { name, package }
}

pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// To boot a guest, once the cache is filled.
pub(crate) const BOOT: &[Program] = &[program(QEMU, "qemu-system-x86")];

/// Inside the guest, to bring the fabrics up.
pub(crate) const FABRIC: &[Program] = &[program("ip", "iproute2"), program("rdma", "iproute2")];

/// To fill the cache.
pub(crate) const PREPARE: &[Program] = &[
    program("apt-get", "apt"),
    program("dpkg-deb", "dpkg"),
    program("busybox", "busybox-static"),
    program("depmod", "kmod"),
    program("modprobe", "kmod"),
    program("tar", "tar"),
    program("xz", "xz-utils"),
    program("make", "make"),
    program("gcc", "gcc"),
    program("strip", "binutils"),
];

/// For the selftest.
pub(crate) const SELFTEST: &[Program] = &[program("rping", "rdmacm-utils")];

/// What has no program to look for, or what tests in the guest use beyond the lab itself.
const ALSO: &[&str] = &["libelf1", "rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest"];

/// Programs were not found; the message names the command that installs them.
#[derive(Debug)]
pub(crate) struct Missing(Vec<&'static Program>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|program| program.name).collect();
        let packages = unique(self.0.iter().map(|program| program.package));
        write!(
            f,
            "not found: {}\ninstall with: apt-get install -y --no-install-recommends {}",
            names.join(" "),
            packages.join(" ")
        )
    }
}

impl std::error::Error for Missing {}

/// Fails with all missing programs at once.
pub(crate) fn require(groups: &[&'static [Program]]) -> Result<(), Missing> {
    let missing: Vec<_> =
        groups.iter().copied().flatten().filter(|program| find(program.name).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Missing(missing)) }
}

/// Looks in `PATH`, then where a user's `PATH` often does not reach.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// All packages the lab needs, for a script to install.
pub(crate) fn all() -> Vec<&'static str> {
    let programs = [BOOT, FABRIC, PREPARE, SELFTEST].into_iter().flatten().map(|program| program.package);
    unique(programs.chain(ALSO.iter().copied()))
}

fn unique(packages: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut list = Vec::new();
    for package in packages {
        if !list.contains(&package) {
            list.push(package);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_each_package_once() {
        let list = all();
        assert!(list.contains(&"qemu-system-x86") && list.contains(&"rdma-core"));
        assert_eq!(list.iter().filter(|package| **package == "kmod").count(), 1);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        const GROUP: &[Program] = &[
            program("no-such-program-1", "one"),
            program("no-such-program-2", "one"),
            program("sh", "dash"),
        ];
        let message = require(&[GROUP]).unwrap_err().to_string();
        assert_eq!(
            message,
            "not found: no-such-program-1 no-such-program-2\n\
             install with: apt-get install -y --no-install-recommends one"
        );
    }
}
