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

use crate::{Instant, kernel};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Bytes in the kernel that are not sent yet, beyond which it takes no more: a small frame waits for so much bulk at most.
const NOT_SENT_BYTES: i32 = 128 << 10;
/// After so long without an acknowledgement of what was sent, the kernel gives the connection up; also after so long in which the peer
/// takes nothing, unless that is [borne](bear).
const USER_TIMEOUT_MS: u32 = 20_000;
/// An idle connection is probed after so many seconds, one of these by its number, and then so often. The time-out above counts from
/// the last sign of the peer, so that probes have to come before it is over: networks lose packets, and a host's own queue, of
/// 1,000, does where thousands of connections that moved together are probed together.
const KEEP_IDLE: [u64; 5] = [8, 9, 10, 11, 12];
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_COUNT: u32 = 8;
const _: () = assert!(
    KEEP_IDLE[4] * 1000 + KEEP_INTERVAL.as_secs() * 1000 * KEEP_COUNT as u64 <= USER_TIMEOUT_MS as u64,
    "every probe is made before the connection is given up"
);

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

#[cfg(test)]
thread_local! {
    /// Calls that this thread sent or received by.
    pub(super) static CALLS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A new socket for an address of this kind.
pub(super) fn open(to: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)
}

/// Sets a connected socket up. What an old kernel refuses is left as it is.
pub(super) fn tune(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let number = usize::try_from(socket.as_raw_fd()).unwrap_or(0);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(KEEP_IDLE[number % KEEP_IDLE.len()]));
    let _ = sockopt::set_tcp_keepintvl(socket, KEEP_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEP_COUNT);
    bear(socket, Duration::ZERO);
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

/// The kernel does not give a peer up because it has taken nothing for `span` so far. By itself the kernel counts that time although
/// the peer's host answers each of its probes (Linux 5.11 on). It probes again before the time is over.
pub(super) fn bear(socket: &OwnedFd, span: Duration) {
    let span = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS.saturating_add(span));
}

/// What the kernel has seen of a peer's host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// How long ago it acknowledged something, or sent it, in whole milliseconds.
    pub(super) since: Duration,
    /// It has acknowledged what was sent last, and the last probe.
    pub(super) is_answered: bool,
    /// It takes nothing, or does not answer: the kernel asks it ever more rarely.
    pub(super) is_stalled: bool,
    /// The kernel has bytes that it has not taken.
    pub(super) is_behind: bool,
}

/// What the kernel has seen of the peer's host; `None` when it does not tell.
pub(super) fn seen(socket: &OwnedFd) -> Option<Seen> {
    // SAFETY: numbers, of which zeros are values.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the kernel writes at most `bytes` bytes, which `info` has, and says how many in `bytes`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    let mut behind: libc::c_int = 0;
    // SAFETY: the kernel writes a number, for which `behind` has room. On an error it stays zero.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut behind) };
    (failed == 0).then(|| Seen {
        since: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        // Probes do not count as sent. What had no room and is sent again does, and is acknowledged at once.
        is_answered: info.tcpi_probes == 0 && info.tcpi_last_ack_recv <= info.tcpi_last_data_sent,
        is_stalled: info.tcpi_backoff > 0,
        is_behind: behind > 0,
    })
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

/// The one piece that has bytes; `None`: there are several, or none.
fn alone(pieces: &[Piece; PIECES]) -> Option<Piece> {
    let mut full = pieces.iter().filter(|piece| piece.bytes > 0);
    full.next().copied().filter(|_| full.next().is_none())
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
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    #[cfg(test)]
    CALLS.set(CALLS.get() + 1);
    if let Some(Piece { at, bytes }) = alone(pieces) {
        // The usual case, by the cheaper call.
        return retry_on_intr(|| {
            // SAFETY: the piece is mapped, by the caller's promise.
            count(unsafe { libc::send(socket.as_raw_fd(), at.as_ptr().cast(), bytes, flags) })
        });
    }
    let mut vector = vector(pieces);
    // SAFETY: an all-zero header names no address and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.as_mut_ptr(), PIECES);
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
    #[cfg(test)]
    CALLS.set(CALLS.get() + 1);
    if let Some(Piece { at, bytes }) = alone(pieces) {
        // The usual case, by the cheaper call.
        return retry_on_intr(|| {
            // SAFETY: the piece is ours alone, by the caller's promise.
            count(unsafe { libc::recv(socket.as_raw_fd(), at.as_ptr().cast(), bytes, libc::MSG_DONTWAIT) })
        });
    }
    let mut vector = vector(pieces);
    // SAFETY: an all-zero header names no address and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.as_mut_ptr(), PIECES);
    retry_on_intr(|| {
        // SAFETY: the header leads to pieces that are ours alone, by the caller's promise.
        count(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
    })
}

/// Sends what the kernel takes of `bytes`; how many.
pub(super) fn put(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| rustix::net::send(&socket, bytes, flags))
}

/// Sends bytes of a handshake: they fit an empty buffer.
pub(super) fn say(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    if put(socket, bytes)? == bytes.len() { Ok(()) } else { Err(Errno::NOBUFS) }
}

/// Receives what has come into `into`; how many bytes. 0: the peer has closed.
pub(super) fn hear(socket: impl AsFd, into: &mut [u8]) -> Result<usize, Errno> {
    let (count, _) = retry_on_intr(|| rustix::net::recv(&socket, &mut *into, RecvFlags::DONTWAIT))?;
    Ok(count)
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

/// Waits until `socket` has something or can be written, or `until` has come.
pub(super) fn wait(socket: &OwnedFd, writable: bool, until: Instant) {
    use rustix::event::{PollFd, PollFlags};
    let flags = if writable { PollFlags::OUT } else { PollFlags::IN };
    // An error of poll(2) is found again by the next step, at the latest by the deadline.
    let _ = kernel::wait(&mut [PollFd::new(socket, flags)], until);
}
