//! A CM id of `RDMA_PS_UDP`, with the queue pair when it has one.

use std::{mem::MaybeUninit, net::SocketAddr, ops::Deref, ptr::NonNull, sync::Arc};

use super::{
    membership::Membership,
    name::QpNumber,
    private::{AnswerData, LookUpData},
};
use crate::{
    id::{channel::EventChannel, cm_id::CmId, params::QpRequest},
    sys::{self, RawAddress},
    verbs::{context::Pd, cq::Cq, qp::Qp},
};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS`.
const JOIN_FIELDS: u32 = 3;

/// A CM id of `RDMA_PS_UDP`, with the queue pair when it has one.
#[derive(Debug)]
pub(super) struct UdId(CmId);

/// What an id of any port space can do.
impl Deref for UdId {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.0
    }
}

impl UdId {
    pub(super) fn new(channel: &Arc<EventChannel>) -> Result<Self, i32> {
        CmId::in_space(channel, sys::rdma_port_space::RDMA_PS_UDP).map(Self)
    }

    /// An id that the library made for a look-up.
    ///
    /// # Safety
    /// `raw` is such an id, on `channel`, and nobody else owns it.
    pub(super) unsafe fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        // SAFETY: as our caller promises.
        Self(unsafe { CmId::adopt(raw, channel) })
    }

    /// Makes the queue pair; the library moves it to RTS at once, with the key of the port space.
    pub(super) fn create_qp(
        &mut self,
        pd: &Pd,
        sends: &Cq,
        receives: &Cq,
        room: QpRequest<'_>,
    ) -> Result<(Qp, QpNumber), i32> {
        let mut attributes = room.attributes(sys::ibv_qp_type::IBV_QPT_UD, sends, receives);
        let qp = self.0.make_qp(pd, &mut attributes)?;
        // SAFETY: just made, destroyed by our drop only; the number never changes.
        let number = QpNumber::new(unsafe { (*qp.as_ptr()).qp_num });
        // SAFETY: the end point drops this id, and the queue pair with it, before the rings that post on it.
        Ok((unsafe { Qp::new(qp, attributes.cap.max_inline_data) }, number))
    }

    /// Asks the other side's CM for a queue pair. Does not wait: there is no connection to make.
    pub(super) fn look_up(&self, data: &LookUpData, qp: QpNumber) -> Result<(), i32> {
        let mut raw = parameters(data.bytes(), qp);
        // SAFETY: the id is live; the data is read during the call only.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw(), &raw mut raw) })
    }

    /// Answers a look-up with `qp`, which is another id's.
    pub(super) fn accept(&self, data: &AnswerData, qp: QpNumber) -> Result<(), i32> {
        let mut raw = parameters(data.bytes(), qp);
        // SAFETY: as in `look_up`.
        sys::cm_result(unsafe { sys::rdma_accept(self.raw(), &raw mut raw) })
    }

    pub(super) fn reject(&self, data: &AnswerData) -> Result<(), i32> {
        let bytes = data.bytes();
        let len = u8::try_from(bytes.len()).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject(self.raw(), bytes.as_ptr().cast(), len) })
    }

    /// Starts to join; the event carries `number`. The queue pair is attached when the event is read.
    pub(super) fn join(&self, group: SocketAddr, membership: Membership, number: u32) -> Result<(), i32> {
        let mut address = RawAddress::from(group);
        let mut attributes = sys::rdma_cm_join_mc_attr_ex {
            comp_mask: JOIN_FIELDS,
            join_flags: membership.flags(),
            addr: address.as_mut_ptr(),
        };
        // Only carried back to us, never followed.
        let context = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: the id is live; attributes and address are read during the call only.
        let returned = unsafe { sys::rdma_join_multicast_ex(self.raw(), &raw mut attributes, context) };
        match sys::cm_result(returned) {
            // A librdmacm from before 2016 joins as a full member only.
            Err(sys::errno::ENOSYS) if membership == Membership::Full => {
                // SAFETY: as above.
                sys::cm_result(unsafe { sys::rdma_join_multicast(self.raw(), address.as_mut_ptr(), context) })
            }
            result => result,
        }
    }

    /// Detaches the queue pair and leaves, also a group whose join has not ended.
    pub(super) fn leave(&self, group: SocketAddr) -> Result<(), i32> {
        let mut address = RawAddress::from(group);
        // SAFETY: the id is live; the address is read during the call only. It waits for events that were read and
        // not acked, and we ack as we read.
        sys::cm_result(unsafe { sys::rdma_leave_multicast(self.raw(), address.as_mut_ptr()) })
    }
}

/// The result points into `data`. The rest of `rdma_conn_param` is for connections.
fn parameters(data: &[u8], qp: QpNumber) -> sys::rdma_conn_param {
    // SAFETY: integers and one pointer, for which zero is a value.
    let mut raw: sys::rdma_conn_param = unsafe { MaybeUninit::zeroed().assume_init() };
    raw.private_data = data.as_ptr().cast();
    raw.private_data_len = u8::try_from(data.len()).unwrap_or(0);
    raw.qp_num = qp.get();
    raw
}

/// A link-local address is nothing without its interface.
pub(super) fn with_scope(address: SocketAddr, like: SocketAddr) -> SocketAddr {
    match (address, like) {
        (SocketAddr::V6(mut v6), SocketAddr::V6(like)) => {
            v6.set_scope_id(like.scope_id());
            SocketAddr::V6(v6)
        }
        (address, _) => address,
    }
}
