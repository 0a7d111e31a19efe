//! What a port, a listener and a connect are told. Plain data; the engine's `Plan` proves the sums.

use std::{net::IpAddr, time::Duration};

use crate::{Allow, DeviceChoice, Key, PortError, Tls, Trust};

/// What is wrong with a configuration: the field, its value, and the rule.
type Flaw = (&'static str, u64, &'static str);

/// Connections that a port may have at most.
pub(crate) const CONNECTIONS_MAX: u32 = 1 << 20;

/// Sizes of one [`Port`](crate::Port) and of each connection on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Receive ring that we give each peer, bytes; a power of two, 4 KiB to 1 GiB. Default 256 KiB.
    pub ring_bytes: u32,
    /// One receive buffer on the send/recv path, bytes; a multiple of 16, 64 bytes to 16 MiB. Default 16 KiB.
    pub slot_bytes: u32,
    /// Receives posted for each connection and guaranteed to it, 4 or more; the device has a limit. Default 64.
    pub arrivals: u16,
    /// Send queue entries of one connection for frames; the device has a limit. Default 128.
    pub sends: u16,
    /// Every how many sends one is signalled, 1 to half of `sends`. Default 32.
    pub signal_interval: u16,
    /// Bytes the device may take inline from the work request; the device's limit clamps it. Default 220.
    pub inline_bytes: u16,
    /// READs we want to have outstanding at the peer; what both sides agree on is in `Negotiated`. Default 16.
    pub initiator_depth: u8,
    /// READs the peer may have outstanding at us. Default 16.
    pub responder_resources: u8,
    /// Largest piece of one bulk READ, bytes, above 0. Default 256 KiB.
    pub bulk_piece_bytes: u32,
    /// The largest READ on devices whose post moves the bytes (rxe), if it is less. Not applied after 16 pieces
    /// without other traffic, until the next other frame. verbs only. Default 64 KiB.
    pub bulk_piece_in_post_bytes: u32,
    /// Largest bulk a peer may make us pull, and the largest loan, bytes. Default 1 GiB.
    pub bulk_bytes_max: u64,
    /// Bytes of our memory for bulk that one connection may have at once. Its loans count until the peer has read them,
    /// and what was pulled into our memory counts until it is dropped. A loan counts with the memory around it.
    /// Default 4 GiB.
    pub loan_bytes_max: u64,
    /// The largest ring that a peer may make us keep to send from, bytes; or [`ring_bytes`](Self::ring_bytes), if that is
    /// more. The peer's hello says its size. Default 4 MiB.
    pub peer_ring_bytes_max: u32,
    /// User memory that is kept registered for its next loan, bytes for each device and port; what is in use counts, and
    /// may be more. 0: none is kept. verbs only. Default 64 MiB.
    pub user_bytes_max: u64,
    /// Most registrations of user memory that stay. verbs only. Default 256.
    pub user_pieces_max: u32,
    /// Connections one port, that is one worker, may have, 1 to 2^20. Default 1024.
    pub connections: u32,
    /// Whether the port's owner polls it all the time, whatever else it does. The peer is told, and gives this side up for silence
    /// only if it is true. Default true.
    pub attended: bool,
    /// Whether frames and bulk carry a CRC-32C that the receiver checks; in force when both sides ask for it. Default false.
    pub checksum: bool,
    /// Whether memory for bulk, in pieces of 2 MiB and more, lies on huge pages where the system has them. What came of it
    /// is in [`Gate::memory`](crate::Gate::memory). Default true.
    pub huge_pages: bool,
    /// Whether the device may write the bytes of bulk that it brings in any order (`IBV_ACCESS_RELAXED_ORDERING`,
    /// `ibv_reg_mr(3)`); nobody looks at them before they are all there. As usual where a device refuses it. verbs only.
    /// Default false.
    pub relaxed_ordering: bool,
    /// Sizes for connections that share their receives, see [`Receives`]. verbs only.
    pub shared: SharedReceives,
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
            bulk_piece_bytes: 256 << 10,
            bulk_piece_in_post_bytes: 64 << 10,
            bulk_bytes_max: 1 << 30,
            loan_bytes_max: 4 << 30,
            peer_ring_bytes_max: 4 << 20,
            user_bytes_max: 64 << 20,
            user_pieces_max: 256,
            connections: 1024,
            attended: true,
            checksum: false,
            huge_pages: true,
            relaxed_ordering: false,
            shared: SharedReceives::default(),
        }
    }
}

