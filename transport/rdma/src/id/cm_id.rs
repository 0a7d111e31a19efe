//! A CM id with its queue pair.

use std::{net::SocketAddr, ptr::NonNull, sync::Arc, time::Duration};

use crate::{
    error::DeviceError,
    id::{
        address::{CmAddress, RAW_BYTES, RawCmAddress},
        channel::EventChannel,
        params::{ConnectParams, QpRequest, REJECT_PRIVATE_BYTES},
        path::PathData,
        space::{PortSpace, QpType},
    },
    sys,
    verbs::{
        context::{Context, Pd},
        cq::Cq,
        held,
        key::DeviceKey,
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

/// An id, in one event channel. Dropping it destroys it with its queue pair, if nobody has the [`Qp`] any more, and leaks
/// both otherwise.
#[derive(Debug)]
pub struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    /// Of its queue pair, while there is one. A `Qp` has a clone.
    licence: Option<Arc<()>>,
    /// After the id's own drop, which runs first; `None` for a channel of the library's.
    channel: Option<Arc<EventChannel>>,
}

// SAFETY: librdmacm lets any thread call on an id; one has it at a time, except for the one call of `BlockingCall`.
unsafe impl Send for CmId {}

/// What the library knows of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdInfo {
    /// Names the device; `None` before the id is bound to one.
    pub device: Option<DeviceKey>,
    /// The device's port, from 1; 0 before the id is bound.
    pub port: u8,
    /// The GID that the CM connects from; zeroes before a device is known, and where it has none to say.
    pub source_gid: [u8; 16],
    /// Our own address; after a bind to port 0, with the port that was chosen.
    pub local: Option<CmAddress>,
    /// The peer's address.
    pub peer: Option<CmAddress>,
    /// The peer's GID; zeroes before a route is known, and on iWARP.
    pub destination_gid: [u8; 16],
    /// The partition, in host order.
    pub pkey: u16,
    /// The port space; `None` for one that is newer than this program.
    pub port_space: Option<PortSpace>,
    /// What a queue pair of the id is.
    pub qp_type: Option<QpType>,
    /// Names the queue pair in asynchronous events; 0: there is none.
    pub qp: usize,
    /// Names a shared receive queue of the id in asynchronous events; 0: there is none.
    pub srq: usize,
}

impl IdInfo {
    /// Our own address, if it is an IP address.
    #[must_use]
    pub fn local_ip(&self) -> Option<SocketAddr> {
        self.local?.ip()
    }

    /// The peer's address, if it is an IP address.
    #[must_use]
    pub fn peer_ip(&self) -> Option<SocketAddr> {
        self.peer?.ip()
    }
}

/// An option of an id (`rdma_set_option(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdOption<'a> {
    /// Type of service of what is set up from here on: the byte of RFC 2474. Before the address is resolved.
    TypeOfService(u8),
    /// Lets the address be bound although an older connection still holds it. Before bind.
    ReuseAddress(bool),
    /// Listens on the bound family only, like `IPV6_V6ONLY`. Before bind.
    OneFamily(bool),
    /// How long the queue pair waits for an ACK, 4.096 us x 2^n. Before connect or accept.
    AckTimeout(u8),
    /// The path records instead of resolving the route.
    Paths(&'a [PathData]),
}

