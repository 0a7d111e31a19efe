//! What two sides agreed on, and the pure functions that agree.
//!
//! Both sides hold the same two hellos, so both compute the same result; the CM's own numbers are only
//! a further limit. Rules: the RDMA CM's manual pages `rdma_connect(3)` and `rdma_accept(3)`.

use std::fmt;

use crate::{DevicePort, Hello, PortConfig, RejectReason, Secured, hello::Feature};

/// What a device or a medium can do. Data, asked once; nobody asks which provider it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// A receive ring that the peer writes (write-with-immediate, or shared memory).
    pub ring: bool,
    /// Credit lies in a word the peer can read; otherwise it travels in frames.
    pub credit_words: bool,
    /// A posted receive is used up by each arrival.
    pub arrivals: bool,
    /// Bulk is read where it lies, and is held until it is released.
    pub bulk_in_place: bool,
    /// Atomic one-sided operations.
    pub atomics: bool,
    /// A post moves the bytes inside the call (rxe): one piece a turn.
    pub transfers_in_post: bool,
    /// READs a peer may have outstanding at us (`max_qp_rd_atom`).
    pub responder_resources: u8,
    /// READs we may have outstanding at a peer (`max_qp_init_rd_atom`).
    pub initiator_depth: u8,
    /// Bytes that fit inline in a work request.
    pub inline_bytes: u16,
    /// Largest message of the device.
    pub message_bytes: u64,
    /// The RNR and ACK timers mean something here.
    pub timers: bool,
}

/// How the frames of a connection travel to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPath {
    /// Into the peer's receive ring, at the same positions.
    Ring,
    /// By SEND into the receives the peer posted.
    SendRecv,
}

impl DataPath {
    /// The largest frame that a side with such a ring and such slots can receive.
    fn frame_bytes_max(self, ring_bytes: u32, slot_bytes: u32) -> u32 {
        match self {
            Self::Ring => ring_bytes / 4,
            Self::SendRecv => slot_bytes.min(ring_bytes / 4),
        }
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::SendRecv => "send/recv",
        })
    }
}

/// Why a [`Term`] was granted lower than asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clamp {
    /// As asked.
    None,
    /// Our device gives no more.
    Device,
    /// The peer gives no more.
    Peer,
}

/// One number of a connection that both sides agreed on, and how they came to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// What our configuration asked for.
    pub asked: u32,
    /// What we offered, after our device's limit.
    pub offered: u32,
    /// What holds.
    pub granted: u32,
    /// Why it is lower than asked.
    pub clamp: Clamp,
}

impl Term {
    /// `asked` by us, at most `device`, at most what the `peer` gives.
    #[must_use]
    #[doc(hidden)]
    pub fn settle(asked: u32, device: u32, peer: u32) -> Self {
        let offered = asked.min(device);
        let granted = offered.min(peer);
        let clamp = if granted < offered {
            Clamp::Peer
        } else if offered < asked {
            Clamp::Device
        } else {
            Clamp::None
        };
        Self { asked, offered, granted, clamp }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, offered, granted, .. } = self;
        match self.clamp {
            Clamp::None => write!(f, "{granted}"),
            Clamp::Device => write!(f, "{granted} (asked {asked}; the device gives {offered})"),
            Clamp::Peer => {
                write!(f, "{granted} (asked {asked}, offered {offered}; the peer gives {granted})")
            }
        }
    }
}

/// A process as the kernel names it (`SO_PEERCRED`), at the time that it connected or began to listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process; `None` if it has no number in this process's PID namespace, as between containers. Another process may
    /// have the number when it is gone.
    pub pid: Option<u32>,
    /// Its user, in this process's user namespace.
    pub uid: u32,
    /// Its first group.
    pub gid: u32,
}

