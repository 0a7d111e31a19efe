//! The distribution's kernel: downloaded as packages, unpacked in a folder, never installed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    progress::progress,
    tool::{self, tool},
};

const QUERY_LIMIT: Duration = Duration::from_secs(60);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// What each group of modules is for; `boot.sh` loads the groups it needs.
///
/// Order matters: `rdma_rxe` looks its checksum up by name and does not load it (without `crc32_generic` adding a
/// link fails with ENOENT), and siw does not even load without `crc32c_generic`.
///
/// Not `crc32_pclmul`: the kernel uses it from 79 bytes on, and emulated it is slower than the table, by 2 us for a packet of
/// 80 bytes and by a fifth for 1 MiB. No processor is like that, so what was measured around 79 bytes said nothing.
const GROUPS: &[(&str, &[&str])] = &[
    ("base", &["virtio_pci", "9pnet_virtio", "9p", "overlay"]),
    ("rxe", &["crc32_generic", "veth", "rdma_rxe", "rdma_ucm", "ib_uverbs", "sch_netem", "bonding"]),
    ("siw", &["crc32c_generic", "veth", "siw", "rdma_ucm", "ib_uverbs", "sch_netem"]),
    ("pair", &["virtio_net", "sch_netem"]),
];

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// As `uname -r` says it.
    pub version: String,
    /// Stands for `/` in what the packages contain.
    pub root: PathBuf,
}

/// The modules of one group, each after those it needs.
#[derive(Debug)]
pub(crate) struct List {
    pub group: &'static str,
    pub modules: Vec<Module>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// As in `/sys/module`.
    pub name: String,
    pub file: PathBuf,
}

impl Kernel {
    pub(crate) fn vmlinuz(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.version))
    }

    fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.version)
    }
}

/// Finds out which kernel the distribution has now, fetches and unpacks it below `work`.
pub(crate) fn fetch(work: &Path) -> Result<Kernel> {
    let package = depends("linux-image-amd64")?
        .into_iter()
        .find(|name| name.starts_with("linux-image-"))
        .context("linux-image-amd64 depends on no kernel")?;
    let version = package.trim_start_matches("linux-image-").to_owned();
    let root = work.join("root");
    fs::create_dir(&root)?;
    progress(&format!("downloading {package}"));
    download(work, std::slice::from_ref(&package))?;
    progress(&format!("unpacking {package}"));
    unpack(work, &package, &root)?;
    Ok(Kernel { version, root })
}

/// The packages that `package` needs, by name.
pub(crate) fn depends(package: &str) -> Result<Vec<String>> {
    let mut command = tool("apt-cache");
    command.args(["depends", package]);
    let names = parse_depends(&tool::read(command, QUERY_LIMIT)?);
    if names.is_empty() {
        bail!("apt knows nothing about {package}; run: apt-get update");
    }
    Ok(names)
}

fn parse_depends(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| !name.starts_with('<'))
        .map(str::to_owned)
        .collect()
}

/// Downloads packages into `folder`.
pub(crate) fn download(folder: &Path, names: &[String]) -> Result<()> {
    let mut command = tool("apt-get");
    // Root's apt would drop its rights and then not be allowed to write here; it warns about that.
    command.args(["-qq", "-o", "APT::Sandbox::User=root", "download"]).args(names).current_dir(folder);
    tool::run(command, DOWNLOAD_LIMIT)
}

/// The file that [`download`] left for a package.
pub(crate) fn package_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let prefix = format!("{name}_");
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name();
        if file_name.to_str().is_some_and(|file| file.starts_with(&prefix) && file.ends_with(".deb")) {
            return Ok(entry.path());
        }
    }
    bail!("no package file of {name}")
}

/// Unpacks a downloaded package and removes its file.
pub(crate) fn unpack(folder: &Path, name: &str, root: &Path) -> Result<()> {
    let file = package_file(folder, name)?;
    let mut command = tool("dpkg-deb");
    command.arg("-x").arg(&file).arg(root);
    tool::run(command, UNPACK_LIMIT)?;
    fs::remove_file(file)?;
    Ok(())
}

/// Adds the module `siw` to the tree and lists what each group loads.
pub(crate) fn modules(kernel: &Kernel, siw: &Path) -> Result<Vec<List>> {
    let updates = kernel.modules().join("updates");
    fs::create_dir_all(&updates)?;
    fs::copy(siw, updates.join("siw.ko"))?;
    let mut command = tool("depmod");
    command.arg("-b").arg(&kernel.root).arg(&kernel.version);
    tool::run(command, UNPACK_LIMIT)?;
    GROUPS
        .iter()
        .map(|&(group, names)| {
            let mut modules = Vec::new();
            for name in names {
                let mut command = tool("modprobe");
                command.arg("-d").arg(&kernel.root).args(["-S", &kernel.version, "--show-depends", name]);
                let text = tool::read(command, QUERY_LIMIT)?;
                modules.extend(parse_show_depends(&text));
            }
            Ok(List { group, modules: firsts(modules) })
        })
        .collect()
}

/// Lines are `insmod PATH OPTIONS` or `builtin NAME`.
fn parse_show_depends(text: &str) -> Vec<Module> {
    text.lines()
        .filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next())
        .filter_map(|file| {
            let file = PathBuf::from(file);
            let name = file.file_name()?.to_str()?.split('.').next()?.replace('-', "_");
            Some(Module { name, file })
        })
        .collect()
}

/// Keeps the first of each, and with it the order.
fn firsts(modules: Vec<Module>) -> Vec<Module> {
    let mut list: Vec<Module> = Vec::with_capacity(modules.len());
    for module in modules {
        if !list.contains(&module) {
            list.push(module);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read() {
        let text = "linux-headers-6.1.0-9-amd64\n  Depends: linux-headers-6.1.0-9-common\n\
                    \x20\x20Depends: <virtual>\n  Recommends: x\n |Depends: alternative\n";
        assert_eq!(parse_depends(text), ["linux-headers-6.1.0-9-common"]);
    }

    #[test]
    fn modules_keep_their_order_and_come_once() {
        let text =
            "builtin unix\ninsmod /m/crc32-pclmul.ko \ninsmod /m/ib_core.ko a=1\ninsmod /m/crc32-pclmul.ko\n";
        let names: Vec<_> = firsts(parse_show_depends(text)).into_iter().map(|module| module.name).collect();
        assert_eq!(names, ["crc32_pclmul", "ib_core"]);
    }

    #[test]
    fn checksums_load_before_what_uses_them() {
        for (driver, checksum) in [("rdma_rxe", "crc32_generic"), ("siw", "crc32c_generic")] {
            let list = GROUPS.iter().find(|(_, names)| names.contains(&driver)).unwrap().1;
            let place = |wanted| list.iter().position(|name| *name == wanted).unwrap();
            assert!(place(checksum) < place(driver));
        }
    }
}
