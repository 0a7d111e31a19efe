//! A CM id with its queue pair.

use std::{mem::MaybeUninit, net::SocketAddr, ptr::NonNull, sync::Arc, time::Duration};

use crate::{
    error::DeviceError,
    id::{
        address::{CmAddress, RAW_BYTES, RawCmAddress},
        channel::EventChannel,
        params::{ConnectParams, QpRequest, REJECT_PRIVATE_BYTES},
        path::PathData,
    },
    sys,
    verbs::{
        context::{Context, DeviceKey, Pd},
        cq::Cq,
        qp::Qp,
    },
};

/// Names an id in events. An address, which is not used again before the id is destroyed and its events are gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct IdKey(usize);

impl IdKey {
    pub(crate) fn of(id: *mut sys::rdma_cm_id) -> Self {
        Self(id.addr())
    }
}

/// An id, in one event channel. Destroyed with its queue pair.
#[derive(Debug)]
pub struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    has_qp: bool,
    /// After the id's own drop, which runs first.
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm lets any thread call on an id; one has it at a time, except for the one call of `ConnectCall`.
unsafe impl Send for CmId {}

impl CmId {
    /// A reliable connected one (`RDMA_PS_TCP`, `rdma_create_id(3)`).
    ///
    /// # Errors
    /// errno.
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self, i32> {
        Self::in_space(channel, sys::rdma_port_space::RDMA_PS_TCP)
    }

