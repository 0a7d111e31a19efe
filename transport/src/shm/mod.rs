//! Shared memory: two processes of one host, of one user (`shm://name`), or one process (`mem://name`).
//!
//! Peers meet at a unix socket, which carries the same hello as the CM's private data and passes memfds. Then each
//! writes only its own sealed segment and reads the other's, mapped read-only:
//!
//! ```text
//!          ours, sealed                                     the peer's, sealed
//!  ┌─ page: consumed, armed, closing ┐             ┌─ page: consumed, armed, closing ┐
//!  │  ring: the frames we send       │ ──reads──►  │                                 │
//!  └─────────────────────────────────┘  ◄──reads── │  ring: the frames it sends      │
//!                                                  └─────────────────────────────────┘
//! ```
//! What this provider adds to the contract of [`provider`](crate::provider):
//!
//! - The ring we write lies in *our* segment and has the size that the peer's hello asks for.
//! - A frame's word is its publish word: it is 0 until the frame is whole. Staging a frame therefore clears the word behind
//!   it, and the 16 bytes behind the last frame are never credit: the ring holds `ring_bytes - 16` at most.
//!   [`Port::compose`] says [`Refused::Full`](crate::Refused::Full) for what would go beyond.
//! - Frames of one flush are one run: the first word is stored last. A [`Chain`](crate::Chain) changes nothing.
//! - Credit lies in a word of the reader's control page, so it is read from there and never comes in frames.
//! - A poll makes no system call; after some empty ones it looks at the sockets, where death and doorbells are seen.
//! - A peer that cheats can change the bytes of a frame or a bulk that it lent to us while we read them. It is
//!   trusted with that, being of the same user; with nothing else: words are read once and checked, sizes are sealed.
//! - What a peer passes is limited, checked and touched only when it is used: the table of `segment.rs`.
//! - A loan lies in a segment that is passed whole: a peer that was offered one loan can read its neighbours.

use std::os::fd::OwnedFd;

mod bulk;
mod connecting;
mod denied;
mod exposed;
mod gate;
mod incoming;
mod link;
mod listener;
mod live;
mod lock;
mod look;
mod mirror;
mod named;
mod pace;
mod park;
mod place;
mod pool;
mod port;
mod rendezvous;
mod segment;
mod socket;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod theirs;

use self::place::{Dial, Place};
pub use self::{
    connecting::ShmConnecting, gate::ShmGate, incoming::ShmIncoming, link::ShmLink, listener::ShmListener,
    port::ShmPort,
};
#[cfg(doc)]
use crate::Port;
use crate::{
    Address, ConnectError, ConnectOptions, ListenError, ListenOptions, PortConfig, PortError, Provider,
};

/// Opens the socket behind a `shm://` or `mem://` address and says nothing: for tests that speak foreign bytes to a listener.
/// It does not block, neither now nor later.
///
/// # Errors
/// What the kernel says: nobody listens, or the backlog is full.
pub fn dial(address: &Address) -> std::io::Result<OwnedFd> {
    let dial = Dial::new(address).map_err(std::io::Error::other)?;
    dial.connect().map_err(|(errno, _)| errno.into())
}

/// The shared-memory provider. It has no state and no thread of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shm;

impl Provider for Shm {
    type Port = ShmPort;
    type Gate = ShmGate;
    type Link = ShmLink;
    type Listener = ShmListener;
    type Connecting = ShmConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<ShmPort, PortError> {
        ShmPort::open(config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<ShmListener, ListenError> {
        Ok(ShmListener::new(Place::bind(address, options)?, options.clone()))
    }

    fn connect(
        &self,
        address: &Address,
        gate: &ShmGate,
        options: &ConnectOptions,
    ) -> Result<ShmConnecting, ConnectError> {
        ShmConnecting::start(address, gate, options)
    }
}
