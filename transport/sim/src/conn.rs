//! A connection: how far it is, and what its two ends hold.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use gimmal_transport::{
    AccessError, Accessed, BulkError, CloseReason, ConnId, ConnectError, Credit, Hello, Key, Negotiated,
    PortConfig, PortCounters, Tag, Time,
    id::Position,
    mem::Bulk,
    parts::{Account, Session},
};

use super::{
    config::SimDevice,
    halves::{Receive, Transmit},
    transfers::{Pull, UnderWay},
};

/// One side of a connection: 0 connected, 1 was listening.
pub(super) type Side = usize;

/// What waits for a poll of the port.
#[derive(Debug)]
pub(super) enum Inbound {
    Opened(Arc<Negotiated>),
    Frame { payload: Box<[u8]>, tag: Tag, end: Position, slot: u32, chain_end: bool },
    Pulled { token: u64, result: Result<Bulk, BulkError> },
    Accessed { token: u64, result: Result<Accessed, AccessError> },
    Closed(CloseReason),
}

/// How far an end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// No link yet.
    Nascent,
    /// A link, or adopted: the handshake runs.
    Linked,
    /// Both grants passed.
    Open,
    /// It has its cause of death.
    Closed,
}

/// How far the attempt to connect is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Requesting,
    Waiting,
    Replying,
    Established,
    Failed,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) port: Option<u64>,
    pub(super) id: Option<ConnId>,
    pub(super) device: SimDevice,
    pub(super) config: PortConfig,
    pub(super) hello: Option<Hello>,
    /// The shared key it proves, if any.
    pub(super) key: Option<Key>,
    pub(super) session: Option<Session>,
    pub(super) negotiated: Option<Arc<Negotiated>>,
    pub(super) handshake_timeout: Duration,
    pub(super) life: Life,
    pub(super) granted: bool,
    /// A work request failed: those behind it are flushed, and never arrive.
    pub(super) failed: bool,
    /// Nobody holds a link, an attempt, a request or a slot for it.
    pub(super) gone: bool,
    pub(super) queued: bool,
    pub(super) inbox: VecDeque<Inbound>,
    pub(super) rx: Receive,
    pub(super) tx: Transmit,
    pub(super) peer_credit: Credit,
    pub(super) pulls: VecDeque<Pull>,
    pub(super) reads_outstanding: u32,
    pub(super) accesses: VecDeque<UnderWay>,
    pub(super) counters: PortCounters,
    pub(super) account: Arc<Account>,
    pub(super) sent_until: Time,
    pub(super) completed_until: Time,
}

impl End {
    pub(super) fn new(device: SimDevice, config: PortConfig) -> Self {
        Self {
            port: None,
            id: None,
            device,
            account: Account::new(config.loan_bytes_max),
            config,
            hello: None,
            key: None,
            session: None,
            negotiated: None,
            handshake_timeout: Duration::ZERO,
            life: Life::Nascent,
            granted: false,
            failed: false,
            gone: false,
            queued: false,
            inbox: VecDeque::new(),
            rx: Receive::default(),
            tx: Transmit::default(),
            peer_credit: Credit::default(),
            pulls: VecDeque::new(),
            reads_outstanding: 0,
            accesses: VecDeque::new(),
            counters: PortCounters::default(),
            sent_until: Time(0),
            completed_until: Time(0),
        }
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) number: u32,
    pub(super) address: String,
    pub(super) name: String,
    pub(super) private_data: Vec<u8>,
    /// What stands behind the passive side's hello.
    pub(super) challenge: Vec<u8>,
    pub(super) connect_timeout: Duration,
    pub(super) stage: Stage,
    pub(super) outcome: Option<Result<(), ConnectError>>,
    pub(super) silent: bool,
    pub(super) frames: u64,
    pub(super) completions: u64,
    pub(super) pieces: u64,
    pub(super) ends: [End; 2],
}
