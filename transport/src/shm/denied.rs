//! Why the file system refuses a place to this process: which file, whose it is, and what to do.

use std::path::Path;

use rustix::{fs::Mode, io::Errno};

use crate::{Address, ListenError, error::errno_text, kernel::system};

/// A step of listening at `socket` that failed at `file`.
pub(super) fn refused(socket: &Path, file: &Path, step: &'static str, errno: Errno) -> ListenError {
    let shown = file.display();
    let why = match errno {
        // It is this process that lacks something, whatever the file.
        Errno::MFILE | Errno::NFILE => return ListenError::Port(system(step)(errno)),
        Errno::ACCESS | Errno::PERM => {
            let is_there = rustix::fs::lstat(file).is_ok();
            let what = if is_there { "remove it if no server of that user runs, or " } else { "" };
            format!("{}; {what}choose a folder that this user may write", owner(file))
        }
        Errno::NXIO | Errno::ISDIR | Errno::LOOP => {
            format!("{shown} is no lock file; remove it or choose another name")
        }
        errno => {
            let text = errno_text(errno.raw_os_error());
            format!("{step} of {shown} failed: {text}; make room there or choose another folder")
        }
    };
    ListenError::Address { address: Address::Shm { path: socket.to_owned() }.to_string(), why }
}

/// Whose the file is, or else the folder of it that can be looked at, with its mode and this process's user.
pub(super) fn owner(file: &Path) -> String {
    let ours = rustix::process::geteuid().as_raw();
    let seen = file.ancestors().find_map(|path| Some((path, rustix::fs::lstat(path).ok()?)));
    let Some((path, stat)) = seen else { return format!("permission denied to uid {ours}") };
    let mode = Mode::from_raw_mode(stat.st_mode).bits() & 0o7777;
    let (path, owner) = (path.display(), stat.st_uid);
    format!(
        "permission denied: {path} belongs to uid {owner} and has mode {mode:04o}, this process is of uid {ours}"
    )
}
