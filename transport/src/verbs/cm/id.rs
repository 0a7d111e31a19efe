//! A CM id with its queue pair. Owned by the control thread; `rdma_connect` alone runs elsewhere, because it can block.

use std::{mem::MaybeUninit, net::SocketAddr, ptr::NonNull, sync::Arc, time::Duration};

use crate::verbs::{
    cm::EventChannel,
    cq::Cq,
    device::Pd,
    qp::Qp,
    sys::{self, RawAddress},
};

/// Names an id in events. An address, which is not used again before the id is destroyed and its events are gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct IdKey(usize);

impl IdKey {
    pub(crate) fn of(id: *mut sys::rdma_cm_id) -> Self {
        Self(id.addr())
    }
}

/// What both `rdma_connect` and `rdma_accept` are told.
#[derive(Clone, Debug)]
pub(crate) struct ConnectParams {
    /// At most 56 bytes on connect, 196 on accept.
    pub(crate) private: Vec<u8>,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// Exchanged only, never put into a queue pair.
    pub(crate) flow_control: bool,
    /// Ignored on accept.
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// These two are ignored when the id has a queue pair.
    pub(crate) srq: bool,
    pub(crate) qp_num: u32,
}

/// Times a send is tried again without an answer: the most that 3 bits can say.
const RETRY_COUNT: u8 = 7;
/// Times the peer's send is tried again when no receive is posted. Credit makes sure that one is, so this never
/// counts in an honest run; 7 would mean for ever, and turn a broken peer into a silent hang.
const RNR_RETRY_COUNT: u8 = 6;

impl ConnectParams {
    /// With the retries of our own connections.
    pub(crate) fn new(private: Vec<u8>, responder_resources: u8, initiator_depth: u8) -> Self {
        Self {
            private,
            responder_resources,
            initiator_depth,
            flow_control: false,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
            srq: false,
            qp_num: 0,
        }
    }

    /// The result points into `self`.
    pub(super) fn raw(&self) -> sys::rdma_conn_param {
        // SAFETY: integers and one pointer, for which zero is a value.
        let mut raw: sys::rdma_conn_param = unsafe { MaybeUninit::zeroed().assume_init() };
        raw.private_data = self.private.as_ptr().cast();
        raw.private_data_len = u8::try_from(self.private.len()).unwrap_or(u8::MAX);
        raw.responder_resources = self.responder_resources;
        raw.initiator_depth = self.initiator_depth;
        raw.flow_control = u8::from(self.flow_control);
        raw.retry_count = self.retry_count;
        raw.rnr_retry_count = self.rnr_retry_count;
        raw.srq = u8::from(self.srq);
        raw.qp_num = self.qp_num;
        raw
    }
}

/// What a queue pair is asked to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRequest {
    pub(crate) send_entries: u32,
    pub(crate) recv_entries: u32,
    pub(crate) inline_bytes: u32,
    /// Where its receives come from, if not from a queue of its own.
    pub(crate) srq: Option<*mut sys::ibv_srq>,
}

impl QpRequest {
    /// For `ibv_create_qp(3)` and `rdma_create_qp(3)`; one scatter entry each way.
    pub(crate) fn attributes(
        self,
        kind: sys::ibv_qp_type::Type,
        sends: &Cq,
        receives: &Cq,
    ) -> sys::ibv_qp_init_attr {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut attributes: sys::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.send_cq = sends.raw();
        attributes.recv_cq = receives.raw();
        attributes.qp_type = kind;
        attributes.cap.max_send_wr = self.send_entries;
        attributes.cap.max_recv_wr = self.recv_entries;
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_recv_sge = 1;
        attributes.cap.max_inline_data = self.inline_bytes;
        if let Some(srq) = self.srq {
            attributes.srq = srq;
            attributes.cap.max_recv_sge = 0;
        }
        attributes
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct CmId {
    pub(in crate::verbs) raw: NonNull<sys::rdma_cm_id>,
    pub(super) has_qp: bool,
    /// After the id's own drop, which runs first.
    pub(super) channel: Arc<EventChannel>,
}

// SAFETY: librdmacm lets any thread call on an id; the control thread owns it and is the only one that does,
// except for the one call of `ConnectCall`.
unsafe impl Send for CmId {}

impl CmId {
    pub(crate) fn new(channel: &Arc<EventChannel>) -> Result<Self, i32> {
        Self::in_space(channel, sys::rdma_port_space::RDMA_PS_TCP)
    }

    /// An id that the library made for a request.
    ///
    /// # Safety
    /// `raw` is such an id, on `channel`, and nobody else owns it.
    pub(crate) unsafe fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, has_qp: false, channel: Arc::clone(channel) }
    }

    pub(crate) fn key(&self) -> IdKey {
        IdKey::of(self.raw.as_ptr())
    }

    /// The device context; `None` before the id is bound to a device.
    pub(crate) fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live while we are; only this thread makes the library change the field.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    /// Names the queue pair in asynchronous events; 0: there is none.
    pub(crate) fn qp_address(&self) -> usize {
        // SAFETY: as in `verbs`; the pointer is only compared.
        if self.has_qp { unsafe { (*self.raw.as_ptr()).qp }.addr() } else { 0 }
    }

