//! The rendezvous socket: packets of at most one descriptor, never blocking, never signalling.
//!
//! ```text
//!  client ─ hello (40), or with a tag (56) ─► server
//!         ◄─ challenge (56) ─ or ─ reject (16)           with a shared key
//!         ─ proof (40) ─────────────────────►            with a shared key
//!         ◄─ hello (40) + its segment ─ or ─ reject (16)
//!         ─ grant (8) + its segment ────────►
//!  either ─ doorbell (1) ─ or ─ pool (24) + a pool segment ─ or ─ exposed (24) + its segment ─► either
//!         ─ gone (16): unmap that pool segment ─►
//! ```

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};

use crate::{
    Refusal, Violation,
    proof::{CHALLENGE_BYTES, CHALLENGE_MARK, PROOF_BYTES, PROOF_MARK},
};

/// Room for any packet, and for the longer hello of a later version.
const PACKET_BYTES: usize = 256;
const GRANT: [u8; 8] = *b"gmgrant1";
pub(super) const POOL: [u8; 8] = *b"gmpool_1";
pub(super) const EXPOSED: [u8; 8] = *b"gmexpos1";
const GONE: [u8; 8] = *b"gmgone_1";

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A new socket of the rendezvous' kind.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// Both ends of a connection within this process.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

#[cfg(test)]
thread_local! {
    /// How the next packet of this thread fails.
    static LACK: std::cell::Cell<Option<Errno>> = const { std::cell::Cell::new(None) };
}

/// Has the next packet of this thread fail, as when the kernel has no memory for it.
#[cfg(test)]
pub(super) fn fail_next(errno: Errno) {
    LACK.set(Some(errno));
}

/// What a test says that the kernel lacks.
#[cfg(test)]
fn lack() -> Result<(), Errno> {
    LACK.take().map_or(Ok(()), Err)
}

/// Sends one packet.
pub(super) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    #[cfg(test)]
    lack()?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::send(&socket, bytes, flags)).map(|_| ())
}

/// Sends one packet with a descriptor.
pub(super) fn send_with(socket: impl AsFd, bytes: &[u8], fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    #[cfg(test)]
    lack()?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))
        .map(|_| ())
}

/// What was received in one packet.
#[derive(Debug)]
pub(super) struct Packet {
    bytes: [u8; PACKET_BYTES],
    len: usize,
    /// The descriptor, when exactly one came.
    pub(super) fd: Option<OwnedFd>,
    /// More descriptors than one, or something was cut off.
    pub(super) flawed: bool,
}

impl Packet {
    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The peer has closed, or sent nothing, which is no packet of ours.
    pub(super) fn is_end(&self) -> bool {
        self.len == 0
    }

    /// The passive side's randomness and proof.
    pub(super) fn challenge(&self) -> Option<&[u8]> {
        self.marked(CHALLENGE_MARK)
    }

    /// The active side's proof.
    pub(super) fn proof(&self) -> Option<&[u8]> {
        self.marked(PROOF_MARK)
    }

    fn marked(&self, mark: [u8; 8]) -> Option<&[u8]> {
        let is_plain = !self.flawed && self.fd.is_none();
        self.bytes().strip_prefix(&mark).filter(|_| is_plain)
    }

    /// What an established connection may be sent.
    pub(super) fn parse(self) -> Result<Message, Violation> {
        if self.flawed {
            return Err(Violation::Malformed { what: "packet with other descriptors than one" });
        }
        let word = |at: usize| self.bytes[at..].first_chunk::<8>().copied().unwrap_or_default();
        let (id, bytes) = (u64::from_le_bytes(word(8)), u64::from_le_bytes(word(16)));
        match (self.len, word(0), self.fd) {
            (1, _, None) => Ok(Message::Doorbell),
            (8, GRANT, Some(fd)) => Ok(Message::Grant(fd)),
            (24, POOL, Some(fd)) => Ok(Message::Pool(id, bytes, fd)),
            (24, EXPOSED, Some(fd)) => Ok(Message::Exposed(id, bytes, fd)),
            (16, GONE, None) => Ok(Message::Gone(id)),
            _ => Err(Violation::Malformed { what: "packet on the rendezvous socket" }),
        }
    }
}

