//! What a port, a listener and a connect are told. Plain data; the engine's `Plan` proves the sums.

use std::{net::IpAddr, time::Duration};

use crate::{Allow, DeviceChoice, Key, Trust};

/// Sizes of one [`Port`](crate::Port) and of each connection on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Receive ring that we give each peer, bytes; a power of two, 4 KiB to 1 GiB.
    pub ring_bytes: u32,
    /// One receive buffer on the send/recv path, bytes; a multiple of 16.
    pub slot_bytes: u32,
    /// Receives posted for each connection and guaranteed to it.
    pub arrivals: u16,
    /// Send queue entries of one connection for frames.
    pub sends: u16,
    /// Every how many sends one is signalled; at most half of `sends`.
    pub signal_interval: u16,
    /// Bytes the device may take inline from the work request; the device's limit clamps it.
    pub inline_bytes: u16,
    /// READs we want to have outstanding at the peer.
    pub initiator_depth: u8,
    /// READs the peer may have outstanding at us.
    pub responder_resources: u8,
    /// Largest piece of one bulk READ, bytes.
    pub bulk_piece_bytes: u32,
    /// Largest bulk a peer may make us pull, bytes.
    pub bulk_bytes_max: u64,
    /// User memory that is kept registered for its next loan, bytes for each device and port; what is in use counts, and
    /// may be more. 0: none is kept. verbs only.
    pub user_bytes_max: u64,
    /// The same in pieces, each of which is a registration.
    pub user_pieces_max: u32,
    /// Connections one port may have.
    pub connections: u32,
    /// Whether the port's owner polls it all the time, whatever else it does. The peer is told: only who says so is
    /// given up for silence.
    pub attended: bool,
    /// Whether frames and bulk carry a CRC-32C that the receiver checks; in force when both sides ask for it.
    pub checksum: bool,
    /// Whether memory for bulk, in pieces of 2 MiB and more, lies on huge pages where the system has them. What came of it
    /// is in [`Gate::memory`](crate::Gate::memory).
    pub huge_pages: bool,
    /// Whether the device may write the bytes of bulk that it brings in any order (`IBV_ACCESS_RELAXED_ORDERING`,
    /// `ibv_reg_mr(3)`); nobody looks at them before they are all there. As usual where a device refuses it. verbs only.
    pub relaxed_ordering: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 256 << 10,
            slot_bytes: 16 << 10,
            arrivals: 64,
            sends: 128,
            signal_interval: 32,
            inline_bytes: 220,
            initiator_depth: 16,
            responder_resources: 16,
            bulk_piece_bytes: 64 << 10,
            bulk_bytes_max: 64 << 30,
            user_bytes_max: 64 << 20,
            user_pieces_max: 256,
            connections: 1024,
            attended: true,
            checksum: false,
            huge_pages: true,
            relaxed_ordering: false,
        }
    }
}

/// How to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// From the call to the link being usable; the CM's own limit is about 64 s.
    pub connect_timeout: Duration,
    /// From the link to the peer's grant: a peer that goes silent half-way is given up then.
    pub handshake_timeout: Duration,
    /// ACK timeout exponent (4.096 us x 2^n), set before connect; `None` leaves the CM's.
    pub ack_timeout: Option<u8>,
    /// RNR timer code set after the connection stands (12 = 0.64 ms); the CM's own is 655 ms.
    pub rnr_timer: u8,
    /// Type of service of the packets (RFC 2474), as routers and switches see it; `None` leaves the CM's. verbs only.
    pub type_of_service: Option<u8>,
    /// The shared key to prove, and to have proved by the server; `None`: neither. The server must have it too.
    pub key: Option<Key>,
    /// Whose servers to share memory with. shm only.
    pub allow: Allow,
    /// How far the server is trusted with the bytes that it sends.
    pub trust: Trust,
    /// Connect from this address of ours, which chooses the device; `None`: as the route says. verbs only.
    pub source: Option<IpAddr>,
    /// Connect through this device, from the first of its addresses that fits; `None`: as the route says. verbs only.
    pub device: Option<DeviceChoice>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(2),
            ack_timeout: Some(14),
            rnr_timer: 12,
            type_of_service: None,
            key: None,
            allow: Allow::default(),
            trust: Trust::default(),
            source: None,
            device: None,
        }
    }
}

/// How to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// Connect requests that may wait to be fetched.
    pub backlog: u16,
    /// From the accept to the peer's grant.
    pub handshake_timeout: Duration,
    /// See [`ConnectOptions::ack_timeout`].
    pub ack_timeout: Option<u8>,
    /// See [`ConnectOptions::rnr_timer`].
    pub rnr_timer: u8,
    /// Shared keys, at most [`KEYS_MAX`](crate::key::KEYS_MAX): a client must prove one of them, and has it proved.
    /// Empty: none is asked for. Two while a key is being changed.
    pub keys: Vec<Key>,
    /// Whose clients to share memory with. shm only; beyond this user, the socket's folder must let them in.
    pub allow: Allow,
    /// How far clients are trusted with the bytes that they send.
    pub trust: Trust,
    /// Listen on this device only: on all its addresses, when the address is a wildcard. verbs only.
    pub device: Option<DeviceChoice>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let connect = ConnectOptions::default();
        Self {
            backlog: 128,
            handshake_timeout: connect.handshake_timeout,
            ack_timeout: connect.ack_timeout,
            rnr_timer: connect.rnr_timer,
            keys: Vec::new(),
            allow: Allow::default(),
            trust: Trust::default(),
            device: None,
        }
    }
}