impl PortConfig {
    /// Returns what is wrong with it, if anything is: the field, its value, and the rule.
    #[must_use]
    pub fn flaw(&self) -> Option<(&'static str, u64, &'static str)> {
        let Self { ring_bytes, slot_bytes, arrivals, signal_interval, connections, .. } = *self;
        let is_ring = ring_bytes.is_power_of_two() && (4 << 10..=1 << 30).contains(&ring_bytes);
        let flaws = [
            (
                !is_ring || (ring_bytes as usize) < rustix::param::page_size(),
                "port.ring_bytes",
                ring_bytes.into(),
                "a power of two from 4 KiB, or a page, to 1 GiB",
            ),
            (
                !slot_bytes.is_multiple_of(16) || !(64..=16 << 20).contains(&slot_bytes),
                "port.slot_bytes",
                slot_bytes.into(),
                "a multiple of 16 from 64 bytes to 16 MiB",
            ),
            // Half of what is not kept for control must be able to come back in one credit.
            (arrivals < 4, "port.arrivals", arrivals.into(), "at least 4: 2 are kept for control frames"),
            (
                signal_interval == 0 || signal_interval > self.sends / 2,
                "port.signal_interval",
                signal_interval.into(),
                "1 to half of port.sends",
            ),
            (self.bulk_piece_bytes == 0, "port.bulk_piece_bytes", 0, "above 0"),
            (self.bulk_piece_in_post_bytes == 0, "port.bulk_piece_in_post_bytes", 0, "above 0"),
            (
                !(1..=CONNECTIONS_MAX).contains(&connections),
                "port.connections",
                connections.into(),
                "1 to 1,048,576",
            ),
            (self.loan_bytes_max == 0, "port.loan_bytes_max", 0, "above 0"),
            (
                self.user_pieces_max > 1 << 20,
                "port.user_pieces_max",
                self.user_pieces_max.into(),
                "at most 1,048,576",
            ),
        ];
        first_of(flaws).or_else(|| self.shared.flaw())
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// [`PortError::Field`] with the first field that is outside its limits, and the rule.
    pub fn check(&self) -> Result<(), PortError> {
        self.flaw().map_or(Ok(()), |(field, value, rule)| Err(PortError::Field { field, value, rule }))
    }
}

fn first_of<const N: usize>(flaws: [(bool, &'static str, u64, &'static str); N]) -> Option<Flaw> {
    flaws.into_iter().find_map(|(is_bad, field, value, rule)| is_bad.then_some((field, value, rule)))
}

/// Where the receives of a connection come from (`ibv_create_srq(3)`). verbs only: elsewhere each has its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receives {
    /// Each connection has its own: a ring where the device can, slots otherwise.
    Own,
    /// From a queue that connections of a port share on each device, by send/recv; with a small queue pair. Not for peers
    /// that are not [trusted](Trust::None).
    Shared,
    /// Shared by those that come when the port has this many connections already, if the device has such queues and their
    /// peers are [trusted](Trust::Peer).
    SharedAbove(u32),
}

impl Receives {
    /// Where receives come from for a peer with `trust`. One that is not trusted could use up those of others.
    ///
    /// # Errors
    /// [`PortError::Limit`] when sharing with such a peer was asked for by name.
    #[cfg(feature = "verbs")]
    pub(crate) const fn toward(self, trust: Trust) -> Result<Self, PortError> {
        match (self, trust) {
            (_, Trust::Peer) => Ok(self),
            (Self::Own | Self::SharedAbove(_), Trust::None) => Ok(Self::Own),
            (Self::Shared, Trust::None) => {
                let field = "connections that share receives (Receives::Shared) with peers of Trust::None";
                Err(PortError::Limit { field, value: 1, limit: 0 })
            }
        }
    }
}

impl Default for Receives {
    /// [`Receives::SharedAbove`] 256: own rings of that many are 128 MiB.
    fn default() -> Self {
        Self::SharedAbove(256)
    }
}

