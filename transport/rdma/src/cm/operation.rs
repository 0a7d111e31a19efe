//! What is done on a connection.

/// What kind of work completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A SEND of ours.
    Send,
    /// A receive of ours, by a SEND of the peer's.
    Receive,
    /// An RDMA READ of ours.
    Read,
    /// An RDMA WRITE of ours.
    Write,
    /// An atomic operation of ours on the peer's memory.
    Atomic,
}

impl Operation {
    /// Whether the device writes our memory.
    pub(crate) const fn writes(self) -> bool {
        matches!(self, Self::Receive | Self::Read | Self::Atomic)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Receive => "receive",
            Self::Read => "RDMA READ",
            Self::Write => "RDMA WRITE",
            Self::Atomic => "atomic operation",
        }
    }
}