/// A packet of an established connection.
#[derive(Debug)]
pub(super) enum Message {
    /// Wake up.
    Doorbell,
    /// The active side's segment.
    Grant(OwnedFd),
    /// A pool segment that offers will name: its name, its bytes and its file.
    Pool(u64, u64, OwnedFd),
    /// Memory that the peer exposes: its name, its bytes without what is mapped behind them, and its file.
    Exposed(u64, u64, OwnedFd),
    /// The name of a pool segment that no offer will name again.
    Gone(u64),
}

/// Wakes the peer. `false`: there was no memory for it, so it has to be rung again. A full buffer means that it has been rung
/// before; any other error is found by reading.
#[cold]
pub(super) fn send_doorbell(socket: impl AsFd) -> bool {
    send(socket, &[0]).err().is_none_or(|errno| errno == Errno::AGAIN || !is_full(errno))
}

/// Sends the passive side's randomness and proof.
pub(super) fn send_challenge(socket: impl AsFd, challenge: &[u8; CHALLENGE_BYTES]) -> Result<(), Errno> {
    send(socket, &[&CHALLENGE_MARK[..], challenge].concat())
}

/// Sends the active side's proof.
pub(super) fn send_proof(socket: impl AsFd, proof: &[u8; PROOF_BYTES]) -> Result<(), Errno> {
    send(socket, &[&PROOF_MARK[..], proof].concat())
}

/// Sends the active side's segment.
pub(super) fn send_grant(socket: impl AsFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    send_with(socket, &GRANT, fd)
}

/// Passes memory of the kind [`POOL`] or [`EXPOSED`] under a name, of so many bytes.
pub(super) fn send_memory(
    socket: impl AsFd,
    kind: &[u8; 8],
    (name, bytes): (u64, u64),
    fd: BorrowedFd<'_>,
) -> Result<(), Errno> {
    send_with(socket, &[*kind, name.to_le_bytes(), bytes.to_le_bytes()].concat(), fd)
}

/// Tells the peer that a pool segment of ours is gone.
pub(super) fn send_gone(socket: impl AsFd, name: u64) -> Result<(), Errno> {
    send(socket, &[GONE, name.to_le_bytes()].concat())
}

/// Whether a packet that was not sent may be sent later: the peer has not read its socket, or too many descriptors are in flight.
pub(super) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS)
}

/// The next packet; `AGAIN` when there is none, an empty one at the end. Descriptors that are not kept are closed. `MFILE`: the
/// packet had a descriptor, and this process had no room for it; both are gone.
pub(super) fn receive(socket: impl AsFd) -> Result<Packet, Errno> {
    let mut packet = Packet { bytes: [0; PACKET_BYTES], len: 0, fd: None, flawed: false };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut packet.bytes)], &mut control, flags)
    })?;
    packet.len = message.bytes;
    let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
    packet.flawed = is_cut || message.flags.contains(ReturnFlags::TRUNC);
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = ancillary {
            for fd in fds {
                packet.flawed |= packet.fd.is_some();
                packet.fd = Some(fd);
            }
        }
    }
    // There is space for two: without any, the kernel found no free number for the first.
    if is_cut && packet.fd.is_none() { Err(Errno::MFILE) } else { Ok(packet) }
}

/// Tells a client no, and reads what is left of it: then our close is a close, and not a reset that hides the answer.
pub(super) fn refuse(socket: &OwnedFd, refusal: &Refusal) {
    let _ = send(socket, &refusal.encode());
    for _ in 0..64 {
        match receive(socket) {
            Ok(packet) if packet.is_end() => return,
            Ok(_) | Err(Errno::MFILE) => {}
            Err(_) => return,
        }
    }
}