/// Sizes where connections share receives. A chain of at most `slot_bytes` uses one slot, of any connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedReceives {
    /// One receive, and the largest frame, bytes; a multiple of 16, 256 bytes to 1 MiB. Default 2 KiB.
    pub slot_bytes: u32,
    /// Receives for data that each connection can always use, beside the 2 that are kept for control: 2 to 4096. Default 2.
    pub guaranteed: u16,
    /// Receives for data that a connection may have when it uses up what it has, from what is there in common: `guaranteed` to
    /// 8192. Default 32.
    pub most: u16,
    /// Slots in common that are there from the start, and that are added each time when they run low: 16 to 16,384. Default 128.
    pub common: u32,
    /// Slots in common, at most: `common` to 16,384. Default 1024.
    pub common_max: u32,
    /// Send queue entries of such a connection for frames, 4 to 8192; the device has a limit. Default 16.
    pub sends: u16,
    /// READs of such a connection, each way, at most. Default 2.
    pub depth: u8,
}

impl Default for SharedReceives {
    fn default() -> Self {
        Self { slot_bytes: 2048, guaranteed: 2, most: 32, common: 128, common_max: 1024, sends: 16, depth: 2 }
    }
}

/// Receives that data leaves to control frames, as the engine does.
pub(crate) const CONTROL_RECEIVES: u16 = 2;

impl SharedReceives {
    /// Receives that a connection begins with, control's included.
    #[must_use]
    #[doc(hidden)]
    pub const fn arrivals(&self) -> u16 {
        self.guaranteed + CONTROL_RECEIVES
    }

    /// What is wrong with it: the field, its value, and the rule.
    #[must_use]
    #[doc(hidden)]
    pub fn flaw(&self) -> Option<(&'static str, u64, &'static str)> {
        let Self { slot_bytes, guaranteed, most, common, common_max, sends, depth: _ } = *self;
        let flaws = [
            (
                !slot_bytes.is_multiple_of(16) || !(256..=1 << 20).contains(&slot_bytes),
                "port.shared.slot_bytes",
                slot_bytes.into(),
                "a multiple of 16 from 256 bytes to 1 MiB",
            ),
            (!(2..=4096).contains(&guaranteed), "port.shared.guaranteed", guaranteed.into(), "2 to 4096"),
            (
                !(guaranteed..=8192).contains(&most),
                "port.shared.most",
                most.into(),
                "port.shared.guaranteed to 8192",
            ),
            (!(16..=16_384).contains(&common), "port.shared.common", common.into(), "16 to 16,384"),
            (
                !(common..=16_384).contains(&common_max),
                "port.shared.common_max",
                common_max.into(),
                "port.shared.common to 16,384",
            ),
            (!(4..=8192).contains(&sends), "port.shared.sends", sends.into(), "4 to 8192"),
        ];
        first_of(flaws)
    }

    /// The transmit ring of a connection while it has something to send: four of the largest frames, a power of two.
    #[must_use]
    #[doc(hidden)]
    pub const fn ring_bytes(&self) -> u32 {
        let bytes = (4 * self.slot_bytes).next_power_of_two();
        if bytes < 4096 { 4096 } else { bytes }
    }
}

/// How a client connects: time-outs, keys, certificates, trust, and what is chosen of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// From the call to the link being usable, 1 ms or more; the CM's own limit is about 64 s. Default 5 s.
    pub connect_timeout: Duration,
    /// From the link to the peer's grant, 1 ms or more: a peer that goes silent half-way is given up then. Default 2 s.
    pub handshake_timeout: Duration,
    /// ACK timeout exponent (4.096 us x 2^n), 0 to 31, set before connect; `None` leaves the CM's. verbs only. Default 14: 67 ms.
    pub ack_timeout: Option<u8>,
    /// RNR timer code, set when the connection is established (12 = 0.64 ms); the CM's own is 655 ms. verbs only. Default 12.
    pub rnr_timer: u8,
    /// Type of service of the packets (RFC 2474), as routers and switches see it; `None`, the default, leaves the CM's.
    /// verbs only.
    pub type_of_service: Option<u8>,
    /// The shared key to prove, and to have proved by the server; `None`, the default: neither. The server must have it too.
    pub key: Option<Key>,
    /// Whose servers to share memory with. shm only. Default: those of this user, and root's.
    pub allow: Allow,
    /// Certificates, and whose are believed. `tcp+tls://` only.
    pub tls: Tls,
    /// How far the server is trusted with the bytes that it sends. Default [`Trust::Peer`].
    pub trust: Trust,
    /// Connect from this address of ours, which chooses the device; `None`, the default: as the route says. verbs only.
    pub source: Option<IpAddr>,
    /// Whether this connection shares its receives with others of its port. verbs only.
    pub receives: Receives,
    /// Connect through this device, from the first of its addresses that fits; `None`, the default: as the route says. verbs only.
    pub device: Option<DeviceChoice>,
}

