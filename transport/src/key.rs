//! A shared key: read from a file that is closed to others, never shown, gone from memory when it is dropped.

use std::{
    fmt,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{fs::OFlags, process::geteuid};
use thiserror::Error;
use zeroize::Zeroize;

/// Fewest bytes of a key. They must be random: an eavesdropper can try words for as long as it likes.
pub const KEY_BYTES_MIN: usize = 16;
/// Most bytes of a key file.
pub const KEY_BYTES_MAX: usize = 4096;
/// Keys a listener may believe at once.
pub const KEYS_MAX: usize = 8;

const CONTEXT: &str = "gimmal 2026 shared key of the connection handshake";

/// Why a shared key could not be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Too few or too many bytes.
    #[error(
        "a key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes, this one {bytes}; make one with `head -c 32 /dev/urandom > FILE`"
    )]
    Length {
        /// How many there are.
        bytes: usize,
    },
    /// The file can be read or written by others, or belongs to somebody else.
    #[error("the key file {} {why}; `chmod 600` it, as its user", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file cannot be read.
    #[error("the key file {} cannot be read: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
}

struct Secret([u8; 32]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A key that both sides of a connection have. Each proves that it has it before the other discloses an address of its memory. It
/// encrypts nothing. Clones share it; equality takes the same time for all keys, and `Debug` does not show it. It is wiped when the
/// last clone is dropped.
///
/// ```
/// use gimmal_transport::Key;
///
/// let key = Key::new(&[7; 32])?; // of random bytes; `Key::from_file` reads a file of mode 0600
/// # Ok::<(), gimmal_transport::KeyError>(())
/// ```
#[derive(Clone)]
pub struct Key {
    secret: Arc<Secret>,
}

impl Key {
    /// Makes a key of 16 to 4096 bytes. They must be random: an eavesdropper can try words for as long as it likes.
    ///
    /// # Errors
    /// [`KeyError::Length`] for fewer or more bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&bytes.len()) {
            return Err(KeyError::Length { bytes: bytes.len() });
        }
        Ok(Self { secret: Arc::new(Secret(blake3::derive_key(CONTEXT, bytes))) })
    }

    /// Reads a key from a file of this user (or root's), mode 0600 or less; white space at its end is no part of it. A file of
    /// root's in `$CREDENTIALS_DIRECTORY` itself may have mode 0440: systemd lets the user of a service read it so.
    ///
    /// # Errors
    /// [`KeyError::Open`] for a file of somebody else's or with another mode, [`KeyError::Read`] if it cannot be read,
    /// [`KeyError::Length`] unless it has 16 to 4096 bytes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let unread = |error: std::io::Error| KeyError::Read { path: path.into(), why: error.to_string() };
        // A pipe put there must not hold us up.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file =
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unread)?;
        // Of the file that is open, not of the path.
        let about = file.metadata().map_err(unread)?;
        let open = |why| Err(KeyError::Open { path: path.into(), why });
        if !about.is_file() {
            return open("is no file".to_owned());
        }
        if let Some(why) = refusal(about.mode(), about.uid(), is_credential(path)) {
            return open(why);
        }
        let mut bytes = Vec::with_capacity(KEY_BYTES_MAX + 1);
        let read = (&mut file).take(KEY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unread);
        let key = read.and_then(|_| Self::new(bytes.trim_ascii_end()));
        bytes.zeroize();
        key
    }

    /// A keyed hash over `parts`, whose lengths the caller has fixed.
    pub(crate) fn hash(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret.0);
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// Whether systemd has put it there for this service.
fn is_credential(path: &Path) -> bool {
    std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|folder| path.parent() == Some(Path::new(&folder)))
}

/// Why a file is no place for a key. The mode of a credential's group is the mask of an ACL, which names the service's user alone.
fn refusal(mode: u32, uid: u32, is_credential: bool) -> Option<String> {
    let closed = if is_credential && uid == 0 { 0o037 } else { 0o077 };
    if mode & closed != 0 {
        return Some(format!("has mode {:04o}", mode & 0o7777));
    }
    let is_ours = uid == geteuid().as_raw() || uid == 0;
    (!is_ours).then(|| format!("belongs to uid {uid}"))
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        constant_time_eq::constant_time_eq_32(&self.secret.0, &other.secret.0)
    }
}

impl Eq for Key {}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::PermissionsExt};

    use super::*;

    fn file(bytes: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_key_is_never_shown_and_compares_by_value() {
        let key = Key::new(b"sixteen bytes ok").unwrap();
        assert_eq!(format!("{key:?} {key:#?}"), "Key(not shown) Key(not shown)");
        assert_eq!(key, Key::new(b"sixteen bytes ok").unwrap());
        assert_ne!(key, Key::new(b"sixteen bytes no").unwrap());
        assert_eq!(Key::new(b"short"), Err(KeyError::Length { bytes: 5 }));
        assert!(Key::new(&[1; KEY_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_credential_of_systemd_may_be_read_by_its_service() {
        assert_eq!(refusal(0o100_440, 0, true), None);
        assert_eq!(refusal(0o100_440, 0, false).unwrap(), "has mode 0440");
        for mode in [0o460, 0o450, 0o444, 0o644] {
            assert!(refusal(mode, 0, true).is_some(), "{mode:o}");
        }
        let other = geteuid().as_raw() + 1;
        assert_eq!(refusal(0o440, other, true).unwrap(), "has mode 0440");
        assert_eq!(refusal(0o400, other, true).unwrap(), format!("belongs to uid {other}"));
        assert!(!is_credential(Path::new("/etc/gimmal/redis.key")));
    }

    #[test]
    fn a_file_must_be_closed_to_others() {
        let good = file(b"0123456789abcdef0123456789abcdef\n", 0o600);
        let key = Key::from_file(good.path()).unwrap();
        assert_eq!(key, Key::new(b"0123456789abcdef0123456789abcdef").unwrap());
        for mode in [0o640, 0o604, 0o644, 0o660] {
            let open = file(b"0123456789abcdef0123456789abcdef", mode);
            let error = Key::from_file(open.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("has mode {mode:04o}")), "{error}");
        }
        let short = file(b"short\n", 0o600);
        assert_eq!(Key::from_file(short.path()), Err(KeyError::Length { bytes: 5 }));
        assert!(matches!(Key::from_file("/nowhere/key"), Err(KeyError::Read { .. })));
        assert!(matches!(Key::from_file("/dev"), Err(KeyError::Open { .. } | KeyError::Read { .. })));
    }
}
