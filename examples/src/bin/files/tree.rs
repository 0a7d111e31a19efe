//! The folder that is served: what may be seen of it, and the default one.

use std::{
    fs,
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
};

/// A path a client named, inside `root`: no way out by `..`, by a root of its own or by a link.
pub(crate) fn inside(root: &Path, path: &str) -> io::Result<PathBuf> {
    let path = Path::new(path);
    if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    let full = root.join(path).canonicalize()?;
    if full.starts_with(root) { Ok(full) } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) }
}

/// The digest of a file, read in pieces.
pub(crate) fn digest(path: &Path) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut file = fs::File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(*hasher.finalize().as_bytes()),
            bytes => hasher.update(&piece[..bytes]),
        };
    }
}

/// A folder that every Debian machine with Rust has.
pub(crate) fn default_folder() -> PathBuf {
    let home = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")));
    let toolchains = home.and_then(|home| fs::read_dir(home.join("toolchains")).ok());
    let mut folders: Vec<_> =
        toolchains.into_iter().flatten().flatten().map(|entry| entry.path().join("lib")).collect();
    folders.sort();
    folders.extend(["/usr/lib/rustlib", "/usr/share/doc"].map(PathBuf::from));
    folders.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| PathBuf::from("/usr/share"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_seen() {
        let root = Path::new("/usr/share").canonicalize().unwrap();
        for path in ["../lib", "/etc/passwd", "doc/../../lib"] {
            assert_eq!(inside(&root, path).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{path}");
        }
        assert_eq!(inside(&root, "").unwrap(), root);
    }
}