impl CmId {
    /// An id in a port space (`rdma_create_id(3)`).
    ///
    /// # Errors
    /// errno.
    pub fn new(channel: &Arc<EventChannel>, port_space: PortSpace) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is live; `raw` is a place for one pointer; no context is kept with the id.
        let returned = unsafe {
            sys::rdma_create_id(channel.raw(), &raw mut raw, std::ptr::null_mut(), port_space.raw())
        };
        sys::cm_result(returned)?;
        let raw = NonNull::new(raw).ok_or(libc::EINVAL)?;
        Ok(Self { raw, licence: None, channel: Some(Arc::clone(channel)) })
    }

    /// An id that the library made: for a request, or without a channel of ours.
    ///
    /// # Safety
    /// `raw` is such an id, on `channel`, and nobody else owns it.
    pub(crate) unsafe fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: Option<&Arc<EventChannel>>) -> Self {
        Self { raw, licence: None, channel: channel.cloned() }
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Names the id in events.
    pub fn key(&self) -> IdKey {
        IdKey::of(self.raw.as_ptr())
    }

    /// What the library knows of the id now.
    pub fn info(&self) -> IdInfo {
        // SAFETY: the id is live while we are; only this thread makes the library change its fields.
        let id = unsafe { self.raw.as_ref() };
        let address = &id.route.addr;
        // SAFETY: a union of addresses, of 128 bytes that the library zeroed; a byte array has no alignment.
        let local = unsafe { (&raw const address.src_addr_union).cast::<[u8; RAW_BYTES]>().read() };
        // SAFETY: as above.
        let peer = unsafe { (&raw const address.dst_addr_union).cast::<[u8; RAW_BYTES]>().read() };
        // SAFETY: the union begins with `ibaddr.sgid`, 16 bytes that the library zeroed when it made the id; alignment 1.
        let source_gid = unsafe { (&raw const address.addr).cast::<[u8; 16]>().read() };
        // SAFETY: the union has one member, of bytes that the library zeroed when it made the id.
        let reach = unsafe { address.addr.ibaddr };
        IdInfo {
            device: NonNull::new(id.verbs).map(DeviceKey::of),
            port: id.port_num,
            source_gid,
            // SAFETY: both members of the union are plain bytes of the same size.
            destination_gid: unsafe { reach.dgid.raw },
            pkey: u16::from_be(reach.pkey),
            port_space: i32::try_from(id.ps).ok().and_then(PortSpace::parse),
            qp_type: i32::try_from(id.qp_type).ok().and_then(QpType::parse),
            local: CmAddress::parse(&local),
            peer: CmAddress::parse(&peer),
            qp: if self.licence.is_some() { id.qp.addr() } else { 0 },
            srq: id.srq.addr(),
        }
    }

    /// The device; `None` before the id is bound to one.
    ///
    /// # Errors
    /// [`DeviceError::NoDevice`] when it is being removed.
    pub fn context(&self) -> Result<Option<Arc<Context>>, DeviceError> {
        let Some(raw) = self.verbs() else { return Ok(None) };
        held::hold(raw, self.info().local_ip())?;
        Ok(Some(Context::of(raw)))
    }

    /// The context that the id is bound to, which the CM keeps open meanwhile.
    fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live while we are; only this thread makes the library change its fields.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    /// Sets an option.
    ///
    /// # Errors
    /// errno; EINVAL for paths where the link is not InfiniBand's.
    pub fn set(&self, option: IdOption<'_>) -> Result<(), i32> {
        use sys::{OPTION_IB as IB, OPTION_ID as ID};
        match option {
            IdOption::TypeOfService(mut tos) => self.set_value(ID, sys::OPTION_ID_TOS, &mut tos),
            IdOption::ReuseAddress(reuse) => {
                self.set_value(ID, sys::OPTION_ID_REUSEADDR, &mut i32::from(reuse))
            }
            IdOption::OneFamily(only) => self.set_value(ID, sys::OPTION_ID_AFONLY, &mut i32::from(only)),
            IdOption::AckTimeout(mut exponent) => {
                self.set_value(ID, sys::OPTION_ID_ACK_TIMEOUT, &mut exponent)
            }
            IdOption::Paths(paths) => {
                self.set_value(IB, sys::OPTION_IB_PATH, PathData::words(paths).as_mut_slice())
            }
        }
    }

    fn set_value<T: ?Sized>(&self, level: i32, option: i32, value: &mut T) -> Result<(), i32> {
        let bytes = size_of_val(value);
        // SAFETY: the id is live; the value is read during the call only, and has so many bytes.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), level, option, (&raw mut *value).cast(), bytes)
        })
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

    /// Makes the queue pair (`rdma_create_qp(3)`, `rdma_create_qp_ex(3)`). The CM moves it through its states from here on; it goes with the id.
    ///
    /// # Errors
    /// errno.
    pub fn create_qp(
        &mut self,
        pd: &Pd,
        sends: &Cq,
        receives: &Cq,
        request: QpRequest<'_>,
    ) -> Result<Qp, i32> {
        let (returned, inline_bytes) = if let Some(flags) = request.create_flags {
            let mut attributes = request.extended(pd, sends, receives, flags);
            // SAFETY: id, domain and queues are live and of one device; the owner of the queue pair keeps the others.
            let returned = unsafe { sys::rdma_create_qp_ex(self.raw.as_ptr(), &raw mut attributes) };
            (returned, attributes.cap.max_inline_data)
        } else {
            let mut attributes = request.attributes(sends, receives);
            // SAFETY: id, domain and queues are live and of one device; the owner of the queue pair keeps the others.
            let returned = unsafe { sys::rdma_create_qp(self.raw.as_ptr(), pd.raw(), &raw mut attributes) };
            (returned, attributes.cap.max_inline_data)
        };
        sys::cm_result(returned)?;
        let licence = Arc::clone(self.licence.insert(Arc::default()));
        // SAFETY: the call succeeded, so the id has a queue pair.
        let qp = NonNull::new(unsafe { (*self.raw.as_ptr()).qp }).ok_or(libc::EINVAL)?;
        // SAFETY: `release_qp` alone destroys it, and not while somebody has a clone of the licence.
        Ok(unsafe { Qp::new(qp, inline_bytes, licence) })
    }

    /// Destroys the queue pair in exchange for the licence to post on it: afterwards the device touches nothing that was
    /// posted there. In exchange for another id's, nothing is destroyed.
    pub fn destroy_qp(&mut self, licence: Qp) {
        drop(licence);
        self.release_qp();
    }

    /// Destroys the queue pair, unless somebody can still post on it. Returns whether there is none now.
    fn release_qp(&mut self) -> bool {
        match self.licence.take().map(Arc::try_unwrap) {
            None => true,
            Some(Ok(())) => {
                // SAFETY: it exists, and nobody posts any more: no other clone of the licence is left.
                unsafe { sys::rdma_destroy_qp(self.raw.as_ptr()) };
                true
            }
            Some(Err(held)) => {
                self.licence = Some(held);
                false
            }
        }
    }

    /// Lets the queue pair go with the id, also while somebody has its [`Qp`].
    ///
    /// # Safety
    /// That one is not used any more when the id is dropped.
    pub(crate) unsafe fn end_qp_with_id(&mut self) {
        self.licence = self.licence.take().map(|_| Arc::default());
    }

    /// Connects (`rdma_connect(3)`), or asks for a peer's queue pair. May block: siw connects its TCP socket inside.
    ///
    /// # Errors
    /// errno.
    pub fn connect(&self, params: &ConnectParams) -> Result<(), i32> {
        let mut raw = params.raw();
        // SAFETY: the id is live; the parameters point into `params`, which outlives the call.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Returns a call that another thread may make.
    ///
    /// # Safety
    /// The id is kept, and nothing else is done with it, until the call was run or dropped.
    pub unsafe fn blocking_call(&self, blocking: Blocking) -> BlockingCall {
        BlockingCall { raw: self.raw, blocking }
    }

    /// Accepts a request (`rdma_accept(3)`): ESTABLISHED follows, except for a look-up.
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

    /// Refuses a request because of its ECE options (`rdma_reject_ece(3)`), with at most 148 bytes for the other side.
    ///
    /// # Errors
    /// errno.
    pub fn reject_ece(&self, private: &[u8]) -> Result<(), i32> {
        let len = u8::try_from(private.len().min(REJECT_PRIVATE_BYTES)).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject_ece(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    /// Tells the passive side that a queue pair of our own making is ready (`rdma_establish(3)`).
    ///
    /// # Errors
    /// errno.
    pub fn establish(&self) -> Result<(), i32> {
        // SAFETY: the id is live; with a queue pair of the CM's the call fails and does nothing.
        sys::cm_result(unsafe { sys::rdma_establish(self.raw.as_ptr()) })
    }

    /// Tells the CM that data came before its last message (`rdma_notify(3)`); `EISCONN` when it knows already.
    ///
    /// # Errors
    /// errno.
    pub fn notify_established(&self) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe {
            sys::rdma_notify(self.raw.as_ptr(), sys::ibv_event_type::IBV_EVENT_COMM_EST)
        })
    }

    /// Ends a connection (`rdma_disconnect(3)`).
    ///
    /// # Errors
    /// errno; EINVAL when it has ended already.
    pub fn disconnect(&self) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// Moves the id and its pending events to another channel (`rdma_migrate_id(3)`).
    ///
    /// # Errors
    /// errno.
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<(), i32> {
        self.move_to(Some(channel))
    }

    pub(crate) fn move_to(&mut self, channel: Option<&Arc<EventChannel>>) -> Result<(), i32> {
        let to = channel.map_or(std::ptr::null_mut(), |channel| channel.raw());
        // SAFETY: both channels are live, and no event of the id is unacked: events are acked when they are read, those of
        // an id without a channel by the library.
        sys::cm_result(unsafe { sys::rdma_migrate_id(self.raw.as_ptr(), to) })?;
        self.channel = channel.cloned();
        Ok(())
    }

    /// What a queue pair of our own must be told to enter `state`, and the mask that says which fields.
    pub(crate) fn qp_attributes(&self, state: u32) -> Result<(sys::ibv_qp_attr, i32), i32> {
        let mut attributes: sys::ibv_qp_attr = sys::zeroed();
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the id is live; both places are ours.
        sys::cm_result(unsafe {
            sys::rdma_init_qp_attr(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        })?;
        Ok((attributes, mask))
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if !self.release_qp() {
            tracing::error!("an id is dropped before its queue pair's licence: both are leaked");
            // The library's id still refers to it.
            std::mem::forget(self.channel.take());
            return;
        }
        if let Some(raw) = self.verbs() {
            held::note(raw, self.info().local_ip());
        }
        // SAFETY: ours alone; its queue pair is gone and its events were acked when they were copied.
        let returned = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if let Err(errno) = sys::cm_result(returned) {
            tracing::warn!(errno, "rdma_destroy_id failed");
        }
    }
}

/// What a [`BlockingCall`] does.
#[derive(Clone, Debug)]
pub enum Blocking {
    /// Calls `rdma_resolve_route(3)` with this time-out, which waits for the answer of ibacm where that runs.
    ResolveRoute(Duration),
    /// Calls `rdma_connect(3)`: siw connects its TCP socket inside it.
    Connect(ConnectParams),
}

/// A call that may block, to be run on another thread.
#[derive(Debug)]
pub struct BlockingCall {
    raw: NonNull<sys::rdma_cm_id>,
    blocking: Blocking,
}

// SAFETY: `blocking_call`'s promise: the id lives and is left alone until this is done.
unsafe impl Send for BlockingCall {}

impl BlockingCall {
    /// Makes the call. May block.
    ///
    /// # Errors
    /// errno.
    pub fn run(self) -> Result<(), i32> {
        let id = self.raw.as_ptr();
        sys::cm_result(match self.blocking {
            Blocking::ResolveRoute(timeout) => {
                // SAFETY: the id is live by `blocking_call`'s promise.
                unsafe { sys::rdma_resolve_route(id, milliseconds(timeout)) }
            }
            Blocking::Connect(params) => {
                let mut raw = params.raw();
                // SAFETY: the id is live by `blocking_call`'s promise; `raw` points into `params`, which outlives the call.
                unsafe { sys::rdma_connect(id, &raw mut raw) }
            }
        })
    }
}

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1)
}
