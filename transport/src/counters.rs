//! What a port did for one connection; read by the owner of the port, plain integers.

/// Counters of one connection.
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
    /// One-sided operations made: pieces of reads and writes, and atomic operations.
    pub accesses: u64,
    /// Signals asked for: send completions polled.
    pub signals: u64,
}