/// The shortest time-out of a connection that can mean anything.
const SHORTEST: Duration = Duration::from_millis(1);

/// The first of `fields` that is too short: its name, its value, and the rule.
fn too_short<const N: usize>(
    fields: [(&'static str, Duration); N],
) -> Option<(&'static str, Duration, &'static str)> {
    let short = fields.into_iter().find(|(_, value)| *value < SHORTEST);
    short.map(|(field, value)| (field, value, "at least 1 ms"))
}

impl ConnectOptions {
    /// Returns what is wrong with the time-outs, if anything is: the field, its value, and the rule.
    #[must_use]
    #[doc(hidden)]
    pub fn flaw(&self) -> Option<(&'static str, Duration, &'static str)> {
        too_short([
            ("connect.connect_timeout", self.connect_timeout),
            ("connect.handshake_timeout", self.handshake_timeout),
        ])
    }
}

impl ListenOptions {
    /// Returns what is wrong with the time-out, if anything is: the field, its value, and the rule.
    #[must_use]
    #[doc(hidden)]
    pub fn flaw(&self) -> Option<(&'static str, Duration, &'static str)> {
        too_short([("listen.handshake_timeout", self.handshake_timeout)])
    }
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
            tls: Tls::default(),
            trust: Trust::default(),
            source: None,
            receives: Receives::default(),
            device: None,
        }
    }
}

/// How a server listens: time-outs, keys, certificates, the allow-list, trust, and what is chosen of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// Connect requests that may wait to be fetched; over shared memory and TCP the kernel's `somaxconn` is a limit, too. Default 128.
    pub backlog: u16,
    /// From the accept to the peer's grant, 1 ms or more. Default 2 s.
    pub handshake_timeout: Duration,
    /// How long to wait for a process that listens at the address to stop. Zero, the default, does not wait. Over TCP
    /// the process hands its socket over, so no client is refused meanwhile.
    pub take_over: Duration,
    /// ACK timeout exponent (4.096 us x 2^n), 0 to 31, set before accept; `None` leaves the CM's. verbs only. Default 14: 67 ms.
    pub ack_timeout: Option<u8>,
    /// RNR timer code, set when the connection is established (12 = 0.64 ms); the CM's own is 655 ms. verbs only. Default 12.
    pub rnr_timer: u8,
    /// Shared keys, at most [`KEYS_MAX`](crate::key::KEYS_MAX): a client must prove one of them, and has it proved.
    /// Empty: none is asked for. Two while a key is being changed.
    pub keys: Vec<Key>,
    /// Whose clients to share memory with. shm only; beyond this user, the socket's folder must let them in.
    pub allow: Allow,
    /// Certificates, and whose are believed. `tcp+tls://` only.
    pub tls: Tls,
    /// How far clients are trusted with the bytes that they send. Default [`Trust::Peer`].
    pub trust: Trust,
    /// Whether accepted connections share their receives with others of their port. verbs only.
    pub receives: Receives,
    /// Listen on this device only: on all its addresses, when the address is a wildcard. `None`, the default: on every device of
    /// the address. verbs only.
    pub device: Option<DeviceChoice>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let connect = ConnectOptions::default();
        Self {
            backlog: 128,
            handshake_timeout: connect.handshake_timeout,
            take_over: Duration::ZERO,
            ack_timeout: connect.ack_timeout,
            rnr_timer: connect.rnr_timer,
            keys: Vec::new(),
            allow: Allow::default(),
            tls: Tls::default(),
            trust: Trust::default(),
            receives: Receives::default(),
            device: None,
        }
    }
}
