//! TCP: any two hosts that have a network between them (`tcp://host:port`, `tcp+tls://host:port`).
//!
//! The socket carries the same hello, key proof and grant as the CM's private data, and then one stream of frames, with
//! records of the port's own between them (`record.rs`):
//!
//! ```text
//!  transmit ring ─ one send of all that was flushed ─► socket ─ recv ─► receive ring, at the same positions
//!  a loan ─ DATA records, 256 KiB at a time, between frames ─► socket ─ recv ─► the memory that pulls it
//! ```
//! What this provider adds to the contract of [`provider`](crate::provider):
//!
//! - Frames lie in the receive ring at their positions, so runs are lent from it. A record is taken out of the ring where it
//!   comes up, and what was received behind it moves to its place. The last 16 bytes of a ring are never credit: the
//!   first bytes of a record always find room.
//! - Credit is ours, on top of TCP's window: a `CREDIT` record follows the frames of a flush when an eighth of the ring is due.
//! - Bulk and one-sided operations are requests, which the peer's port answers when its owner polls it. `Negotiated` says
//!   [`emulated`](crate::Negotiated::emulated).
//! - Under TLS (`tcp+tls://`) the same stream goes through records of TLS (`wire.rs`, `tls/`).
//! - A connection that moves nothing leaves the list that is read at every look; the epoll set tells when it has something.

mod allocate;
mod bulk;
mod connecting;
mod exposed;
mod gate;
mod handover;
mod heard;
mod incoming;
mod leaving;
mod link;
mod listener;
mod live;
mod outgoing;
mod place;
mod port;
mod receive;
mod record;
mod requests;
mod socket;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod wire;

#[cfg(feature = "tls")]
pub(crate) use self::tls::Kept as TlsKept;
#[cfg(feature = "tls")]
pub use self::tls::foreign;
pub use self::{
    connecting::TcpConnecting, gate::TcpGate, incoming::TcpIncoming, link::TcpLink, listener::TcpListener,
    port::TcpPort,
};
use crate::{
    Address, ConnectError, ConnectOptions, ListenError, ListenOptions, PortConfig, PortError, Provider,
};

/// The TCP provider. It has no state; a thread of its own lives only while a host name is resolved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Provider for Tcp {
    type Port = TcpPort;
    type Gate = TcpGate;
    type Link = TcpLink;
    type Listener = TcpListener;
    type Connecting = TcpConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<TcpPort, PortError> {
        TcpPort::open(config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<TcpListener, ListenError> {
        TcpListener::bind(address, options)
    }

    fn connect(
        &self,
        address: &Address,
        gate: &TcpGate,
        options: &ConnectOptions,
    ) -> Result<TcpConnecting, ConnectError> {
        TcpConnecting::start(address, gate, options)
    }
}
