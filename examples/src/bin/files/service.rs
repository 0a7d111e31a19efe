//! What server and client agree on.

use gimmal::{Cx, WithLoan};
use serde::{Deserialize, Serialize};

/// Files up to this size come in the answer, larger ones as bulk, bytes.
pub(crate) const SMALL_BYTES: u64 = 4096;
/// Entries of one answer to `list`.
pub(crate) const PAGE: usize = 64;
/// Files of one `read_ahead`, at most.
pub(crate) const AHEAD_FILES: usize = 64;
/// Bytes of one `read_ahead`, at most, unless a single file has more.
pub(crate) const AHEAD_BYTES: u64 = 32 << 20;

/// One file or folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, gimmal::Shape)]
pub(crate) struct Entry {
    /// Below the served folder, with slashes.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) is_folder: bool,
}

/// A page of a folder, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, gimmal::Shape)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// Whether there are more.
    pub(crate) more: bool,
}

/// A file: its bytes when it is small, else they are in the bulk beside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, gimmal::Shape)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
}

/// Why a file cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, gimmal::Shape)]
pub(crate) enum FileError {
    NotFound,
    /// Outside of what is served, or not readable.
    Denied,
    /// The operating system said this.
    Other(String),
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("no such file"),
            Self::Denied => f.write_str("not readable, or outside of the served folder"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for FileError {}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NotFound,
            std::io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// A folder, read only.
#[gimmal::service]
pub(crate) trait Files {
    /// The entries of `folder`, from the `skip`th on.
    async fn list(&self, cx: &Cx, folder: String, skip: u32) -> Result<Page, FileError>;
    /// One entry.
    async fn stat(&self, cx: &Cx, path: String) -> Result<Entry, FileError>;
    /// Reads files into memory, so that the next `fetch` of each only moves its bytes.
    async fn read_ahead(&self, cx: &Cx, paths: Vec<String>) -> Result<(), FileError>;
    /// A file's content.
    async fn fetch(&self, cx: &Cx, path: String) -> Result<WithLoan<Content>, FileError>;
}
