//! A CM id of `RDMA_PS_UDP`, with the queue pair when it has one.

use std::{mem::MaybeUninit, net::SocketAddr, ptr::NonNull, sync::Arc, time::Duration};

use super::{
    group::Membership,
    name::QpNumber,
    private::{AnswerData, LookUpData},
};
use crate::verbs::{
    cm::{EventChannel, IdKey},
    cq::Cq,
    device::Pd,
    qp::Qp,
    sys::{self, RawAddress},
};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS`.
const JOIN_FIELDS: u32 = 3;

/// What a queue pair is asked to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) sends: u32,
    pub(super) receives: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct UdId {
    raw: NonNull<sys::rdma_cm_id>,
    has_qp: bool,
    /// After the id's own drop, which runs first.
    _channel: Arc<EventChannel>,
}

// SAFETY: librdmacm lets any thread call on an id; an end point owns its ids and moves with all of them.
unsafe impl Send for UdId {}

impl UdId {
    pub(super) fn new(channel: &Arc<EventChannel>) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_UDP;
        // SAFETY: the channel is live; `raw` is a place for one pointer; no context is kept with the id.
        let returned =
            unsafe { sys::rdma_create_id(channel.raw(), &raw mut raw, std::ptr::null_mut(), space) };
        sys::cm_result(returned)?;
        let raw = NonNull::new(raw).ok_or(sys::errno::EINVAL)?;
        Ok(Self { raw, has_qp: false, _channel: Arc::clone(channel) })
    }

    /// An id that the library made for a look-up.
    ///
    /// # Safety
    /// `raw` is such an id, on `channel`, and nobody else owns it.
    pub(super) unsafe fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, has_qp: false, _channel: Arc::clone(channel) }
    }

    pub(super) fn key(&self) -> IdKey {
        IdKey::of(self.raw.as_ptr())
    }

    /// The device context; `None` before the id is bound to a device.
    pub(super) fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live while we are; the library changes the field in calls of this thread only.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    /// The device's port, from 1; 0 before the id is bound.
    pub(super) fn port_number(&self) -> u8 {
        // SAFETY: as in `verbs`.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// Our own address; after a bind to port 0, with the port that was chosen.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: as in `verbs`; the union is 128 bytes of which 28 are read as bytes, all initialised by the library.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.src_addr_union };
        // SAFETY: inside the union, alignment 1.
        RawAddress::parse(&unsafe { place.cast::<[u8; 28]>().read() })
    }

    /// The asking side's address, on the id of a look-up.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as in `local`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: as in `local`.
        RawAddress::parse(&unsafe { place.cast::<[u8; 28]>().read() })
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), i32> {
        let mut address = RawAddress::from(address);
        // SAFETY: the id is live; the address is read during the call only.
        sys::cm_result(unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    pub(super) fn listen(&self, backlog: u16) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_listen(self.raw.as_ptr(), i32::from(backlog.max(1))) })
    }

    pub(super) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), i32> {
        let mut to = RawAddress::from(to);
        let mut from = from.map(RawAddress::from);
        let from = from.as_mut().map_or(std::ptr::null_mut(), RawAddress::as_mut_ptr);
        let timeout_ms = milliseconds(timeout);
        // SAFETY: the id is live; both addresses are read during the call only, and no source is a null one.
        sys::cm_result(unsafe {
            sys::rdma_resolve_addr(self.raw.as_ptr(), from, to.as_mut_ptr(), timeout_ms)
        })
    }

    pub(super) fn resolve_route(&self, timeout: Duration) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// Makes the queue pair; the library moves it to RTS at once, with the key of the port space.
    pub(super) fn create_qp(
        &mut self,
        pd: &Pd,
        sends: &Cq,
        receives: &Cq,
        room: Room,
    ) -> Result<(Qp, QpNumber), i32> {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut attributes: sys::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.send_cq = sends.raw();
        attributes.recv_cq = receives.raw();
        attributes.qp_type = sys::ibv_qp_type::IBV_QPT_UD;
        attributes.cap.max_send_wr = room.sends;
        attributes.cap.max_recv_wr = room.receives;
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_recv_sge = 1;
        // SAFETY: id, domain and queues are live and of one device; the end point keeps them longer than the id.
        let returned = unsafe { sys::rdma_create_qp(self.raw.as_ptr(), pd.raw(), &raw mut attributes) };
        sys::cm_result(returned)?;
        self.has_qp = true;
        // SAFETY: the call succeeded, so the id has a queue pair.
        let qp = NonNull::new(unsafe { (*self.raw.as_ptr()).qp }).ok_or(sys::errno::EINVAL)?;
        // SAFETY: just made, destroyed by our drop only; the number never changes.
        let number = QpNumber::new(unsafe { (*qp.as_ptr()).qp_num });
        // SAFETY: the end point drops this id, and the queue pair with it, before the rings that post on it.
        Ok((unsafe { Qp::new(qp, attributes.cap.max_inline_data) }, number))
    }

    /// Asks the other side's CM for a queue pair. Does not wait: there is no connection to make.
    pub(super) fn look_up(&self, data: &LookUpData, qp: QpNumber) -> Result<(), i32> {
        let mut raw = parameters(data.bytes(), qp);
        // SAFETY: the id is live; the data is read during the call only.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Answers a look-up with `qp`, which is another id's.
    pub(super) fn accept(&self, data: &AnswerData, qp: QpNumber) -> Result<(), i32> {
        let mut raw = parameters(data.bytes(), qp);
        // SAFETY: as in `look_up`.
        sys::cm_result(unsafe { sys::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(super) fn reject(&self, data: &AnswerData) -> Result<(), i32> {
        let bytes = data.bytes();
        let len = u8::try_from(bytes.len()).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject(self.raw.as_ptr(), bytes.as_ptr().cast(), len) })
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
        let returned =
            unsafe { sys::rdma_join_multicast_ex(self.raw.as_ptr(), &raw mut attributes, context) };
        match sys::cm_result(returned) {
            // A librdmacm from before 2016 joins as a full member only.
            Err(sys::errno::ENOSYS) if membership == Membership::Full => {
                // SAFETY: as above.
                sys::cm_result(unsafe {
                    sys::rdma_join_multicast(self.raw.as_ptr(), address.as_mut_ptr(), context)
                })
            }
            result => result,
        }
    }

    /// Detaches the queue pair and leaves, also a group whose join has not ended.
    pub(super) fn leave(&self, group: SocketAddr) -> Result<(), i32> {
        let mut address = RawAddress::from(group);
        // SAFETY: the id is live; the address is read during the call only. It waits for events that were read and
        // not acked, and we ack as we read.
        sys::cm_result(unsafe { sys::rdma_leave_multicast(self.raw.as_ptr(), address.as_mut_ptr()) })
    }
}

impl Drop for UdId {
    fn drop(&mut self) {
        if self.has_qp {
            // SAFETY: it exists, and the end point that owns the licence is being dropped or was never finished.
            unsafe { sys::rdma_destroy_qp(self.raw.as_ptr()) };
        }
        // SAFETY: ours alone; its queue pair is gone and its events were acked when they were copied.
        let returned = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if let Err(errno) = sys::cm_result(returned) {
            tracing::warn!(errno, "rdma_destroy_id failed");
        }
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

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1)
}
