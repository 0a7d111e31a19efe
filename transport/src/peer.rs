//! The process at the other end of a unix socket, as the kernel names it.
//!
//! The kernel names a process in the namespaces of the caller. A process of another PID namespace has no number
//! there, so
//! `SO_PEERCRED` says 0. A user of another user namespace may have no id there, so it says [`UNMAPPED`].

use std::{
    fs::read_to_string,
    mem::size_of,
    os::fd::{AsFd, AsRawFd},
};

use rustix::io::Errno;

use crate::{Allow, Credentials};

/// Stands for every user and every group that the caller's user namespace does not map (`kernel.overflowuid`).
const UNMAPPED: u32 = 65_534;
/// No user and no group has this id.
const NOBODY: u32 = u32::MAX;

/// The process that connected, or that listens.
///
/// Not by `rustix::net::sockopt::socket_peercred`: that takes a pid of 0 for a number that is not 0, which is undefined.
pub(crate) fn of(socket: impl AsFd) -> Result<Credentials, Errno> {
    let mut raw = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(|_| Errno::INVAL)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while `socket` is borrowed; `raw` is a struct of three integers, as long as `bytes`
    // says, and any bits are valid for it.
    let outcome = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut raw).cast(), &raw mut bytes)
    };
    if outcome != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    let pid = u32::try_from(raw.pid).ok().filter(|pid| *pid != 0);
    Ok(Credentials { pid, uid: raw.uid, gid: raw.gid })
}

/// Whether `allow` lets `peer` share memory with this process.
pub(crate) fn is_allowed(peer: &Credentials, allow: &Allow) -> bool {
    let uid = real(peer.uid, "/proc/self/uid_map");
    let gid = real(peer.gid, "/proc/self/gid_map");
    allow.admits(rustix::process::geteuid().as_raw(), uid, gid)
}

/// `id`, or nobody's if it may stand for several: then it is on no list.
fn real(id: u32, map: &str) -> u32 {
    let maps_all =
        || read_to_string(map).is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    if id == UNMAPPED && !maps_all() { NOBODY } else { id }
}

/// A peer, for people.
pub(crate) fn describe(peer: Option<&Credentials>) -> String {
    match peer {
        Some(Credentials { pid: Some(pid), uid, .. }) => format!("process {pid} of uid {uid}"),
        Some(Credentials { pid: None, uid, .. }) => {
            format!("a process of another PID namespace, of uid {uid}")
        }
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_a_number_has_a_description() {
        let ours = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        );
        let peer = of(ours.unwrap().0).unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        let text = describe(Some(&peer));
        assert_eq!(text, format!("process {} of uid {}", std::process::id(), peer.uid));
        let text = describe(Some(&Credentials { pid: None, uid: 7, gid: 7 }));
        assert_eq!(text, "a process of another PID namespace, of uid 7");
    }
}
