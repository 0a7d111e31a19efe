//! The text files of the project: of the working tree, of a revision, or made up by a test.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Text files by their path from the root, with `/` between folders.
#[derive(Clone, Default, Debug)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// The files of the working tree that git does not ignore.
    ///
    /// # Errors
    /// git cannot be started or fails.
    pub fn here() -> io::Result<Self> {
        let root = root();
        let listed = listed()?;
        let mut files = BTreeMap::new();
        for path in listed.split('\0').filter(|path| is_text(path)) {
            // A file that was deleted and not committed is still listed.
            if let Ok(text) = fs::read_to_string(root.join(path)) {
                files.insert(path.to_owned(), text);
            }
        }
        Ok(Self { files })
    }

    /// The files of a revision.
    ///
    /// # Errors
    /// git cannot be started, or does not know the revision.
    pub fn at(revision: &str) -> io::Result<Self> {
        let listed = git(&["ls-tree", "-r", "-z", "--name-only", "--full-tree", revision])?;
        let paths: Vec<&str> = listed.split('\0').filter(|path| is_text(path)).collect();
        let texts = contents(revision, &paths)?;
        Ok(Self { files: paths.iter().map(|path| (*path).to_owned()).zip(texts).collect() })
    }

    /// A tree of these files.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    /// Every path and its text, in the order of the paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text of a file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

/// The project's root folder.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// The files of the working tree that git does not ignore, with a zero byte behind each.
///
/// # Errors
/// git cannot be started or fails.
pub fn listed() -> io::Result<String> {
    git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
}

fn is_text(path: &str) -> bool {
    [".rs", ".md", ".toml", ".txt", ".sh"].iter().any(|end| path.ends_with(end))
}

fn git(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("git {}: {}", arguments[0], words.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The texts of `paths` at `revision`, by one process of git.
fn contents(revision: &str, paths: &[&str]) -> io::Result<Vec<String>> {
    let mut child = Command::new("git")
        .args(["cat-file", "--batch"])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let names: String = paths.iter().map(|path| format!("{revision}:{path}\n")).collect();
    let mut input = child.stdin.take().ok_or_else(|| io::Error::other("no input of git"))?;
    // A thread of its own: git answers before it has read all names.
    let writer = std::thread::spawn(move || io::Write::write_all(&mut input, names.as_bytes()));
    let output = child.wait_with_output()?.stdout;
    writer.join().map_err(|_| io::Error::other("the names of the files were not written"))??;
    let mut texts = Vec::with_capacity(paths.len());
    let mut rest = output.as_slice();
    for path in paths {
        let broken = || io::Error::other(format!("git said nothing about {path}"));
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        let bytes: usize = head.rsplit(' ').next().and_then(|size| size.parse().ok()).ok_or_else(broken)?;
        let body = rest.get(end + 1..end + 1 + bytes).ok_or_else(broken)?;
        texts.push(String::from_utf8_lossy(body).into_owned());
        rest = rest.get(end + 2 + bytes..).unwrap_or_default();
    }
    Ok(texts)
}
