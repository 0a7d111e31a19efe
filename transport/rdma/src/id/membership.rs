//! What an id is in a multicast group, and how the CM is told.

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
    /// Starts to join `group`: MULTICAST_JOIN or MULTICAST_ERROR follows, with `number` as [`CmEvent::join`]. The id has a
    /// device; its queue pair, if it has one, is attached when the event is read. The zero address asks the subnet
    /// administrator of InfiniBand for a group.
    ///
    /// [`CmEvent::join`]: crate::id::CmEvent::join
    ///
    /// # Errors
    /// errno; 524 of the kernel for IPv6 groups on RoCE v2.
    pub fn join(self, id: &CmId, group: impl Into<CmAddress>, number: u32) -> Result<(), i32> {
        use sys::{rdma_cm_join_mc_attr_mask as fields, rdma_cm_mc_join_flags as kind};
        let mut address = RawCmAddress::from(&group.into());
        // Only carried back to us, never followed.
        let context = std::ptr::without_provenance_mut(number as usize);
        if self == Self::Full {
            // SAFETY: the id is live; the address is read during the call only.
            return sys::cm_result(unsafe {
                sys::rdma_join_multicast(id.raw(), address.as_mut_ptr(), context)
            });
        }
        let mut attributes = sys::rdma_cm_join_mc_attr_ex {
            comp_mask: (fields::RDMA_CM_JOIN_MC_ATTR_ADDRESS | fields::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS).0,
            join_flags: kind::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0,
            addr: address.as_mut_ptr(),
        };
        // SAFETY: the id is live; attributes and address are read during the call only.
        sys::cm_result(unsafe { sys::rdma_join_multicast_ex(id.raw(), &raw mut attributes, context) })
    }

    /// Detaches the queue pair and leaves `group` (`rdma_leave_multicast(3)`), also when its join has not ended.
    ///
    /// # Errors
    /// errno; EADDRNOTAVAIL for a group that was not joined.
    pub fn leave(id: &CmId, group: impl Into<CmAddress>) -> Result<(), i32> {
        let mut address = RawCmAddress::from(&group.into());
        // SAFETY: the id is live; the address is read during the call only. It waits for events that were read and not
        // acked, and we ack as we read.
        sys::cm_result(unsafe { sys::rdma_leave_multicast(id.raw(), address.as_mut_ptr()) })
    }
}
