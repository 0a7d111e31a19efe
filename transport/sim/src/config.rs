//! What a simulated world is like, and what goes wrong in it.

use std::time::Duration;

use gimmal_transport::{Capabilities, DataPath, RejectReason, Time};

/// A simulated device: everything the engine may meet, as data.
///
/// `credit_words`, `arrivals` and `bulk_in_place` belong to the medium: give both sides of a connection the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimDevice {
    /// Whether frames are written into the peer's ring; `SendRecv` on one side makes the connection send/recv.
    pub path: DataPath,
    /// Credit lies in shared words, as in shared memory; otherwise the engine sends it in frames.
    pub credit_words: bool,
    /// Each chain uses up a posted receive.
    pub arrivals: bool,
    /// Slots that connections of a port have in common beyond their own receives, which they get when they use those up;
    /// 0: receives are not shared. For send/recv.
    pub common: u32,
    /// Bulk is lent where it lies, and free only after its release.
    pub bulk_in_place: bool,
    /// One-sided operations may be atomic ones.
    pub atomics: bool,
    /// See [`Capabilities::transfers_in_post`].
    pub transfers_in_post: bool,
    /// A send completes when it is posted, as on iWARP: it then says nothing about the peer.
    pub completes_early: bool,
    /// A chain that meets no receive ends the connection (iWARP) instead of being sent again (RNR).
    pub rnr_kills: bool,
    /// READs a peer may have outstanding at this device.
    pub responder_resources: u8,
    /// READs this device may have outstanding at a peer.
    pub initiator_depth: u8,
    /// Bytes that fit inline.
    pub inline_bytes: u16,
}

impl SimDevice {
    /// Like RoCE: ring, credit in frames, receives used up, bulk by READ.
    #[must_use]
    pub const fn roce() -> Self {
        Self {
            path: DataPath::Ring,
            credit_words: false,
            arrivals: true,
            common: 0,
            bulk_in_place: false,
            atomics: true,
            transfers_in_post: false,
            completes_early: false,
            rnr_kills: false,
            responder_resources: 128,
            initiator_depth: 128,
            inline_bytes: 220,
        }
    }

    /// Like iWARP: send/recv, early completions, one SEND too many is the end, no atomic operations.
    #[must_use]
    pub const fn iwarp() -> Self {
        Self {
            path: DataPath::SendRecv,
            completes_early: true,
            rnr_kills: true,
            atomics: false,
            ..Self::roce()
        }
    }

    /// Like RoCE with a shared receive queue: send/recv, few receives at first, and more while they are used up.
    #[must_use]
    pub const fn shared_receives() -> Self {
        Self { path: DataPath::SendRecv, common: 24, ..Self::roce() }
    }

    /// Like shared memory: ring, credit words, no receives, bulk in place.
    #[must_use]
    pub const fn shared_memory() -> Self {
        Self { credit_words: true, arrivals: false, bulk_in_place: true, ..Self::roce() }
    }

    /// What the device can do, as the contract asks it.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            ring: self.path == DataPath::Ring,
            credit_words: self.credit_words,
            arrivals: self.arrivals,
            bulk_in_place: self.bulk_in_place,
            atomics: self.atomics,
            transfers_in_post: self.transfers_in_post,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            inline_bytes: self.inline_bytes,
            message_bytes: 1 << 30,
            timers: false,
        }
    }
}

impl Default for SimDevice {
    fn default() -> Self {
        Self::roce()
    }
}

/// A world: one seed, one medium, its faults. The default has no delay and no faults: everything is immediate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Everything random comes from it; the same seed and the same calls give the same events.
    pub seed: u64,
    /// The device of ports and listeners; see [`Sim::with_device`](super::Sim::with_device) for a second kind.
    pub device: SimDevice,
    /// Least time of everything that travels.
    pub delay_min: Duration,
    /// Most time of everything that travels; drawn anew for each.
    pub delay_max: Duration,
    /// Attempts to connect have their deadline by the real clock: for worlds whose ports are polled with it, and
    /// sleep. Otherwise by virtual time, and for a blocking wait by the real one.
    pub real_time: bool,
    /// A worker that does not turn is busy, and its process lives: peers see a [pulse](gimmal_transport::Port::pulse). As by the real clock.
    pub pulses: bool,
    /// What one KiB of a READ adds, ns.
    pub read_ns_per_kib: u64,
    /// From a chain that met no receive to its next attempt; at least 1 us.
    pub rnr_delay: Duration,
    /// Completions of different connections are polled in random order, never those of one; and frames come now by runs of
    /// some length, now by a poll.
    pub shuffle: bool,
    /// Chance that a chain is lost with its connection, in a million.
    pub lost_ppm: u32,
    /// What goes wrong by script.
    pub faults: Vec<Fault>,
    /// Where positions begin, both ways, and how many receives count as posted before the first: a multiple of 16. Near
    /// 2^32 the counters leave 32 bits behind early.
    pub first_position: u64,
    /// Which call that sets something up fails for want of memory, counted from 1 over the whole world; 0: none.
    pub failing_setup: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            device: SimDevice::default(),
            delay_min: Duration::ZERO,
            delay_max: Duration::ZERO,
            real_time: false,
            pulses: false,
            read_ns_per_kib: 0,
            rnr_delay: Duration::from_micros(640),
            shuffle: false,
            lost_ppm: 0,
            faults: Vec::new(),
            first_position: 0,
            failing_setup: 0,
        }
    }
}

