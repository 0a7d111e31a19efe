//! A listening socket goes to the next process, and no client is refused meanwhile.
//!
//! ```text
//!  next ─ connects to a name made of the address, and waits ─► old
//!       ◄─ listening socket, this socket, silent clients ───── as it stops
//! ```
//! The name is abstract (unix(7)), so it belongs to the network namespace, as the port does. Both processes must have
//! the same user. A process that cannot be handed the socket finds the address in use; a server of gimmal-rpc tries again
//! until its patience ends, and binds its own socket when the old process has gone.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags},
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
    },
};

use super::socket;
use crate::{Instant, kernel, peer};

const MARK: [u8; 8] = *b"gmtakes1";
/// Processes that may wait for one socket.
const BACKLOG: i32 = 4;
/// Clients that can be handed over.
pub(super) const CLIENTS_MAX: usize = 128;
/// Both sockets and the clients. The kernel takes 253.
const FDS_MAX: usize = 2 + CLIENTS_MAX;

/// Where the next process waits for a listening socket.
#[derive(Debug)]
pub(super) struct Successors {
    socket: OwnedFd,
}

#[cfg(test)]
thread_local! {
    /// Told when this thread begins to wait for a socket.
    pub(super) static WAITS: std::cell::Cell<Option<std::sync::mpsc::Sender<()>>> = const { std::cell::Cell::new(None) };
}

/// What a process takes over.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) listening: OwnedFd,
    /// `None`: another process has the name, and nobody can be handed the socket.
    pub(super) successors: Option<Successors>,
    /// Clients that have said nothing.
    pub(super) clients: Vec<OwnedFd>,
}

impl Successors {
    /// Waits for those of `place`, if nobody else does.
    pub(super) fn of(place: &SocketAddr) -> Option<Self> {
        let socket = open().ok()?;
        rustix::net::bind(&socket, &name(place)?).ok()?;
        rustix::net::listen(&socket, BACKLOG).ok()?;
        Some(Self { socket })
    }

    /// Hands `listening` and `clients` to the first that waits. `spare` is closed if there is no other descriptor to accept it
    /// with.
    pub(super) fn hand_over<'a>(
        &'a self,
        listening: &'a OwnedFd,
        clients: impl Iterator<Item = &'a OwnedFd>,
        mut spare: Option<OwnedFd>,
    ) {
        let sockets = [listening, &self.socket].into_iter().chain(clients);
        let fds: Vec<BorrowedFd<'_>> = sockets.map(AsFd::as_fd).collect();
        loop {
            match kernel::accept(&self.socket) {
                Ok(next) if is_ours(&next) && send(&next, &fds).is_ok() => {
                    tracing::info!("the listening socket was handed to the next process");
                    return;
                }
                Ok(_) => {}
                Err(Errno::MFILE | Errno::NFILE) if spare.take().is_some() => {}
                Err(_) => return,
            }
        }
    }

    /// Whether a process waits.
    #[cfg(test)]
    pub(super) fn is_awaited(&self) -> bool {
        matches!(kernel::wait_readable(self.socket.as_fd(), Instant::now()), Ok(true))
    }
}

/// Waits until the process that listens on `place` stops and hands over its socket, at most until `until`.
pub(super) fn wait(place: &SocketAddr, until: Instant) -> Option<Inherited> {
    let old = open().ok()?;
    kernel::connect(&old, &name(place)?).ok()?;
    if !is_ours(&old) {
        return None;
    }
    tracing::info!(%place, "waits for the listening socket of the process that has it");
    #[cfg(test)]
    let _ = WAITS.take().map(|waits| waits.send(()));
    while !until.has_passed() {
        if kernel::wait(&mut [PollFd::new(&old, PollFlags::IN)], until).ok()? {
            return receive(&old, place);
        }
    }
    None
}

fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn name(place: &SocketAddr) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("gimmal-tcp-{place}").as_bytes()).ok()
}

/// Whether a process of this user is at the other end.
fn is_ours(socket: &OwnedFd) -> bool {
    peer::of(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid().as_raw())
}

fn send(to: &OwnedFd, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| rustix::net::sendmsg(to, &[IoSlice::new(&MARK)], &mut control, flags)).map(|_| ())
}

/// `None`: the old process has gone without a word, or hands over something else.
fn receive(from: &OwnedFd, place: &SocketAddr) -> Option<Inherited> {
    let mut bytes = [0; MARK.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        retry_on_intr(|| rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags));
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = rights.flatten();
    let (listening, successors) = (fds.next(), fds.next());
    let clients = fds.collect();
    let listening = listening.filter(|_| received.is_ok_and(|received| received.bytes == MARK.len()))?;
    let is_listening = sockopt::socket_acceptconn(&listening) == Ok(true);
    if bytes != MARK || !is_listening || socket::local(&listening) != Some(*place) {
        return None;
    }
    // From here on the kernel names this process to those that wait.
    let successors = successors.filter(|socket| rustix::net::listen(socket, BACKLOG).is_ok());
    Some(Inherited { listening, successors: successors.map(|socket| Successors { socket }), clients })
}
