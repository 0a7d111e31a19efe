//! The place where peers meet: a socket in a folder, and a lock file that says whether its server lives.
//!
//! The kernel drops the lock with the process, however it dies; so a socket whose lock is free is stale.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags},
    io::Errno,
    net::SocketAddrUnix,
};

use super::socket;
use crate::{
    Address, ListenError,
    address::runtime_folder,
    kernel::{self, system},
};

/// A bound socket and its lock; both leave the folder when it is dropped.
#[derive(Debug)]
pub(super) struct Rendezvous {
    socket: OwnedFd,
    path: PathBuf,
    lock_path: PathBuf,
    // Held last: the lock may be free only when the socket is gone.
    _lock: OwnedFd,
}

impl Rendezvous {
    /// Takes the place at `path`; the processes of other users can reach it if `shared`, and if its folder lets them.
    pub(super) fn bind(path: &Path, backlog: u16, shared: bool) -> Result<Self, ListenError> {
        let refuse = |why: String| ListenError::Address { address: shown(path), why };
        let address = socket_address(path).map_err(refuse)?;
        let folder = path.parent().filter(|_| path.file_name().is_some());
        let folder = folder.ok_or_else(|| refuse("it names no file".to_owned()))?;
        check_folder(path, folder, folder == runtime_folder())?;
        let lock_path = lock_path(path);
        let lock = take_lock(path, &lock_path)?;
        // From here on nobody else touches the place; a failure leaves only the lock file, which is taken over.
        match rustix::fs::lstat(path) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Socket => {
                rustix::fs::unlink(path).map_err(system("unlink"))?;
            }
            Ok(_) => return Err(refuse("there is a file of that name that is no socket".to_owned())),
            Err(_) => {}
        }
        let socket = socket::open().map_err(system("socket"))?;
        rustix::net::bind(&socket, &address).map_err(system("bind"))?;
        let place = Self { socket, path: path.to_owned(), lock_path, _lock: lock };
        // Nobody can connect before `listen`, so there is no moment with another mode.
        let others = Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        let mode = Mode::RUSR | Mode::WUSR | if shared { others } else { Mode::empty() };
        rustix::fs::chmod(path, mode).map_err(system("chmod"))?;
        rustix::net::listen(&place.socket, backlog.max(1).into()).map_err(system("listen"))?;
        Ok(place)
    }

    /// The listening socket.
    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        for path in [&self.path, &self.lock_path] {
            if let Err(errno) = rustix::fs::unlink(path) {
                tracing::debug!(path = %path.display(), %errno, "could not be removed");
            }
        }
    }
}

/// The address for `bind` and `connect`.
pub(super) fn socket_address(path: &Path) -> Result<SocketAddrUnix, String> {
    SocketAddrUnix::new(path).map_err(|_| {
        format!("the path has {} bytes, a socket's may have 107", path.as_os_str().as_encoded_bytes().len())
    })
}

fn shown(path: &Path) -> String {
    Address::Shm { path: path.to_owned() }.to_string()
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Our own runtime folder is made when it is missing, and must be closed to others; any other must exist.
pub(super) fn check_folder(path: &Path, folder: &Path, ours: bool) -> Result<(), ListenError> {
    let refuse = |why: String| {
        if ours {
            ListenError::Folder { path: folder.to_owned(), why }
        } else {
            ListenError::Address { address: shown(path), why: format!("{}: {why}", folder.display()) }
        }
    };
    if ours {
        match rustix::fs::mkdir(folder, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refuse(format!("mkdir: {errno}"))),
        }
    }
    // A link is not followed for our own: someone else may have put it there.
    let stat = if ours { rustix::fs::lstat(folder) } else { rustix::fs::stat(folder) };
    let stat = stat.map_err(|errno| match errno {
        Errno::NOENT => refuse("this folder does not exist; create it first".to_owned()),
        _ => refuse(errno.to_string()),
    })?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let why = if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        "it is no folder".to_owned()
    } else if ours && stat.st_uid != rustix::process::geteuid().as_raw() {
        format!("it belongs to uid {}", stat.st_uid)
    } else if ours && mode.intersects(Mode::RWXG | Mode::RWXO) {
        format!("its mode is {:04o}", mode.bits() & 0o7777)
    } else {
        return Ok(());
    };
    Err(refuse(why))
}

/// Locks the file at `lock_path`; the lock is ours alone only if that file is still the one at that path.
fn take_lock(path: &Path, lock_path: &Path) -> Result<OwnedFd, ListenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
    for _ in 0..16 {
        let lock = kernel::open(lock_path, flags).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => ListenError::Address {
                address: shown(path),
                why: format!("{} cannot be written: {errno}", lock_path.display()),
            },
            _ => ListenError::Port(system("open")(errno)),
        })?;
        match kernel::lock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ListenError::InUse { address: shown(path) }),
            Err(errno) => return Err(ListenError::Port(system("flock")(errno))),
        }
        let held = rustix::fs::fstat(&lock).map_err(system("fstat"))?;
        match rustix::fs::lstat(lock_path) {
            Ok(there) if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino) => return Ok(lock),
            // Its server removed it between our open and our lock.
            _ => {}
        }
    }
    Err(ListenError::InUse { address: shown(path) })
}