/// What one connection runs with, as this side sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// `verbs`, `shm`, `tcp` or `sim`.
    pub provider: &'static str,
    /// Why a `gimmal://` URL came to this provider and to none before it; `None` at the server, and of other URLs.
    pub chosen: Option<String>,
    /// Device and port, socket path, name; over TCP the address of this end, the congestion control and the largest segment.
    pub device: String,
    /// The device port of this end; `None` where there is no RDMA device.
    pub port: Option<DevicePort>,
    /// The peer's address or process.
    pub peer: String,
    /// The process at the other end as the kernel names it; `None` where it does not.
    pub credentials: Option<Credentials>,
    /// What TLS came to; `None` without it.
    pub secured: Option<Secured>,
    /// How frames travel.
    pub path: DataPath,
    /// READs the peer may have outstanding at us.
    pub responder_resources: Term,
    /// READs we may have outstanding at the peer; 0 turns bulk off, and over verbs the look at a silent peer's process.
    pub initiator_depth: Term,
    /// Bytes sent inline.
    pub inline_bytes: Term,
    /// The ring we write into (the peer's receive ring), bytes.
    pub tx_ring_bytes: u32,
    /// The ring the peer writes into, bytes.
    pub rx_ring_bytes: u32,
    /// Receive buffer of the peer on the send/recv path, bytes.
    pub tx_slot_bytes: u32,
    /// Our receive buffer on the send/recv path, bytes.
    pub rx_slot_bytes: u32,
    /// Receives the peer guarantees us at the start; meaningless when `arrivals_count` is false.
    pub tx_arrivals: u32,
    /// Receives we guarantee the peer.
    pub rx_arrivals: u32,
    /// Whether the peer's receives are those that its connections share, see [`Receives`](crate::Receives).
    pub tx_shared: bool,
    /// Whether ours are: what the peer sends is then held for nobody beyond its turn, because the slot is everybody's.
    pub rx_shared: bool,
    /// Whether each chain uses up a receive at the other end.
    pub arrivals_count: bool,
    /// Whether credit lies in shared words; otherwise the engine sends it in frames.
    pub credit_words: bool,
    /// Whether bulk is read in place.
    pub bulk_in_place: bool,
    /// Whether bulk and one-sided operations are made by the peer's port when its owner polls it, and not by a device or by this
    /// side.
    pub emulated: bool,
    /// Whether one-sided operations may be atomic ones; reads and writes are there wherever bulk is.
    pub atomics: bool,
    /// Largest frame we may send: word and payload, bytes.
    pub frame_bytes_max: u32,
    /// Largest frame the peer may send.
    pub rx_frame_bytes_max: u32,
    /// Largest chain we may send: padded frames, bytes.
    pub chain_bytes_max: u32,
    /// The number of the connection: the same at both ends, and no other's.
    pub nonce: u128,
    /// Whether the peer answers pings by itself, see [`PortConfig::attended`].
    pub peer_attended: bool,
    /// Whether frames carry a number, see [`Feature::NUMBERED`]: on the send/recv path, where both sides do it.
    pub numbered: bool,
    /// Whether frames and bulk carry sums, see [`PortConfig::checksum`].
    pub checksum: bool,
    /// Whether both sides proved that they have a shared key.
    pub authenticated: bool,
    /// RNR timer code in force at our end; `None` where it does not apply.
    pub rnr_timer: Option<u8>,
    /// ACK timeout exponent in force at our end; `None` where it does not apply or is the CM's.
    pub ack_timeout: Option<u8>,
}

/// Whether we keep a ring of the peer's size, as a rule.
fn check_ring(config: &PortConfig, theirs: &Hello) -> Result<(), RejectReason> {
    let limit = config.peer_ring_bytes_max.max(config.ring_bytes);
    if theirs.ring_bytes > limit { Err(RejectReason::RingTooLarge { limit }) } else { Ok(()) }
}

impl Negotiated {
    /// What `ours` and `theirs` come to on a medium that can do `caps`, with `config` as what we asked for.
    ///
    /// # Errors
    /// A [`RejectReason`] that the other side can be told.
    #[doc(hidden)]
    pub fn settle(
        provider: &'static str,
        caps: &Capabilities,
        config: &PortConfig,
        ours: &Hello,
        theirs: &Hello,
    ) -> Result<Self, RejectReason> {
        theirs.check()?;
        check_ring(config, theirs)?;
        let both = |feature| ours.features.has(feature) && theirs.features.has(feature);
        let path = if both(Feature::RING) { DataPath::Ring } else { DataPath::SendRecv };
        let [tx_shared, rx_shared] = [theirs, ours].map(|hello| hello.features.has(Feature::SHARED));
        // Where nobody writes into the other's ring, the size of ours is our own affair, and small where many have one.
        let is_small = rx_shared && path == DataPath::SendRecv;
        let tx_ring_bytes = theirs.ring_bytes.min(if is_small { ours.ring_bytes } else { u32::MAX });
        // The queue pair of a connection that shares its receives is small, and asks for less than others do.
        let reads = |config: u8, ours: u8, device: u8, theirs: u8| {
            Term::settle(if rx_shared { ours } else { config }.into(), device.into(), theirs.into())
        };
        let frame_bytes_max = path.frame_bytes_max(tx_ring_bytes, theirs.slot_bytes);
        Ok(Self {
            provider,
            chosen: None,
            device: String::new(),
            port: None,
            peer: String::new(),
            credentials: None,
            secured: None,
            path,
            responder_resources: reads(
                config.responder_resources,
                ours.responder_resources,
                caps.responder_resources,
                theirs.initiator_depth,
            ),
            initiator_depth: reads(
                config.initiator_depth,
                ours.initiator_depth,
                caps.initiator_depth,
                theirs.responder_resources,
            ),
            inline_bytes: Term::settle(config.inline_bytes.into(), caps.inline_bytes.into(), u32::MAX),
            tx_ring_bytes,
            rx_ring_bytes: ours.ring_bytes,
            tx_slot_bytes: theirs.slot_bytes,
            rx_slot_bytes: ours.slot_bytes,
            tx_arrivals: theirs.arrivals.into(),
            rx_arrivals: ours.arrivals.into(),
            tx_shared,
            rx_shared,
            arrivals_count: caps.arrivals,
            credit_words: caps.credit_words,
            bulk_in_place: caps.bulk_in_place,
            emulated: false,
            atomics: caps.atomics,
            frame_bytes_max,
            rx_frame_bytes_max: path.frame_bytes_max(ours.ring_bytes, ours.slot_bytes),
            // Spans are multiples of FRAME_ALIGN.
            chain_bytes_max: frame_bytes_max & !15,
            nonce: theirs.nonce,
            peer_attended: theirs.features.has(Feature::ATTENDED),
            numbered: path == DataPath::SendRecv && both(Feature::NUMBERED) && caps.arrivals,
            checksum: both(Feature::CHECKSUM),
            authenticated: both(Feature::KEYED),
            rnr_timer: None,
            ack_timeout: None,
        })
    }
}

