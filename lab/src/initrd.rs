//! The guest's first root file system: busybox, kernel modules with their lists, and `init.sh`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufWriter,
    path::Path,
};

use anyhow::{Context, Result};

use crate::{
    cpio::Archive,
    kernel::{List, Module},
    packages,
};

const INIT: &str = include_str!("init.sh");

/// Mount points, and where things lie.
const FOLDERS: &[&str] = &["bin", "proc", "sys", "dev", "ctl", "modules", "memory", "new"];

/// What `init.sh` and `boot.sh` call; links to busybox.
const APPLETS: &[&str] = &["sh", "mount", "mkdir", "insmod", "cp", "switch_root", "sleep"];

/// Writes the archive.
pub(crate) fn write(path: &Path, lists: &[List]) -> Result<()> {
    let busybox = packages::find("busybox").context("no busybox")?;
    let mut archive = Archive::new(BufWriter::new(File::create(path)?));
    for folder in FOLDERS {
        archive.folder(folder)?;
    }
    archive.file("bin/busybox", &fs::read(busybox)?)?;
    for applet in APPLETS {
        archive.link(&format!("bin/{applet}"), "busybox")?;
    }
    archive.file("init", INIT.as_bytes())?;

    let modules: BTreeMap<&str, &Module> =
        lists.iter().flat_map(|list| &list.modules).map(|module| (module.name.as_str(), module)).collect();
    for (name, module) in modules {
        let content = fs::read(&module.file).with_context(|| format!("cannot read module {name}"))?;
        archive.file(&format!("modules/{name}.ko"), &content)?;
    }
    for list in lists {
        let names: String = list.modules.iter().map(|module| format!("{}\n", module.name)).collect();
        archive.file(&format!("modules/{}.list", list.group), names.as_bytes())?;
    }
    archive.finish()?;
    Ok(())
}
