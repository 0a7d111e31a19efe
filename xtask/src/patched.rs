//! Patches that are tried one at a time, in a copy of the sources: planted bugs, and entries of the ledger taken out.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::tree;

/// A copy of the working tree.
#[derive(Debug)]
pub struct Copy {
    folder: &'static str,
}

impl Copy {
    /// Copies every file that git does not ignore to `folder`, which is named from the root. The files are new, so cargo takes no
    /// older build for this one.
    ///
    /// # Errors
    /// git cannot be started, or a file cannot be copied.
    pub fn make(folder: &'static str) -> io::Result<Self> {
        let (root, target) = (tree::root(), tree::root().join(folder));
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        for path in tree::listed()?.split('\0') {
            let (from, to) = (root.join(path), target.join(path));
            // A file that was deleted and not committed is still listed.
            if !path.is_empty() && from.is_file() {
                fs::create_dir_all(to.parent().unwrap_or(&to))?;
                fs::copy(from, to)?;
            }
        }
        Ok(Self { folder })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        tree::root().join(self.folder)
    }

    /// Does `work` with `patch` applied, and takes the patch back. The place may have moved, but its lines must be there.
    ///
    /// # Errors
    /// The patch does not apply, or `work` fails.
    pub fn with<T>(&self, patch: &Path, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.apply(patch, None)?;
        let outcome = work();
        self.apply(patch, Some("--reverse"))?;
        outcome
    }

    fn apply(&self, patch: &Path, reverse: Option<&str>) -> io::Result<()> {
        let mut git = Command::new("git");
        git.current_dir(tree::root()).args(["apply", "--recount", "-C1", "--directory", self.folder]);
        output(git.args(reverse).arg(patch)).map(drop)
    }
}

/// What a program printed on standard output.
///
/// # Errors
/// It cannot be started, or fails; the error has the end of what it printed on standard error.
pub fn output(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = words.lines().collect();
    let end = lines[lines.len().saturating_sub(12)..].join("\n");
    Err(io::Error::other(format!("{} failed:\n{end}", command.get_program().to_string_lossy())))
}

/// The patches of a folder by their names, in order: those of `names`, or all if there are none.
///
/// # Errors
/// The folder cannot be read, or has no patch of a name.
pub fn patches(folder: &str, names: &[&str]) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(tree::root().join(folder))? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("patch")) {
            found.push((path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), path));
        }
    }
    found.sort();
    if let Some(unknown) = names.iter().find(|name| found.iter().all(|(known, _)| known != *name)) {
        return Err(io::Error::other(format!("{folder} has no {unknown}.patch")));
    }
    found.retain(|(name, _)| names.is_empty() || names.contains(&name.as_str()));
    Ok(found)
}

/// The first line of a patch, which says what it changes.
///
/// # Errors
/// It cannot be read.
pub fn title(patch: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(patch)?.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the code takes its patches along; a patch that does not apply is named.
    #[test]
    fn every_patch_applies_and_says_what_it_changes() {
        let mut broken = Vec::new();
        for folder in ["engine/mutants", "bench/ledger"] {
            let patches = patches(folder, &[]).unwrap();
            assert!(patches.len() > 10, "{folder}");
            for (name, patch) in patches {
                assert!(title(&patch).unwrap().ends_with('.'), "{name} begins with what it changes");
                let mut git = Command::new("git");
                git.current_dir(tree::root()).args(["apply", "--check", "--recount", "-C1"]).arg(&patch);
                broken.extend(output(&mut git).err().map(|error| format!("{folder}/{name}: {error}")));
            }
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }
}
