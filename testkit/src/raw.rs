//! One side of a connection over shared memory, by hand: its segment and its packets.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use gimmal_transport::{
    Words,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES},
    mem::{Access, Region},
    testing::words,
};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    },
};

/// What a ring and a pool segment must be sealed with.
pub(crate) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);
/// Where the words of a segment lie in its first page.
pub(crate) const CONSUMED: u64 = 0;
pub(crate) const ARMED: u64 = 128;
pub(crate) const CLOSING: u64 = 256;
pub(crate) const PULSE: u64 = 384;

/// What packets that pass a file begin with.
pub(crate) const GRANT: &[u8; 8] = b"gmgrant1";
pub(crate) const POOL: &[u8; 8] = b"gmpool_1";
pub(crate) const EXPOSED: &[u8; 8] = b"gmexpos1";

/// The control words and the ring of one side.
#[derive(Debug)]
pub(crate) struct Segment {
    words: Words,
    head_bytes: u64,
    pub(crate) ring_bytes: u64,
}

impl Segment {
    pub(crate) fn map(fd: BorrowedFd<'_>, ring_bytes: u32, access: Access) -> std::io::Result<Self> {
        let head_bytes = rustix::param::page_size();
        let region = Region::ring(fd, head_bytes, ring_bytes as usize, access)?;
        Ok(Self { words: words(region), head_bytes: head_bytes as u64, ring_bytes: ring_bytes.into() })
    }

    /// A segment of `ring_bytes`, and its file for the victim.
    pub(crate) fn create(ring_bytes: u32) -> std::io::Result<(Self, OwnedFd)> {
        let fd = memfd(rustix::param::page_size() + ring_bytes as usize, SealFlags::empty(), true)?;
        let segment = Self::map(fd.as_fd(), ring_bytes, Access::ReadWrite)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((segment, fd))
    }

    fn at(&self, position: u64) -> u64 {
        self.head_bytes + (position & (self.ring_bytes - 1) & !(FRAME_ALIGN as u64 - 1))
    }

    pub(crate) fn load(&self, at: u64) -> u64 {
        self.words.load(at).expect("a word of the segment")
    }

    pub(crate) fn store(&self, at: u64, value: u64) {
        self.words.store(at, value).expect("a word of the segment");
    }

    /// The word of the frame at `position`.
    pub(crate) fn word(&self, position: u64) -> u64 {
        self.load(self.at(position))
    }

    /// Writes behind the word at `position`.
    pub(crate) fn write(&self, position: u64, payload: &[u8]) {
        let at = self.at(position) + FRAME_WORD_BYTES as u64;
        self.words.write(at, payload).expect("a frame lies in the two views of its ring");
    }

    /// Reads what is behind the word at `position`.
    pub(crate) fn read(&self, position: u64, payload: &mut [u8]) {
        let at = self.at(position) + FRAME_WORD_BYTES as u64;
        self.words.read(at, payload).expect("a frame lies in the two views of its ring");
    }

    /// Sets the word of the frame at `position`.
    pub(crate) fn set(&self, position: u64, bits: u64) {
        self.store(self.at(position), bits);
    }
}

/// A socket that is connected to the server at `path`.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A memfd of `bytes` with `seals`, its pages there if `whole`.
pub(crate) fn memfd(bytes: usize, seals: SealFlags, whole: bool) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    let there = if whole { bytes as u64 } else { 1 };
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, there)?;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Passes memory under a name, of so many bytes.
pub(crate) fn send_memory(
    socket: &OwnedFd,
    what: &[u8; 8],
    (id, bytes): (u64, u64),
    fd: BorrowedFd<'_>,
) -> Result<(), Errno> {
    send_with(socket, &[what, &id.to_le_bytes(), &bytes.to_le_bytes()].map(|word| *word).concat(), fd)
}

pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).map(|_| ())
}

pub(crate) fn send_with(socket: &OwnedFd, bytes: &[u8], fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
}

/// The next packet and the descriptor that came with it; no bytes at the end.
pub(crate) fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut packet = vec![0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut control, flags)?;
    packet.truncate(message.bytes);
    let fds = control.drain().filter_map(|ancillary| match ancillary {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((packet, fds.last()))
}
