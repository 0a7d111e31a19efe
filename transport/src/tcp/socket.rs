//! Sockets: how they are set up, and the two calls that move bytes.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::NonNull,
    time::Duration,
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt},
};

use crate::{Instant, Refusal, kernel};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Bytes in the kernel that are not sent yet, beyond which it takes no more: a small frame waits for so much bulk at most.
const NOT_SENT_BYTES: i32 = 128 << 10;
/// After so long without an acknowledgement of what was sent, the kernel gives the connection up.
const USER_TIMEOUT_MS: u32 = 20_000;
/// An idle connection is probed after so long, so often, before it is given up.
const KEEP_IDLE: Duration = Duration::from_secs(15);
const KEEP_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_COUNT: u32 = 3;

/// Memory that a call sends from, or receives to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: NonNull<u8>,
    pub(super) bytes: usize,
}

impl Piece {
    /// Nothing.
    pub(super) const EMPTY: Self = Self { at: NonNull::dangling(), bytes: 0 };
}

/// Most pieces of one call.
pub(super) const PIECES: usize = 4;

/// A new socket for an address of this kind.
pub(super) fn open(to: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)
}

/// Sets a connected socket up. What an old kernel refuses is left as it is.
pub(super) fn tune(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEP_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEP_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEP_COUNT);
    let _ = sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS);
    let (value, bytes) = (NOT_SENT_BYTES, size_of::<i32>());
    #[expect(clippy::cast_possible_truncation, reason = "four bytes")]
    // SAFETY: the value lives on the stack, and its length is told.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast(),
            bytes as libc::socklen_t,
        )
    };
}

/// The largest segment that the kernel sends; 0 when it does not tell.
fn segment_bytes(socket: &OwnedFd) -> i32 {
    let mut value: i32 = 0;
    #[expect(clippy::cast_possible_truncation, reason = "four bytes")]
    let mut bytes = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes, which `value` has, and says how many in `bytes`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    if failed == 0 { value } else { 0 }
}

/// The address of this end.
pub(super) fn local(socket: &OwnedFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok().and_then(|address| address.try_into().ok())
}

/// The address of the peer.
pub(super) fn remote(socket: &OwnedFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok().flatten().and_then(|address| address.try_into().ok())
}

/// The address of this end, and how the kernel sends: `10.0.0.1:7000, cubic, MSS 1448`.
pub(super) fn describe(socket: &OwnedFd) -> String {
    let congestion = sockopt::tcp_congestion(socket).unwrap_or_else(|_| "unknown".to_owned());
    format!("{}, {congestion}, MSS {}", name(local(socket)), segment_bytes(socket))
}

/// An address for people.
pub(super) fn name(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
}

/// The pieces as the kernel wants them.
fn vector(pieces: &[Piece; PIECES]) -> [libc::iovec; PIECES] {
    pieces.map(|piece| libc::iovec { iov_base: piece.at.as_ptr().cast(), iov_len: piece.bytes })
}

/// What a call returned.
fn count(returned: isize) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| {
        let errno = std::io::Error::last_os_error().raw_os_error();
        Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))
    })
}

/// Sends what the kernel takes of `pieces`, in order; how many bytes.
///
/// # Safety
/// The pieces are mapped. Their bytes may change meanwhile: the kernel alone reads them.
pub(super) unsafe fn send(socket: &OwnedFd, pieces: &[Piece; PIECES]) -> Result<usize, Errno> {
    let mut vector = vector(pieces);
    // SAFETY: an all-zero header names no address and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.as_mut_ptr(), PIECES);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    retry_on_intr(|| {
        // SAFETY: the header leads to pieces that are mapped, by the caller's promise.
        count(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
    })
}

/// Receives into `pieces`, in order; how many bytes. 0: the peer has closed.
///
/// # Safety
/// The pieces are mapped and writable, and nobody else reads or writes them until this returns.
pub(super) unsafe fn receive(socket: &OwnedFd, pieces: &[Piece; PIECES]) -> Result<usize, Errno> {
    let mut vector = vector(pieces);
    // SAFETY: an all-zero header names no address and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.as_mut_ptr(), PIECES);
    retry_on_intr(|| {
        // SAFETY: the header leads to pieces that are ours alone, by the caller's promise.
        count(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
    })
}

/// Sends bytes of a handshake: they fit an empty buffer.
pub(super) fn say(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = retry_on_intr(|| rustix::net::send(&socket, bytes, flags))?;
    if sent == bytes.len() { Ok(()) } else { Err(Errno::NOBUFS) }
}

/// A message of a handshake, as far as it came.
#[derive(Debug, Default)]
pub(super) struct Heard {
    bytes: Vec<u8>,
}

impl Heard {
    /// Reads until there are `want` bytes; whether there are. Nothing behind them is read.
    ///
    /// # Errors
    /// `PIPE`: the peer has closed.
    pub(super) fn read(&mut self, socket: impl AsFd, want: usize) -> Result<bool, Errno> {
        let mut buffer = [0; 256];
        while self.bytes.len() < want {
            let room = buffer.len().min(want - self.bytes.len());
            let (read, _) = match retry_on_intr(|| {
                rustix::net::recv(&socket, &mut buffer[..room], RecvFlags::DONTWAIT)
            }) {
                Err(Errno::AGAIN) => return Ok(false),
                other => other?,
            };
            if read == 0 {
                return Err(Errno::PIPE);
            }
            self.bytes.extend_from_slice(&buffer[..read]);
        }
        Ok(true)
    }

    /// What came so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads and drops what has arrived; whether the peer has closed. Bounded, so that a peer that sends on is no burden.
pub(super) fn drain(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 4096];
    for _ in 0..64 {
        match retry_on_intr(|| rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(errno) => return errno != Errno::AGAIN,
        }
    }
    false
}

/// Ends what this side says; what was sent before still arrives.
pub(super) fn end(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Tells a client no, and reads what is left of it: a close with unread bytes is a reset, which would hide the answer.
pub(super) fn refuse(socket: &OwnedFd, refusal: &Refusal) {
    let _ = say(socket, &refusal.encode());
    end(socket);
    drain(socket);
}

/// Waits until `socket` has something or can be written, or `until` has come.
pub(super) fn wait(socket: &OwnedFd, writable: bool, until: Instant) {
    use rustix::event::{PollFd, PollFlags};
    let flags = if writable { PollFlags::OUT } else { PollFlags::IN };
    // An error of poll(2) is found again by the next step, at the latest by the deadline.
    let _ = kernel::wait(&mut [PollFd::new(socket, flags)], until);
}
