//! What a port did for one connection; read by the owner of the port, plain integers.

/// The receives that connections of a port on one device and completion queue share, see [`Receives`](crate::Receives).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedState {
    /// Which device.
    pub device: String,
    /// One slot, bytes.
    pub slot_bytes: u32,
    /// Slots that were made: posted, or in use.
    pub slots: u32,
    /// Of those, guaranteed to connections.
    pub reserved: u32,
    /// Shared receives that no connection is guaranteed: for connections that use up their own.
    pub common: u32,
    /// Of these, promised to nobody now.
    pub common_free: u32,
    /// How often the device said that the queue ran low, and more were added as far as `port.shared.common_max` allows.
    pub limit_events: u64,
}

/// What the port did for one connection so far. `tuning.md` says what follows from each number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Chains posted: doorbells on verbs, publishes on shm.
    pub doorbells: u64,
    /// Frames committed.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Work requests of kind SEND that were posted.
    pub sends: u64,
    /// Receives completed by a SEND.
    pub receives: u64,
    /// Work requests of kind write-with-immediate that were posted.
    pub write_imms: u64,
    /// Receives completed by a write-with-immediate.
    pub receives_with_imm: u64,
    /// RDMA READ work requests completed; in shared memory, pieces of bulk copied from a peer that is not trusted.
    pub reads: u64,
    /// Most RDMA READs that were outstanding at a time; never above the granted `initiator_depth`.
    pub reads_peak: u64,
    /// Bytes that those brought.
    pub read_bytes: u64,
    /// Bytes of bulk read in place.
    pub in_place_bytes: u64,
    /// In shared memory: pieces of the peer's memory that are mapped beside its ring, when it last passed one. Pool segments and
    /// exposed memory.
    pub passed_pieces: u64,
    /// Bytes of those.
    pub passed_bytes: u64,
    /// Bytes of the port's memory for bulk that the connection has now: its loans, and what was pulled into that memory.
    pub loan_bytes: u64,
    /// Loans and pulls that were refused because the connection has [`loan_bytes_max`](crate::PortConfig) already.
    pub loans_refused: u64,
    /// One-sided operations made: pieces of reads and writes, and atomic operations.
    pub accesses: u64,
    /// Signals asked for: send completions polled.
    pub signals: u64,
}
