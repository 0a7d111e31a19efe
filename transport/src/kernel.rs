//! System calls that can fail for a passing reason or by a limit that has a name. They are made here and nowhere else.
//!
//! A signal starts an interrupted call again. A limit that would be answered by a signal, or by an errno that several limits share,
//! is looked at and named. tests/faults.md lists every call with what becomes of its errors.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{FallocateFlags, MemfdFlags},
    io::{Errno, retry_on_intr},
    process::{Resource, getrlimit},
};

#[cfg(any(feature = "shm", feature = "tcp"))]
use crate::Instant;
use crate::PortError;

/// An errno as the failure of `step`.
pub(crate) fn system(step: &'static str) -> impl Fn(Errno) -> PortError {
    move |errno| PortError::System { step, errno: errno.raw_os_error() }
}

/// What a library says as the failure of `step`.
pub(crate) fn system_io(step: &'static str, error: &std::io::Error) -> PortError {
    PortError::System { step, errno: error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()) }
}

/// Makes a memory file of `bytes` without its pages.
///
/// # Errors
/// [`PortError::FileSize`] above the process's limit: the kernel would send SIGXFSZ, which ends the process.
pub(crate) fn memory_file(name: &str, bytes: usize, kind: MemfdFlags) -> Result<OwnedFd, PortError> {
    if let Some(limit_bytes) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < bytes as u64) {
        return Err(PortError::FileSize { bytes: bytes as u64, limit_bytes });
    }
    let fd = retry_on_intr(|| rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | kind));
    let fd = fd.map_err(system("memfd_create"))?;
    retry_on_intr(|| rustix::fs::ftruncate(&fd, bytes as u64)).map_err(system("ftruncate"))?;
    Ok(fd)
}

/// Gives a file the pages that it does not have.
pub(crate) fn fill(fd: impl AsFd, bytes: usize) -> Result<(), PortError> {
    in_pieces(bytes as u64, |at, len| rustix::fs::fallocate(&fd, FallocateFlags::empty(), at, len))
        .map_err(system("fallocate"))
}

/// The smallest piece: a page, wherever pages are at most 64 KiB.
const PIECE_BYTES: u64 = 64 << 10;

/// Does `bytes` of work by `give`, which gets an offset and a length.
///
/// Kernels before 6.3 take back what an interrupted fallocate(2) has done. Where a timer ticks faster than the whole takes, trying
/// again would never end: the pieces become smaller instead.
fn in_pieces(bytes: u64, mut give: impl FnMut(u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let (mut done, mut piece) = (0, bytes);
    while done < bytes {
        let len = piece.min(bytes - done);
        match give(done, len) {
            Ok(()) => (done, piece) = (done + len, piece.saturating_mul(2)),
            Err(Errno::INTR) => piece = (len / 2).next_multiple_of(PIECE_BYTES),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Fills some of `bytes` with fresh randomness; how many.
pub(crate) fn random(bytes: &mut [u8]) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()))
}

/// Opens a file; a lookup on a network or user-space file system can be interrupted.
#[cfg(any(feature = "shm", feature = "verbs"))]
pub(crate) fn open(path: &std::path::Path, flags: rustix::fs::OFlags) -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR))
}

/// Takes or tries a lock on a file.
#[cfg(feature = "shm")]
pub(crate) fn lock(fd: impl AsFd, operation: rustix::fs::FlockOperation) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::flock(&fd, operation))
}

/// The next client of a listening socket. `CONNABORTED` is a client that has gone.
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) fn accept(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    use rustix::net::{SocketFlags, accept_with};
    retry_on_intr(|| accept_with(&socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
}

/// Connects a socket that does not block.
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) fn connect(socket: impl AsFd, to: &impl rustix::net::addr::SocketAddrArg) -> Result<(), Errno> {
    retry_on_intr(|| rustix::net::connect(&socket, to))
}

/// A descriptor that is of use by being closed: the next one has its place.
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// Waits until `fd` is readable or `until` has come; whether it is. A signal ends it sooner.
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) fn wait_readable(fd: std::os::fd::BorrowedFd<'_>, until: Instant) -> Result<bool, Errno> {
    use rustix::event::{PollFd, PollFlags};
    wait(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], until)
}

/// Waits until something comes of one of `fds` or `until` has come; whether it did. A signal ends it sooner.
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) fn wait(fds: &mut [rustix::event::PollFd<'_>], until: Instant) -> Result<bool, Errno> {
    // A span that no timespec holds is no limit.
    let left = rustix::event::Timespec::try_from(until.remaining()).ok();
    match rustix::event::poll(fds, left.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Names what a mapping failed of: mmap(2) says ENOMEM for memory and for the number of mappings.
pub(crate) fn mapping(error: &std::io::Error) -> PortError {
    let is_memory = error.raw_os_error() == Some(Errno::NOMEM.raw_os_error());
    match lack_of_mappings().filter(|_| is_memory) {
        Some((count, limit)) => PortError::Mappings { count, limit },
        None => system_io("mmap", error),
    }
}

/// A ring takes up to four mappings, some of which may have been given back when its failure is looked at.
const NEAR: u64 = 8;

/// How many mappings this process has and may have, if it has as good as all of them.
fn lack_of_mappings() -> Option<(u64, u64)> {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let count = lines("/proc/self/maps").ok()?;
    (count + NEAR >= limit).then_some((count, limit))
}

/// Counts lines in a buffer on the stack: there may be no memory for a long text.
fn lines(path: &str) -> std::io::Result<u64> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut buffer = [0; 4096];
    let mut count = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(count),
            some => count += buffer[..some].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that a signal interrupts after `reach` bytes of any call, with everything of it undone.
    fn worn(bytes: u64, reach: u64) -> (Result<(), Errno>, u64, u32) {
        let (mut given, mut calls) = (0, 0);
        let result = in_pieces(bytes, |at, len| {
            calls += 1;
            assert!(calls < 100_000, "it does not end");
            assert_eq!(at, given, "pieces follow each other");
            assert!(len > 0 && at + len <= bytes);
            if len > reach {
                return Err(Errno::INTR);
            }
            given = at + len;
            Ok(())
        });
        (result, given, calls)
    }

    #[test]
    fn filling_a_file_ends_under_any_rate_of_signals() {
        assert_eq!(worn(256 << 20, u64::MAX), (Ok(()), 256 << 20, 1));
        for reach in [PIECE_BYTES, 1 << 20, 3 << 20] {
            let (result, given, calls) = worn(256 << 20, reach);
            assert_eq!((result, given), (Ok(()), 256 << 20));
            assert!(u64::from(calls) <= 4 * (256 << 20) / reach + 16, "{calls} calls of {reach} bytes");
        }
        assert_eq!(worn(4096, 4096).1, 4096);
        assert_eq!(worn(0, 0), (Ok(()), 0, 0));
        let refused = in_pieces(100, |_, _| Err(Errno::NOSPC));
        assert_eq!(refused, Err(Errno::NOSPC));
    }

    #[test]
    fn mappings_are_counted() {
        let count = lines("/proc/self/maps").unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(count > 5 && count.abs_diff(text.lines().count() as u64) < 64, "{count}");
        let other = std::io::Error::from_raw_os_error(Errno::NOMEM.raw_os_error());
        let errno = Errno::NOMEM.raw_os_error();
        assert_eq!(mapping(&other), PortError::System { step: "mmap", errno }, "there is room for more");
    }
}
