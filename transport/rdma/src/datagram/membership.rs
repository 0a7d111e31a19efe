//! What an end point is in a group, and how the CM is told.

use std::net::SocketAddr;

use crate::{
    id::{
        address::{CmAddress, RawCmAddress},
        cm_id::CmId,
    },
    sys,
};

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
    /// Starts to join; the event carries `number`. The queue pair is attached when the event is read.
    pub(super) fn join(self, id: &CmId, group: SocketAddr, number: u32) -> Result<(), i32> {
        let mut address = RawCmAddress::from(&CmAddress::from(group));
        use sys::{rdma_cm_join_mc_attr_mask as fields, rdma_cm_mc_join_flags as kind};
        let flags = match self {
            Self::Full => kind::RDMA_MC_JOIN_FLAG_FULLMEMBER,
            Self::SendOnly => kind::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        };
        let mut attributes = sys::rdma_cm_join_mc_attr_ex {
            comp_mask: (fields::RDMA_CM_JOIN_MC_ATTR_ADDRESS | fields::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS).0,
            join_flags: flags.0,
            addr: address.as_mut_ptr(),
        };
        // Only carried back to us, never followed.
        let context = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: the id is live; attributes and address are read during the call only.
        let returned = unsafe { sys::rdma_join_multicast_ex(id.raw(), &raw mut attributes, context) };
        match sys::cm_result(returned) {
            // A librdmacm from before 2016 joins as a full member only.
            Err(libc::ENOSYS | libc::EOPNOTSUPP) if self == Self::Full => {
                // SAFETY: as above.
                sys::cm_result(unsafe { sys::rdma_join_multicast(id.raw(), address.as_mut_ptr(), context) })
            }
            result => result,
        }
    }
}

/// Detaches the queue pair and leaves, also a group whose join has not ended.
pub(super) fn leave(id: &CmId, group: SocketAddr) -> Result<(), i32> {
    let mut address = RawCmAddress::from(&CmAddress::from(group));
    // SAFETY: the id is live; the address is read during the call only. It waits for events that were read and not
    // acked, and we ack as we read.
    sys::cm_result(unsafe { sys::rdma_leave_multicast(id.raw(), address.as_mut_ptr()) })
}

/// Gives `address` the interface of `like`: a link-local address is nothing without one.
pub(super) fn with_scope(mut address: SocketAddr, like: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(v6), SocketAddr::V6(like)) = (&mut address, like) {
        v6.set_scope_id(like.scope_id());
    }
    address
}