    /// Tells the CM that data came before its last message; `EISCONN` when it knows already.
    pub(crate) fn notify_established(&self) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe {
            sys::rdma_notify(self.raw.as_ptr(), sys::ibv_event_type::IBV_EVENT_COMM_EST)
        })
    }

    /// The device's port, from 1; 0 before the id is bound.
    pub(crate) fn port_number(&self) -> u8 {
        // SAFETY: as in `verbs`.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// The GID that the CM connects from; zeroes before a device is known, and where it has none to say.
    pub(crate) fn source_gid(&self) -> [u8; 16] {
        // SAFETY: as in `verbs`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.addr };
        // SAFETY: the union begins with `ibaddr.sgid`, 16 bytes that the library zeroed when it made the id; alignment 1.
        unsafe { place.cast::<[u8; 16]>().read() }
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as in `verbs`; the union is 128 bytes of which 28 are read as bytes, all initialised by the library.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: inside the union, alignment 1.
        RawAddress::parse(&unsafe { place.cast::<[u8; 28]>().read() })
    }

    /// Our own address; after a bind to port 0, with the port that was chosen.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: as in `peer`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.src_addr_union };
        // SAFETY: as in `peer`.
        RawAddress::parse(&unsafe { place.cast::<[u8; 28]>().read() })
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), i32> {
        let mut address = RawAddress::from(address);
        // SAFETY: the id is live; the address is read during the call only.
        sys::cm_result(unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    pub(crate) fn listen(&self, backlog: u16) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_listen(self.raw.as_ptr(), i32::from(backlog.max(1))) })
    }

    pub(crate) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), i32> {
        let mut to = RawAddress::from(to);
        let mut from = from.map(RawAddress::from);
        let from = from.as_mut().map_or(std::ptr::null_mut(), RawAddress::as_mut_ptr);
        // SAFETY: the id is live; both addresses are read during the call only, and no source is a null one.
        sys::cm_result(unsafe {
            sys::rdma_resolve_addr(self.raw.as_ptr(), from, to.as_mut_ptr(), milliseconds(timeout))
        })
    }

    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// Sets an `int` option.
    pub(crate) fn set_flag(&self, option: i32, mut value: i32) -> Result<(), i32> {
        let place = (&raw mut value).cast();
        // SAFETY: the id is live; the value is read during the call only and has the size given.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), sys::OPTION_ID, option, place, size_of::<i32>())
        })
    }

    /// Sets the ACK timeout exponent; before connect or accept.
    pub(crate) fn set_ack_timeout(&self, exponent: u8) -> Result<(), i32> {
        self.set_byte(sys::OPTION_ID_ACK_TIMEOUT, exponent)
    }

    /// Makes the queue pair. The CM moves it through its states from here on.
    pub(crate) fn create_qp(&mut self, pd: &Pd, cq: &Cq, request: QpRequest) -> Result<Qp, i32> {
        let mut attributes = request.attributes(sys::ibv_qp_type::IBV_QPT_RC, cq, cq);
        let qp = self.make_qp(pd, &mut attributes)?;
        // SAFETY: destroyed only by `destroy_qp`, in exchange for this value, or with the id when it is lost.
        Ok(unsafe { Qp::new(qp, attributes.cap.max_inline_data) })
    }

    /// `rdma_create_qp(3)`, which writes what the device granted into `attributes`. The queue pair goes with the id.
    pub(in crate::verbs) fn make_qp(
        &mut self,
        pd: &Pd,
        attributes: &mut sys::ibv_qp_init_attr,
    ) -> Result<NonNull<sys::ibv_qp>, i32> {
        // SAFETY: id, domain and queues are live and of one device; the owner of the queue pair keeps the others.
        let returned = unsafe { sys::rdma_create_qp(self.raw.as_ptr(), pd.raw(), attributes) };
        sys::cm_result(returned)?;
        self.has_qp = true;
        // SAFETY: the call succeeded, so the id has a queue pair.
        NonNull::new(unsafe { (*self.raw.as_ptr()).qp }).ok_or(sys::errno::EINVAL)
    }

    /// Destroys the queue pair: afterwards the device touches nothing that was posted on it.
    pub(crate) fn destroy_qp(&mut self, _licence: Option<Qp>) {
        if std::mem::take(&mut self.has_qp) {
            // SAFETY: it exists, and nobody posts any more: the licence came back, or was never given out.
            unsafe { sys::rdma_destroy_qp(self.raw.as_ptr()) };
        }
    }

    pub(crate) fn accept(&self, params: &ConnectParams) -> Result<(), i32> {
        let mut raw = params.raw();
        // SAFETY: the id is live; the parameters point into `params`, which outlives the call.
        sys::cm_result(unsafe { sys::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn reject(&self, private: &[u8]) -> Result<(), i32> {
        let len = u8::try_from(private.len().min(crate::hello::REJECT_PRIVATE_BYTES)).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    pub(crate) fn disconnect(&self) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// The one call that another thread makes.
    ///
    /// # Safety
    /// The id is kept, and nothing else is done with it, until the call was run or dropped.
    pub(crate) unsafe fn connect_call(&self, params: ConnectParams) -> ConnectCall {
        ConnectCall { raw: self.raw, params }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp(None);
        // SAFETY: ours alone; its queue pair is gone and its events were acked when they were copied.
        let returned = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if let Err(errno) = sys::cm_result(returned) {
            tracing::warn!(errno, "rdma_destroy_id failed");
        }
    }
}

/// `rdma_connect`, to be run where it may block: siw connects its TCP socket inside it.
#[derive(Debug)]
pub(crate) struct ConnectCall {
    raw: NonNull<sys::rdma_cm_id>,
    params: ConnectParams,
}

// SAFETY: `connect_call`'s promise: the id lives and is left alone until this is done.
unsafe impl Send for ConnectCall {}

impl ConnectCall {
    pub(crate) fn run(self) -> Result<(), i32> {
        let mut raw = self.params.raw();
        // SAFETY: the id is live by `connect_call`'s promise; the parameters point into `self`.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }
}

pub(super) fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1)
}
