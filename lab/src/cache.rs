//! What a guest boots from, made once and kept in the user's cache folder.
//!
//! ```text
//! ~/.cache/gimmal/lab-N/vmlinux   the distribution's kernel, unpacked
//!                      /initrd    busybox, modules, init.sh
//!                      /version   of the kernel, for the reader
//! ~/.cache/gimmal/lab-N.lock      held while the folder is made; N is the recipe's number
//! ```
//!
//! The folder appears by one rename: it is complete or it is not there.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use gimmal_transport::Instant;
use rustix::fs::{FlockOperation, flock};

use crate::{
    bzimage, initrd, kernel,
    packages::{self, BOOT, PREPARE},
    progress::progress,
    signals, siw, tool,
};

/// Raise it when anything that makes the cache's content changes.
const RECIPE: u32 = 5;

/// Longer than a whole preparation takes on a slow machine.
const LOCK_LIMIT: Duration = Duration::from_secs(1200);
const LOCK_POLL: Duration = Duration::from_millis(200);

/// A complete folder.
#[derive(Debug)]
pub(crate) struct Cache {
    pub vmlinux: PathBuf,
    pub initrd: PathBuf,
}

/// Returns the folder, after making it if it was not there.
pub(crate) fn prepare() -> Result<Cache> {
    let root =
        root(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::var_os("HOME").map(PathBuf::from))?;
    let folder = root.join(format!("lab-{RECIPE}"));
    if !folder.exists() {
        packages::require(&[BOOT, PREPARE])?;
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let _lock = lock(&root.join(format!("lab-{RECIPE}.lock")))?;
        if !folder.exists() {
            make(&root, &folder)?;
        }
    }
    packages::require(&[BOOT])?;
    Ok(Cache { vmlinux: folder.join("vmlinux"), initrd: folder.join("initrd") })
}

fn root(xdg_cache_home: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf> {
    let cache = xdg_cache_home
        .filter(|path| path.is_absolute())
        .or_else(|| home.map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("gimmal"))
}

fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let started = Instant::now();
    let mut told = false;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if let Some(signal) = signals::seen() {
            return Err(signal.into());
        }
        if started.elapsed() > LOCK_LIMIT {
            bail!("another preparation has held {} for too long", path.display());
        }
        if !told {
            progress("another preparation is under way, waiting for it");
            told = true;
        }
        thread::sleep(LOCK_POLL);
    }
    Ok(file)
}

fn make(root: &Path, folder: &Path) -> Result<()> {
    let started = Instant::now();
    // On the file system of the cache, so that the rename is one.
    let work = tempfile::Builder::new().prefix("making-").tempdir_in(root)?;
    let kernel = kernel::fetch(work.path())?;
    let siw = siw::build(work.path(), &kernel)?;
    let lists = kernel::modules(&kernel, &siw)?;

    progress("writing the initrd");
    let ready = work.path().join("ready");
    fs::create_dir(&ready)?;
    bzimage::write_bootable(&kernel.vmlinuz(), &ready.join("vmlinux"))?;
    initrd::write(&ready.join("initrd"), &lists)?;
    tool::write(&ready.join("version"), format!("{}\n", kernel.version).as_bytes())?;
    fs::rename(&ready, folder)?;
    progress(&format!(
        "kernel {} is ready in {} after {} s",
        kernel.version,
        folder.display(),
        started.elapsed().as_secs()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xdg_comes_before_home() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(root(path("/x"), path("/h")).unwrap(), Path::new("/x/gimmal"));
        assert_eq!(root(None, path("/h")).unwrap(), Path::new("/h/.cache/gimmal"));
        assert_eq!(root(path("relative"), path("/h")).unwrap(), Path::new("/h/.cache/gimmal"));
        assert!(root(None, None).is_err());
    }
}
