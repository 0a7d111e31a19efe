//! The place where peers meet: a socket in a folder, and a lock beside it that says whether its server lives.
//!
//! The kernel drops the lock with the process, however it dies; so a socket whose lock is free is stale.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
    net::SocketAddrUnix,
};

use super::{
    denied::refused,
    lock::{FileId, Lock, remove},
    socket,
};
use crate::{
    Address, ListenError,
    address::{check_socket_path, runtime_folder},
    kernel::{self, system},
};

/// A bound socket and its lock. Dropping it removes both from the folder, unless others are there by now.
#[derive(Debug)]
pub(super) struct Rendezvous {
    socket: OwnedFd,
    path: PathBuf,
    id: FileId,
    // Held last: the lock may be free only when the socket is gone.
    lock: Lock,
}

impl Rendezvous {
    /// Takes the place at `path`; the processes of other users can reach it if `shared`, and if its folder lets them.
    pub(super) fn bind(path: &Path, backlog: u16, shared: bool) -> Result<Self, ListenError> {
        let refuse = |why: String| ListenError::Address { address: shown(path), why };
        let failed = |step: &'static str| move |errno| refused(path, path, step, errno);
        let address = socket_address(path).map_err(refuse)?;
        let folder = path.parent().ok_or_else(|| refuse("it names no file".to_owned()))?;
        check_folder(path, folder, folder == runtime_folder())?;
        let lock = Lock::take(path)?;
        // From here on nobody else touches the place; a failure leaves nothing.
        match rustix::fs::lstat(path) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Socket => {
                rustix::fs::unlink(path).map_err(failed("unlink"))?;
            }
            Ok(_) => return Err(refuse("there is a file of that name that is no socket".to_owned())),
            Err(_) => {}
        }
        let socket = socket::open().map_err(system("socket"))?;
        rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
        let id = FileId::at(path).ok_or_else(|| failed("lstat")(Errno::NOENT))?;
        let place = Self { socket, path: path.to_owned(), id, lock };
        // Nobody can connect before `listen`, so there is no moment with another mode.
        let others = Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        let mode = Mode::RUSR | Mode::WUSR | if shared { others } else { Mode::empty() };
        set_mode(path, mode)?;
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
        if self.lock.is_ours() {
            remove(&self.path, self.id);
        }
    }
}

/// Sets the mode of the socket at `path`, and of nothing else: others may write in its folder, and put a link or a file
/// in its place.
fn set_mode(path: &Path, mode: Mode) -> Result<(), ListenError> {
    let failed = |step: &'static str| move |errno| refused(path, path, step, errno);
    let socket = kernel::open(path, OFlags::PATH | OFlags::NOFOLLOW).map_err(failed("open"))?;
    let stat = rustix::fs::fstat(&socket).map_err(failed("fstat"))?;
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if !is_socket || stat.st_uid != rustix::process::geteuid().as_raw() {
        let why = "another file was put in the place of the socket; choose a folder that others cannot write";
        return Err(ListenError::Address { address: shown(path), why: why.to_owned() });
    }
    // This names the file that was looked at. fchmod(2) takes no descriptor of this kind.
    let looked_at = format!("/proc/self/fd/{}", socket.as_raw_fd());
    rustix::fs::chmod(looked_at, mode).map_err(failed("chmod"))
}

/// The address for `bind` and `connect`.
pub(super) fn socket_address(path: &Path) -> Result<SocketAddrUnix, String> {
    check_socket_path(path)?;
    SocketAddrUnix::new(path).map_err(|_| {
        format!("the path has {} bytes, a socket's may have 107", path.as_os_str().as_encoded_bytes().len())
    })
}

fn shown(path: &Path) -> String {
    Address::Shm { path: path.to_owned() }.to_string()
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
        let (owner, shown) = (stat.st_uid, folder.display());
        format!("it belongs to uid {owner}; `rm -r {shown}` removes it, if no server of that user runs")
    } else if ours && mode.intersects(Mode::RWXG | Mode::RWXO) {
        format!("its mode is {:04o}; `chmod 0700 {}`", mode.bits() & 0o7777, folder.display())
    } else {
        return Ok(());
    };
    Err(refuse(why))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_a_socket_is_set_and_that_of_a_link_or_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode_of = |path: &Path| rustix::fs::stat(path).unwrap().st_mode & 0o777;
        let socket = socket::open().unwrap();
        rustix::net::bind(&socket, &socket_address(&at("socket")).unwrap()).unwrap();
        for mode in [0o600, 0o666] {
            set_mode(&at("socket"), Mode::from_raw_mode(mode)).unwrap();
            assert_eq!(mode_of(&at("socket")), mode);
        }
        std::fs::write(at("secret"), "text").unwrap();
        rustix::fs::chmod(at("secret"), Mode::RUSR).unwrap();
        std::os::unix::fs::symlink(at("secret"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("socket"), at("link to a socket")).unwrap();
        for name in ["secret", "link", "link to a socket"] {
            let error = set_mode(&at(name), Mode::from_raw_mode(0o640)).unwrap_err();
            assert!(error.to_string().contains("in the place of the socket"), "{name}: {error}");
        }
        assert_eq!((mode_of(&at("secret")), mode_of(&at("socket"))), (0o400, 0o666));
    }
}