/// Something that goes wrong once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which connection, counted from 0 in the order of the connects; `None`: whichever comes first.
    pub connection: Option<u32>,
    /// When.
    pub when: When,
    /// What.
    pub kind: FaultKind,
}

impl Fault {
    /// `kind` the first time that any connection reaches `step`.
    #[must_use]
    pub const fn at(step: Step, kind: FaultKind) -> Self {
        Self { connection: None, when: When::Step(step), kind }
    }

    /// `kind` at a moment of virtual time, to the oldest connection that lives then.
    #[must_use]
    pub const fn at_time(time: Time, kind: FaultKind) -> Self {
        Self { connection: None, when: When::Time(time), kind }
    }

    /// Limits the fault to connection `number`.
    #[must_use]
    pub const fn of(mut self, number: u32) -> Self {
        self.connection = Some(number);
        self
    }
}

/// When a fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// When a connection reaches a step.
    Step(Step),
    /// At a moment of virtual time.
    Time(Time),
}

/// The numbered steps of a connection's life; counts start at 1 and are over both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Address and route.
    Resolve,
    /// The request reaches the passive side.
    Request,
    /// The passive side accepts.
    Accept,
    /// The acceptance reaches the active side.
    Reply,
    /// A grant travels: 1 is the active side's, 2 the passive side's.
    Grant(u8),
    /// The n-th frame arrives.
    Frame(u64),
    /// The n-th send completion arrives.
    Completion(u64),
    /// The n-th piece of bulk arrives.
    Bulk(u64),
    /// The word that one side closed travels.
    Closing,
}

/// What happens. Kinds that mean nothing at a step act as [`FaultKind::Lost`] there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Resolve: no route. Request: nobody listens. Accept: the client is gone, and sees a CM refusal.
    Refuse,
    /// The request is rejected with a reason.
    Reject(RejectReason),
    /// Nothing more is heard in either direction, and no event says so.
    Silent,
    /// The connection breaks: both sides see the peer gone.
    Lost,
    /// The sender's work request fails with this completion status; the peer sees a disconnect.
    Work(u32),
    /// Reply, Grant: the proof of the shared key is not that of one who has it.
    Forged,
    /// A frame's word arrives with a length that cannot be.
    Corrupt,
    /// Frame: a chain arrives twice. Completion: it is told twice. Request: the request arrives twice.
    Doubled,
    /// Frame, Bulk: a bit that the seed chooses is another one: of a frame's tag or payload, of the bulk.
    Flipped,
    /// Request, Reply: it is lost, and the CM sends it again after this time.
    Late(Duration),
    /// Request: rejected, because the peer still holds the connection of an earlier queue pair of this number.
    Stale,
    /// The completion queue of the sender's port overruns: a completion is lost, and an event says so. All connections of
    /// that port end.
    Overrun,
    /// The device goes: every connection of the world closes with `DeviceGone`.
    DeviceRemoved,
}

/// Something that was done against the contract; the world goes on and remembers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// A chain was written over bytes that the receiver had not released.
    Overwrite {
        /// By how much, bytes.
        bytes: u64,
    },
    /// A frame was composed over bytes of our transmit ring that the device had not sent yet.
    TransmitOverrun {
        /// By how much, bytes.
        bytes: u64,
    },
    /// A lent frame and the ring no longer agree.
    FrameChanged,
    /// Credit was given for bytes that were not released, or for receives that were not posted.
    FalseCredit,
    /// `Extend` without a chain to extend, or beyond `chain_bytes_max`.
    BadExtend,
    /// A frame was released on a connection, or twice, that it does not belong to.
    BadRelease,
    /// Something was asked for while a run of frames was out.
    OpenRun,
    /// A loan was dropped while the peer was reading it.
    LoanReused,
    /// More READs outstanding than were granted.
    TooManyReads {
        /// How many.
        outstanding: u32,
    },
}