impl Negotiated {
    /// Whether rings that peers share can be mapped here, in whole pages of `page_bytes`.
    ///
    /// # Errors
    /// The peer's ring is none of whole pages.
    pub(crate) fn check_pages(&self, page_bytes: usize) -> Result<(), RejectReason> {
        let is_whole = (self.tx_ring_bytes as usize).is_multiple_of(page_bytes);
        if self.path == DataPath::SendRecv || is_whole {
            Ok(())
        } else {
            Err(RejectReason::BadHello { field: 1 })
        }
    }

    /// Bytes of the ring that we send from. On the send/recv path it is ours alone, so it may be larger than the peer's:
    /// whole pages of `page_bytes`.
    #[cfg(any(feature = "verbs", test))]
    pub(crate) fn transmit_bytes(&self, page_bytes: usize) -> usize {
        let least = if self.path == DataPath::SendRecv { page_bytes } else { 0 };
        least.max(self.tx_ring_bytes as usize)
    }
}

impl fmt::Display for Negotiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timer =
            |value: Option<u8>| value.map_or_else(|| "not applicable".to_owned(), |value| value.to_string());
        let arrivals =
            |count: u32| if self.arrivals_count { count.to_string() } else { "not applicable".to_owned() };
        writeln!(f, "provider             {} on {}", self.provider, self.device)?;
        if let Some(chosen) = &self.chosen {
            writeln!(f, "chosen               {chosen}")?;
        }
        match self.port.as_ref().map(|port| (port.fabric, port.gid)) {
            Some((fabric, Some(gid))) => {
                writeln!(f, "fabric               {fabric}, from GID {} {}", gid.index, gid.value)?;
            }
            Some((fabric, None)) => writeln!(f, "fabric               {fabric}")?,
            None => {}
        }
        writeln!(f, "peer                 {}", self.peer)?;
        match &self.secured {
            Some(Secured { suite, resumed, peer }) => {
                let how = if *resumed { "resumed" } else { "new" };
                writeln!(f, "encryption           TLS 1.3, {suite}, a {how} session")?;
                match peer {
                    Some(certificate) => writeln!(f, "certificate          {certificate}")?,
                    None => writeln!(f, "certificate          none was asked for")?,
                }
            }
            None => writeln!(f, "encryption           none")?,
        }
        writeln!(f, "data path            {}", self.path)?;
        writeln!(f, "responder_resources  {}", self.responder_resources)?;
        writeln!(f, "initiator_depth      {}", self.initiator_depth)?;
        writeln!(f, "inline bytes         {}", self.inline_bytes)?;
        writeln!(f, "ring bytes           {} out, {} in", self.tx_ring_bytes, self.rx_ring_bytes)?;
        writeln!(f, "frame bytes max      {} out, {} in", self.frame_bytes_max, self.rx_frame_bytes_max)?;
        let (tx_arrivals, rx_arrivals) = (arrivals(self.tx_arrivals), arrivals(self.rx_arrivals));
        writeln!(f, "arrivals             {tx_arrivals} out, {rx_arrivals} in")?;
        let whose = |shared: bool| if shared { "shared" } else { "its own" };
        if self.arrivals_count {
            writeln!(f, "receives             {} out, {} in", whose(self.tx_shared), whose(self.rx_shared))?;
        }
        writeln!(f, "credit               {}", if self.credit_words { "shared words" } else { "frames" })?;
        let bulk = match (self.bulk_in_place, self.initiator_depth.granted) {
            (true, _) => "in place",
            (false, 0) => "off: no READs were granted (initiator_depth 0)",
            (false, _) if self.emulated => "streamed by the peer's port (emulated)",
            (false, _) => "RDMA READ",
        };
        writeln!(f, "bulk                 {bulk}")?;
        let one_sided = match (self.initiator_depth.granted, self.atomics) {
            (0, _) => "off: no READs were granted (initiator_depth 0)",
            (_, true) if self.emulated => "read, write, atomics (emulated by the peer's port)",
            (_, true) => "read, write, atomics",
            (_, false) => "read, write",
        };
        writeln!(f, "one-sided            {one_sided}")?;
        writeln!(f, "checksum             {}", if self.checksum { "CRC-32C" } else { "none" })?;
        writeln!(f, "RNR timer code       {}", timer(self.rnr_timer))?;
        write!(f, "ACK timeout exponent {}", timer(self.ack_timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPABILITIES: Capabilities = Capabilities {
        ring: true,
        credit_words: false,
        arrivals: true,
        bulk_in_place: false,
        atomics: true,
        transfers_in_post: false,
        responder_resources: 16,
        initiator_depth: 16,
        inline_bytes: 0,
        message_bytes: u64::MAX,
        timers: true,
    };

    /// What comes of a peer's ring of `ring_bytes`, by this path, under `config`.
    fn settled(config: &PortConfig, ring_bytes: u32, path: DataPath) -> Result<Negotiated, RejectReason> {
        let features = Feature::default().and(Feature::RING, path == DataPath::Ring);
        let hello = |ring_bytes| Hello {
            features,
            ring_bytes,
            slot_bytes: 2048,
            arrivals: 16,
            responder_resources: 16,
            initiator_depth: 16,
            lane: 0,
            service: 0,
            nonce: 1,
        };
        Negotiated::settle("test", &CAPABILITIES, config, &hello(config.ring_bytes), &hello(ring_bytes))
    }

    #[test]
    fn rings_are_whole_pages_of_any_size() {
        let config = PortConfig::default();
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for ring_bytes in [4 << 10, 8 << 10, 32 << 10, 256 << 10] {
                let own = settled(&config, ring_bytes, DataPath::SendRecv).unwrap();
                assert_eq!(own.check_pages(page_bytes), Ok(()));
                let bytes = own.transmit_bytes(page_bytes);
                assert!(bytes.is_multiple_of(page_bytes) && bytes.is_power_of_two());
                assert_eq!(bytes, page_bytes.max(ring_bytes as usize));
                // Both sides write at the same positions, so the ring has the same size on both.
                let shared = settled(&config, ring_bytes, DataPath::Ring).unwrap();
                let is_whole = (ring_bytes as usize).is_multiple_of(page_bytes);
                assert_eq!(shared.check_pages(page_bytes).is_ok(), is_whole);
                assert_eq!(shared.transmit_bytes(page_bytes), ring_bytes as usize);
            }
        }
    }

    #[test]
    fn a_peer_chooses_no_ring_above_our_limit() {
        let limit = PortConfig::default().peer_ring_bytes_max;
        for (ours, theirs, most) in [(4096, limit, limit), (4 * limit, 4 * limit, 4 * limit)] {
            let config = PortConfig { ring_bytes: ours, ..PortConfig::default() };
            for path in [DataPath::Ring, DataPath::SendRecv] {
                assert!(settled(&config, theirs, path).is_ok());
                let refused = settled(&config, 2 * theirs, path);
                assert_eq!(refused, Err(RejectReason::RingTooLarge { limit: most }));
            }
        }
        let small = PortConfig { ring_bytes: 4096, peer_ring_bytes_max: 0, ..PortConfig::default() };
        assert!(
            settled(&small, 8192, DataPath::Ring).is_err() && settled(&small, 4096, DataPath::Ring).is_ok()
        );
    }

    #[test]
    fn terms_say_who_clamped() {
        assert_eq!(
            Term::settle(16, 128, 255),
            Term { asked: 16, offered: 16, granted: 16, clamp: Clamp::None }
        );
        assert_eq!(
            Term::settle(200, 128, 255),
            Term { asked: 200, offered: 128, granted: 128, clamp: Clamp::Device }
        );
        assert_eq!(
            Term::settle(200, 128, 4),
            Term { asked: 200, offered: 128, granted: 4, clamp: Clamp::Peer }
        );
        assert_eq!(Term::settle(0, 128, 4), Term { asked: 0, offered: 0, granted: 0, clamp: Clamp::None });
    }
}
