//! Soft-iWARP: off in the distribution's kernel, so its module is built here, from the distribution's source.
//!
//! The kernel's headers are unpacked beside the kernel, not installed; the one absolute path in them is rewritten.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    kernel::{self, Kernel},
    progress::progress,
    tool::{self, tool},
};

const UNPACK_LIMIT: Duration = Duration::from_secs(300);
const BUILD_LIMIT: Duration = Duration::from_secs(600);
const SIW: &str = "drivers/infiniband/sw/siw";

/// Returns the module file.
pub(crate) fn build(work: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let headers = unpack_headers(work, kernel)?;
    let source = unpack_source(work, kernel)?;
    progress("building siw");
    let mut command = tool("make");
    command.arg("-C").arg(headers).arg(format!("M={}", source.display()));
    command.args(["CONFIG_RDMA_SIW=m", "-j2", "modules"]);
    tool::run(command, BUILD_LIMIT)?;
    let module = source.join("siw.ko");
    let mut command = tool("strip");
    command.arg("--strip-debug").arg(&module);
    tool::run(command, UNPACK_LIMIT)?;
    Ok(module)
}

fn unpack_headers(work: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let package = format!("linux-headers-{}", kernel.version);
    // The common headers, the build programs and a package that stands for the compiler.
    let mut packages = kernel::depends(&package)?;
    packages.retain(|name| name.starts_with("linux-"));
    packages.push(package.clone());
    progress(&format!("downloading {package}"));
    kernel::download(work, &packages)?;
    for name in &packages {
        kernel::unpack(work, name, &kernel.root)?;
    }
    let headers = kernel.root.join("usr/src").join(package);
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile).context("no Makefile in the headers")?;
    tool::write(&makefile, rebase(&text, &kernel.root).as_bytes())?;
    Ok(headers)
}

/// The Makefile includes the common headers' one by an absolute path.
fn rebase(makefile: &str, root: &Path) -> String {
    makefile.replace(" /usr/src/", &format!(" {}/usr/src/", root.display()))
}

fn unpack_source(work: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let series = series(&kernel.version);
    let name = format!("linux-source-{series}");
    progress(&format!("downloading {name}"));
    kernel::download(work, std::slice::from_ref(&name))?;
    progress(&format!("unpacking {SIW}"));
    // Two archives in each other. Only siw is written out.
    let package = kernel::package_file(work, &name)?;
    let archive = work.join("source.tar");
    let mut command = tool("dpkg-deb");
    command.arg("--fsys-tarfile").arg(&package);
    tool::run_into(command, UNPACK_LIMIT, File::create(&archive)?.into())?;
    fs::remove_file(package)?;

    let inner = work.join("source.tar.xz");
    let mut command = tool("tar");
    command.arg("-xOf").arg(&archive).arg(format!("./usr/src/{name}.tar.xz"));
    tool::run_into(command, UNPACK_LIMIT, File::create(&inner)?.into())?;
    fs::remove_file(archive)?;

    let mut command = tool("tar");
    command.arg("-xJf").arg(&inner).arg("-C").arg(work).arg(format!("{name}/{SIW}"));
    tool::run(command, UNPACK_LIMIT)?;
    fs::remove_file(inner)?;
    Ok(work.join(name).join(SIW))
}

/// `6.1.0-56-amd64` belongs to `6.1`.
fn series(version: &str) -> String {
    version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_belongs_to_a_series() {
        assert_eq!(series("6.1.0-56-amd64"), "6.1");
        assert_eq!(series("6.12.9"), "6.12");
    }

    #[test]
    fn the_makefile_follows_the_headers() {
        let text =
            rebase("include /usr/src/linux-headers-6.1.0-9-common/Makefile\n", Path::new("/cache/root"));
        assert_eq!(text, "include /cache/root/usr/src/linux-headers-6.1.0-9-common/Makefile\n");
    }
}