    /// An id that the library made for a request.
    ///
    /// # Safety
    /// `raw` is such an id, on `channel`, and nobody else owns it.
    pub(crate) unsafe fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, has_qp: false, channel: Arc::clone(channel) }
    }

    /// Names the id in events.
    pub fn key(&self) -> IdKey {
        IdKey::of(self.raw.as_ptr())
    }

    /// Names the device; `None` before the id is bound to one.
    pub fn device(&self) -> Option<DeviceKey> {
        self.verbs().map(DeviceKey::of)
    }

    /// The device; `None` before the id is bound to one.
    ///
    /// # Errors
    /// [`DeviceError::NoDevice`] when it is being removed.
    pub fn context(&self) -> Result<Option<Arc<Context>>, DeviceError> {
        // SAFETY: the context of a live id, which the CM keeps open.
        self.verbs().map(|raw| unsafe { Context::of(raw) }).transpose()
    }

    fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live while we are; only this thread makes the library change the field.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    /// Names the queue pair in asynchronous events; 0: there is none.
    pub fn qp_address(&self) -> usize {
        // SAFETY: as in `verbs`; the pointer is only compared.
        if self.has_qp { unsafe { (*self.raw.as_ptr()).qp }.addr() } else { 0 }
    }

    /// Tells the CM that data came before its last message; `EISCONN` when it knows already.
    pub fn notify_established(&self) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe {
            sys::rdma_notify(self.raw.as_ptr(), sys::ibv_event_type::IBV_EVENT_COMM_EST)
        })
    }

    /// The device's port, from 1; 0 before the id is bound.
    pub fn port_number(&self) -> u8 {
        // SAFETY: as in `verbs`.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// The GID that the CM connects from; zeroes before a device is known, and where it has none to say.
    pub fn source_gid(&self) -> [u8; 16] {
        // SAFETY: as in `verbs`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.addr };
        // SAFETY: the union begins with `ibaddr.sgid`, 16 bytes that the library zeroed when it made the id; alignment 1.
        unsafe { place.cast::<[u8; 16]>().read() }
    }

    /// The peer's address, if it is an IP address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer_address()?.ip()
    }

    /// Our own address, if it is an IP address; after a bind to port 0, with the port that was chosen.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local_address()?.ip()
    }

    /// `rdma_bind_addr(3)`.
    ///
    /// # Errors
    /// errno.
    pub fn bind(&self, address: impl Into<CmAddress>) -> Result<(), i32> {
        let mut address = RawCmAddress::from(&address.into());
        // SAFETY: the id is live; the address is read during the call only, as long as its family says.
        sys::cm_result(unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    /// `rdma_listen(3)`; `backlog` 0 is the kernel's own maximum (`net.rdma_ucm.max_backlog`).
    ///
    /// # Errors
    /// errno.
    pub fn listen(&self, backlog: u16) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_listen(self.raw.as_ptr(), i32::from(backlog)) })
    }

    /// `rdma_resolve_addr(3)`: ADDR_RESOLVED or ADDR_ERROR follows.
    ///
    /// # Errors
    /// errno.
    pub fn resolve_address(
        &self,
        from: Option<CmAddress>,
        to: impl Into<CmAddress>,
        timeout: Duration,
    ) -> Result<(), i32> {
        let mut to = RawCmAddress::from(&to.into());
        let mut from = from.as_ref().map(RawCmAddress::from);
        let from = from.as_mut().map_or(std::ptr::null_mut(), RawCmAddress::as_mut_ptr);
        // SAFETY: the id is live; both addresses are locals that outlive the call, which only reads them.
        sys::cm_result(unsafe {
            sys::rdma_resolve_addr(self.raw.as_ptr(), from, to.as_mut_ptr(), milliseconds(timeout))
        })
    }

    /// Starts `rdma_resolve_route(3)`: ROUTE_RESOLVED or ROUTE_ERROR follows.
    ///
    /// # Errors
    /// errno.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// Sets an `int` option.
    fn set_flag(&self, option: i32, mut value: i32) -> Result<(), i32> {
        let place = (&raw mut value).cast();
        // SAFETY: the id is live; the value is read during the call only and has the size given.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), sys::OPTION_ID, option, place, size_of::<i32>())
        })
    }

    /// Sets the ACK timeout exponent; before connect or accept.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<(), i32> {
        self.set_byte(sys::OPTION_ID_ACK_TIMEOUT, exponent)
    }

    /// Makes the queue pair. The CM moves it through its states from here on.
    pub fn create_qp(&mut self, pd: &Pd, cq: &Cq, request: QpRequest<'_>) -> Result<Qp, i32> {
        let mut attributes = request.attributes(sys::ibv_qp_type::IBV_QPT_RC, cq, cq);
        let qp = self.make_qp(pd, &mut attributes)?;
        // SAFETY: destroyed only by `destroy_qp`, in exchange for this value, or with the id when it is lost.
        Ok(unsafe { Qp::new(qp, attributes.cap.max_inline_data) })
    }

    /// `rdma_create_qp(3)`, which writes what the device granted into `attributes`. The queue pair goes with the id.
    pub(crate) fn make_qp(
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
    pub fn destroy_qp(&mut self, _licence: Option<Qp>) {
        if std::mem::take(&mut self.has_qp) {
            // SAFETY: it exists, and nobody posts any more: the licence came back, or was never given out.
            unsafe { sys::rdma_destroy_qp(self.raw.as_ptr()) };
        }
    }

    /// Accepts a request (`rdma_accept(3)`): ESTABLISHED follows.
    ///
    /// # Errors
    /// errno.
    pub fn accept(&self, params: &ConnectParams) -> Result<(), i32> {
        let mut raw = params.raw();
        // SAFETY: the id is live; the parameters point into `params`, which outlives the call.
        sys::cm_result(unsafe { sys::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Refuses a request (`rdma_reject(3)`), with at most 148 bytes for the other side.
    ///
    /// # Errors
    /// errno.
    pub fn reject(&self, private: &[u8]) -> Result<(), i32> {
        let len = u8::try_from(private.len().min(REJECT_PRIVATE_BYTES)).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    /// Ends a connection (`rdma_disconnect(3)`).
    ///
    /// # Errors
    /// errno; EINVAL when it has ended already.
    pub fn disconnect(&self) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// The one call that another thread makes.
    ///
    /// # Safety
    /// The id is kept, and nothing else is done with it, until the call was run or dropped.
    pub unsafe fn connect_call(&self, params: ConnectParams) -> ConnectCall {
        ConnectCall { raw: self.raw, params }
    }

    /// Type of service of what is set up from here on (`RDMA_OPTION_ID_TOS`): the byte of RFC 2474.
    ///
    /// # Errors
    /// errno.
    pub fn set_type_of_service(&self, tos: u8) -> Result<(), i32> {
        self.set_byte(sys::OPTION_ID_TOS, tos)
    }

    /// Lets the address be bound although an older connection still holds it (`RDMA_OPTION_ID_REUSEADDR`).
    ///
    /// # Errors
    /// errno.
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), i32> {
        self.set_flag(sys::OPTION_ID_REUSEADDR, reuse.into())
    }

    /// Listens on the bound family only (`RDMA_OPTION_ID_AFONLY`): like `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// errno.
    pub fn set_one_family(&self, only: bool) -> Result<(), i32> {
        self.set_flag(sys::OPTION_ID_AFONLY, only.into())
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// An id in a port space of its own choice (`RDMA_PS_*`).
    pub fn in_space(channel: &Arc<EventChannel>, port_space: u32) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is live; `raw` is a place for one pointer; no context is kept with the id.
        let returned =
            unsafe { sys::rdma_create_id(channel.raw(), &raw mut raw, std::ptr::null_mut(), port_space) };
        sys::cm_result(returned)?;
        let raw = NonNull::new(raw).ok_or(sys::errno::EINVAL)?;
        Ok(Self { raw, has_qp: false, channel: Arc::clone(channel) })
    }

    /// Sets a `u8` option of the id's level.
    fn set_byte(&self, option: i32, mut value: u8) -> Result<(), i32> {
        let place = (&raw mut value).cast();
        // SAFETY: the id is live; the value is read during the call only and has the size given.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), sys::OPTION_ID, option, place, size_of::<u8>())
        })
    }

    /// Gives the path records (`ibv_path_data`, as bytes) instead of resolving the route.
    pub fn set_paths(&self, paths: &[PathData]) -> Result<(), i32> {
        let mut records = PathData::words(paths);
        let bytes = size_of_val(records.as_slice());
        let place = records.as_mut_ptr().cast();
        // SAFETY: the id is live; the records are read during the call only, are as many bytes as said, and lie
        // in words, which is at least the alignment of the C structure.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), sys::OPTION_IB, sys::OPTION_IB_PATH, place, bytes)
        })
    }

    /// Moves the id and its pending events to another channel.
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<(), i32> {
        // SAFETY: both channels are live, and no event of the id is unacked: events are acked when they are read.
        sys::cm_result(unsafe { sys::rdma_migrate_id(self.raw.as_ptr(), channel.raw()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// May block: siw connects its TCP socket inside.
    pub fn connect(&self, params: &ConnectParams) -> Result<(), i32> {
        let mut raw = params.raw();
        // SAFETY: the id is live; the parameters point into `params`, which outlives the call.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Tells the passive side that a queue pair of our own making is ready.
    pub fn establish(&self) -> Result<(), i32> {
        // SAFETY: the id is live; with a queue pair of the CM's the call fails and does nothing.
        sys::cm_result(unsafe { sys::rdma_establish(self.raw.as_ptr()) })
    }

    pub(crate) fn remote_ece(&self, ece: &mut sys::ibv_ece) -> Result<(), i32> {
        // SAFETY: the id is live; the place is ours.
        sys::cm_result(unsafe { sys::rdma_get_remote_ece(self.raw.as_ptr(), ece) })
    }

    pub(crate) fn set_local_ece(&self, mut ece: sys::ibv_ece) -> Result<(), i32> {
        // SAFETY: the id is live; the options are read during the call only.
        sys::cm_result(unsafe { sys::rdma_set_local_ece(self.raw.as_ptr(), &raw mut ece) })
    }

    /// Refuses a request because of its ECE options (`rdma_reject_ece(3)`).
    ///
    /// # Errors
    /// errno.
    pub fn reject_ece(&self, private: &[u8]) -> Result<(), i32> {
        let len = u8::try_from(private.len()).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject_ece(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    /// What a queue pair of our own must be told to enter `state`, and the mask that says which fields.
    pub(crate) fn qp_attributes(&self, state: u32) -> Result<(sys::ibv_qp_attr, i32), i32> {
        // SAFETY: integers and unions of integers, for which zero is a value.
        let mut attributes: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the id is live; both places are ours.
        sys::cm_result(unsafe {
            sys::rdma_init_qp_attr(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        })?;
        Ok((attributes, mask))
    }

    /// Where the peer is, in any family.
    pub fn peer_address(&self) -> Option<CmAddress> {
        // SAFETY: the id is live; the union is 128 bytes, all initialised by the library.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: the first bytes of the union; a byte array has no alignment.
        CmAddress::parse(&unsafe { place.cast::<[u8; RAW_BYTES]>().read() })
    }

    /// Where we are, in any family.
    pub fn local_address(&self) -> Option<CmAddress> {
        // SAFETY: as in `peer_address`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.src_addr_union };
        // SAFETY: as in `peer_address`.
        CmAddress::parse(&unsafe { place.cast::<[u8; RAW_BYTES]>().read() })
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
pub struct ConnectCall {
    raw: NonNull<sys::rdma_cm_id>,
    params: ConnectParams,
}

// SAFETY: `connect_call`'s promise: the id lives and is left alone until this is done.
unsafe impl Send for ConnectCall {}

impl ConnectCall {
    /// Connects. May block.
    ///
    /// # Errors
    /// errno.
    pub fn run(self) -> Result<(), i32> {
        let mut raw = self.params.raw();
        // SAFETY: the id is live by `connect_call`'s promise; the parameters point into `self`.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }
}

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1)
}
