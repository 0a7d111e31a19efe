//! What an end point is in a group.

/// What a member does (`rdma_join_multicast_ex(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Sends and receives; its own messages come back to it on RoCE.
    Full,
    /// Sends only: nothing is delivered, and on RoCE no membership is announced. On InfiniBand the subnet manager must
    /// know it.
    SendOnly,
}

impl Membership {
    /// `RDMA_MC_JOIN_FLAG_*`.
    pub(super) fn flags(self) -> u32 {
        match self {
            Self::Full => 0,
            Self::SendOnly => 1,
        }
    }
}
