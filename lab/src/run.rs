//! One guest, one command.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use gimmal_transport::Instant;
use tempfile::TempDir;

use crate::{
    cache::{self, Cache},
    fabric::Fabrics,
    follow::Sink,
    guest::{Guest, POLL, Sinks},
    packages::{self, FABRIC},
    signals,
    spec::Spec,
    verdict::{self, Verdict},
};

/// What `run` and `pair` share.
#[derive(Debug)]
pub(crate) struct Limits {
    pub timeout: Duration,
    pub allow_kernel_warnings: bool,
}

/// Boots a guest as `spec` says, and judges it.
pub(crate) fn run(spec: &Spec, out: Option<&Path>, limits: &Limits, quiet: bool) -> Result<Verdict> {
    let cache = prepare(spec.fabrics)?;
    let folder = temporary()?;
    let out = out_folder(out, folder.path())?;
    let end = Instant::now() + limits.timeout;
    let sinks = match quiet {
        true => Sinks { stdout: Sink::Nowhere, stderr: Sink::Nowhere, prefix: "" },
        false => Sinks { stdout: Sink::Stdout, stderr: Sink::Stderr, prefix: "" },
    };
    let mut guest = Guest::start(spec, &cache, folder.path(), &out, sinks)?;
    while guest.exit().is_none() && guest.is_running()? {
        if let Some(signal) = signals::seen() {
            return Err(signal.into());
        }
        if Instant::now() >= end {
            return Ok(verdict::timeout(&guest.stop(), limits.timeout.as_secs()));
        }
        thread::sleep(POLL);
    }
    Ok(verdict::of(&guest.finish()?, limits.allow_kernel_warnings))
}

/// The cache, and the programs that the guest will need.
pub(crate) fn prepare(fabrics: Fabrics) -> Result<Cache> {
    if fabrics != Fabrics::None {
        packages::require(&[FABRIC])?;
    }
    cache::prepare()
}

/// A folder that goes when this value does.
pub(crate) fn temporary() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("gimmal-lab-").tempdir()?)
}

/// The folder that a guest writes its results to; without a wish, one that nobody sees.
pub(crate) fn out_folder(wish: Option<&Path>, temporary: &Path) -> Result<PathBuf> {
    let folder = wish.map_or_else(|| temporary.join("out"), Path::to_owned);
    fs::create_dir_all(&folder)
        .and_then(|()| folder.canonicalize())
        .with_context(|| format!("cannot create {}", folder.display()))
}
