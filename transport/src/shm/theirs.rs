//! Memory that a peer passed, by the names it gave: how much it may be, and which file is mapped already.
//!
//! A file is mapped once, however many names it has: a hostile peer could use up our mappings with a single page otherwise.

use std::{os::fd::BorrowedFd, sync::Arc};

use super::{
    lock::FileId,
    segment::{AttachError, Kind, check_theirs, map_theirs},
};
use crate::{Violation, mem::Region};

/// Bytes that a connection may pass of one kind.
const BYTES_MAX: u64 = 1 << 42;

/// What one kind of passed memory is called, and how many pieces of it a connection may pass.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) pieces_max: usize,
    /// Of [`Violation::Passed`].
    pub(super) pieces: &'static str,
    pub(super) bytes: &'static str,
    /// Of [`Violation::Malformed`].
    pub(super) twice: &'static str,
}

/// The peer's memory of one kind, each piece as a `T`.
#[derive(Debug)]
pub(super) struct Theirs<T> {
    pieces: Vec<Piece<T>>,
}

#[derive(Debug)]
struct Piece<T> {
    name: u64,
    file: FileId,
    /// That are mapped; 0 if this is one more name of a file.
    bytes: u64,
    memory: Arc<T>,
}

impl<T> Default for Theirs<T> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<T> Theirs<T> {
    /// What the peer passed as `name`.
    #[inline]
    pub(super) fn find(&self, name: u64) -> Option<&Arc<T>> {
        self.pieces.iter().find_map(|piece| (piece.name == name).then_some(&piece.memory))
    }

    /// How many files are mapped, and how many bytes they have.
    pub(super) fn size(&self) -> (u64, u64) {
        let mapped = self.pieces.iter().filter(|piece| piece.bytes > 0);
        mapped.fold((0, 0), |(files, bytes), piece| (files + 1, bytes + piece.bytes))
    }

    /// Whether there is no room for another piece.
    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.pieces.len() >= limits.pieces_max
    }

    /// Takes out what the peer passed as `name`: it, and the bytes that go with it, 0 if the file has other names.
    pub(super) fn forget(&mut self, name: u64) -> Option<(Arc<T>, usize)> {
        let at = self.pieces.iter().position(|piece| piece.name == name)?;
        let gone = self.pieces.remove(at);
        let heir = self.pieces.iter_mut().find(|piece| piece.file == gone.file);
        let bytes = match heir {
            Some(heir) => {
                heir.bytes += gone.bytes;
                0
            }
            None => usize::try_from(gone.bytes).unwrap_or(usize::MAX),
        };
        Some((gone.memory, bytes))
    }

    /// Takes out what is not to be kept: it, and the bytes that go with it.
    pub(super) fn take_out(&mut self, keep: impl Fn(&T) -> bool) -> (Vec<Arc<T>>, usize) {
        let names: Vec<_> =
            self.pieces.iter().filter(|piece| !keep(&piece.memory)).map(|piece| piece.name).collect();
        let (memory, bytes): (Vec<_>, Vec<_>) = names.iter().filter_map(|name| self.forget(*name)).unzip();
        (memory, bytes.into_iter().fold(0, usize::saturating_add))
    }

    /// Takes a file that the peer passed as `name`, of `bytes`.
    pub(super) fn take(
        &mut self,
        (name, bytes, fd): (u64, u64, BorrowedFd<'_>),
        kind: &Kind,
        limits: &Limits,
        memory: impl FnOnce(Region) -> T,
    ) -> Result<(), AttachError> {
        let malformed = |what| AttachError::Peer(Violation::Malformed { what });
        if self.find(name).is_some() {
            return Err(malformed(limits.twice));
        }
        let passed = |what, value, limit| match value <= limit {
            true => Ok(()),
            false => Err(AttachError::Peer(Violation::Passed { what, value, limit })),
        };
        passed(limits.pieces, self.pieces.len() as u64 + 1, limits.pieces_max as u64)?;
        passed(limits.bytes, self.size().1.saturating_add(bytes), BYTES_MAX)?;
        let (file, size) = check_theirs(fd, bytes, kind)?;
        let known = self.pieces.iter().find(|piece| piece.file == file);
        let (memory, bytes) = match known {
            Some(known) => (Arc::clone(&known.memory), 0),
            None => (Arc::new(memory(map_theirs(fd, size, kind)?)), bytes),
        };
        self.pieces.push(Piece { name, file, bytes, memory });
        Ok(())
    }
}
