//! The lock file beside a socket: the server that holds its lock has the name.
//!
//! The kernel drops the lock when the last process that has the file open ends. That is the server, or a child that it
//! forked without exec. The file holds the server's pid, for people.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, Stat},
    io::{Errno, retry_on_intr},
    process::Pid,
};

use super::denied::refused;
use crate::{Address, ListenError, address::LOCK_SUFFIX, kernel};

/// A file, whatever names lead to it: another one may be at its path by now. No other file has its id while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The id of the file at `path`, if there is one; links are not followed.
    pub(super) fn at(path: &Path) -> Option<Self> {
        rustix::fs::lstat(path).ok().map(|stat| Self::of(&stat))
    }

    pub(super) const fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Removes the file at `path` if it is still the file `id`.
pub(super) fn remove(path: &Path, id: FileId) {
    if FileId::at(path) == Some(id)
        && let Err(errno) = rustix::fs::unlink(path)
    {
        tracing::debug!(path = %path.display(), %errno, "could not be removed");
    }
}

/// A lock that is held. Dropping it removes its file and frees the lock; in a forked child it does neither.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    id: FileId,
    pid: u32,
    // Held last: the lock may be free only when the file is gone.
    _file: OwnedFd,
}

impl Lock {
    /// Takes the lock of the socket at `socket`.
    ///
    /// # Errors
    /// [`ListenError::InUse`] while another process has it; else what the file system says.
    pub(super) fn take(socket: &Path) -> Result<Self, ListenError> {
        let path = lock_path(socket);
        let in_use =
            |by| ListenError::InUse { address: Address::Shm { path: socket.to_owned() }.to_string(), by };
        let refused = |step: &'static str| {
            let path = &path;
            move |errno| refused(socket, path, step, errno)
        };
        for _ in 0..16 {
            let file = open(&path).map_err(refused("open"))?;
            match kernel::lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(in_use(holder(&file))),
                Err(errno) => return Err(refused("flock")(errno)),
            }
            let id = FileId::of(&rustix::fs::fstat(&file).map_err(refused("fstat"))?);
            // Else its server removed it between our open and our lock.
            if FileId::at(&path) == Some(id) {
                let pid = std::process::id();
                note(&file, pid);
                return Ok(Self { path, id, pid, _file: file });
            }
        }
        Err(in_use("a server that has just started".to_owned()))
    }

    /// Whether this process took it: a forked child has a copy and must leave the files alone.
    pub(super) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_ours() {
            remove(&self.path, self.id);
        }
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(LOCK_SUFFIX);
    PathBuf::from(name)
}

/// Opens the file, and makes it if it is missing.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW;
    kernel::open(path, flags | OFlags::CREATE).or_else(|errno| match errno {
        // In a folder like /tmp, `fs.protected_regular` lets nobody create over another user's file, not even root.
        Errno::ACCESS => kernel::open(path, flags).map_err(|_| errno),
        errno => Err(errno),
    })
}

/// Writes the pid into the file. A full file system keeps nobody from serving: it is only for people.
fn note(file: impl AsFd, pid: u32) {
    let text = format!("{pid}\n");
    let _ = retry_on_intr(|| rustix::fs::ftruncate(&file, 0));
    let _ = retry_on_intr(|| rustix::io::pwrite(&file, text.as_bytes(), 0));
}

/// Names the process that holds the lock, as far as the file tells.
fn holder(file: impl AsFd) -> String {
    let mut bytes = [0; 16];
    let len = retry_on_intr(|| rustix::io::pread(&file, &mut bytes, 0)).unwrap_or(0);
    let text = bytes.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok());
    match text.and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw) {
        None => "a live process".to_owned(),
        Some(pid) if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) => {
            format!("a child that process {pid} forked before it ended, or another PID namespace,")
        }
        Some(pid) => format!("process {pid}"),
    }
}
