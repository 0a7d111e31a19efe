//! One CM event, copied out and acked at once: `rdma_destroy_id` waits for unacked events.

use std::{
    ffi::c_void,
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    error::{DeviceError, system},
    id::{
        channel::EventChannel,
        cm_id::{CmId, IdKey},
    },
    sys::{self, rdma_port_space as space},
    verbs::{held, key::DeviceKey},
    wait::{Deadline, readable},
};

kinds! {
    /// What the CM reports (`rdma_cm_event_type`).
    EventKind, 21 of sys::rdma_cm_event_type, "RDMA_CM_EVENT_";
    /// The address is resolved: the id has a device.
    AddrResolved = RDMA_CM_EVENT_ADDR_RESOLVED,
    /// No device reaches the address.
    AddrError = RDMA_CM_EVENT_ADDR_ERROR,
    /// The route is resolved.
    RouteResolved = RDMA_CM_EVENT_ROUTE_RESOLVED,
    /// There is no route.
    RouteError = RDMA_CM_EVENT_ROUTE_ERROR,
    /// A peer asks to connect; the event brings a new id.
    ConnectRequest = RDMA_CM_EVENT_CONNECT_REQUEST,
    /// The peer accepted, and the queue pair is not the CM's.
    ConnectResponse = RDMA_CM_EVENT_CONNECT_RESPONSE,
    /// Connecting failed.
    ConnectError = RDMA_CM_EVENT_CONNECT_ERROR,
    /// The peer did not answer.
    Unreachable = RDMA_CM_EVENT_UNREACHABLE,
    /// The peer refused.
    Rejected = RDMA_CM_EVENT_REJECTED,
    /// The connection is established; of a look-up, the answer.
    Established = RDMA_CM_EVENT_ESTABLISHED,
    /// The connection has ended.
    Disconnected = RDMA_CM_EVENT_DISCONNECTED,
    /// The device is being removed: destroy everything on it.
    DeviceRemoval = RDMA_CM_EVENT_DEVICE_REMOVAL,
    /// A multicast group is joined.
    MulticastJoin = RDMA_CM_EVENT_MULTICAST_JOIN,
    /// A multicast group is lost, or was not joined.
    MulticastError = RDMA_CM_EVENT_MULTICAST_ERROR,
    /// The hardware address moved, for instance by a bond's failover.
    AddrChange = RDMA_CM_EVENT_ADDR_CHANGE,
    /// The queue pair has left TIMEWAIT and may be used again.
    TimewaitExit = RDMA_CM_EVENT_TIMEWAIT_EXIT,
    /// `rdma_resolve_addrinfo(3)` has an answer.
    AddrinfoResolved = RDMA_CM_EVENT_ADDRINFO_RESOLVED,
    /// `rdma_resolve_addrinfo(3)` failed.
    AddrinfoError = RDMA_CM_EVENT_ADDRINFO_ERROR,
    /// A program wrote it with [`CmEvent::write`].
    User = RDMA_CM_EVENT_USER,
    /// The library's own; programs pass it over.
    Internal = RDMA_CM_EVENT_INTERNAL,
}

/// How to reach a datagram queue pair or a group (`ah_attr`, `qp_num` and `qkey` of `rdma_ud_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramPeer {
    /// The queue pair's number; 0xFFFFFF for a group.
    pub qp_num: u32,
    /// Its queue key.
    pub qkey: u32,
    /// The GID, in network order; `None` within an InfiniBand subnet.
    pub gid: Option<[u8; 16]>,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Traffic class: the type of service on RoCE v2.
    pub traffic_class: u8,
    /// Our device's port.
    pub port: u8,
}

/// An event that needs no ack any more.
pub struct CmEvent {
    /// Whose it is; for CONNECT_REQUEST the listener's.
    pub key: IdKey,
    /// What happened.
    pub kind: EventKind,
    /// The device of its id, once that is bound to one.
    pub device: Option<DeviceKey>,
    /// 0, a negative errno, or a reject code.
    pub status: i32,
    /// The new id of a CONNECT_REQUEST.
    pub request: Option<CmId>,
    /// READs the peer may have outstanding at us, as the CM says; already swapped by it.
    pub responder_resources: u8,
    /// READs we may have outstanding at the peer, as the CM says.
    pub initiator_depth: u8,
    /// 3 bits: how often sends are tried again without an answer, as a request says it.
    pub retry_count: u8,
    /// Whether the peer says that it has hardware flow control.
    pub flow_control: bool,
    /// 3 bits: how often the peer wants our sends to be tried again when it has no receive.
    pub rnr_retry_count: u8,
    /// Whether the peer's receives come from a shared queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qp_num: u32,
    /// Which join a multicast event is about.
    pub join: usize,
    /// Of a port space of datagrams: how to reach who answered, or the group, and its queue key.
    pub(crate) way: Option<(sys::ibv_ah_attr, u32)>,
    /// What [`CmEvent::write`] was given; 0 for every other event.
    pub arg: u64,
    private: [u8; 256],
    private_bytes: usize,
}

impl fmt::Debug for CmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {:?}, status {}, {} bytes of private data, depths {}/{}",
            self.kind.name(),
            self.key,
            self.status,
            self.private_bytes,
            self.responder_resources,
            self.initiator_depth
        )
    }
}

impl CmEvent {
    /// The next event, if one waits; already acked.
    ///
    /// # Errors
    /// errno, when the channel itself is broken.
    pub fn next(channel: &Arc<EventChannel>) -> Result<Option<Self>, i32> {
        // SAFETY: `take` lends an event of this channel before its ack, and once.
        let taken = channel.take(|event| unsafe { Self::copy(event, Some(channel)) });
        if let Ok(Some(Self { kind: EventKind::DeviceRemoval, device: Some(device), .. })) = &taken {
            held::removed(*device);
        }
        taken
    }

    /// The next event, waiting for it until the deadline; `None` then.
    pub(crate) fn before(
        channel: &Arc<EventChannel>,
        deadline: &Deadline,
    ) -> Result<Option<Self>, DeviceError> {
        loop {
            let event = Self::next(channel).map_err(system("rdma_get_cm_event"))?;
            if event.is_some() || deadline.has_passed() {
                return Ok(event);
            }
            readable(&[channel.fd()], deadline).map_err(system("poll"))?;
        }
    }

    /// Copies an event, and takes over the id of a request when it is given the channel.
    ///
    /// # Safety
    /// `event` is of `channel`, is not acked before we return, and is copied once with it.
    pub(crate) unsafe fn copy(event: &sys::rdma_cm_event, channel: Option<&Arc<EventChannel>>) -> Self {
        let kind = EventKind::from(event.event);
        let is_request = kind == EventKind::ConnectRequest;
        let id = NonNull::new(event.id);
        let mut taken = Self {
            key: IdKey::of(if is_request { event.listen_id } else { event.id }),
            kind,
            // SAFETY: an event's id is live until the ack.
            device: id.and_then(|id| NonNull::new(unsafe { (*id.as_ptr()).verbs })).map(DeviceKey::of),
            status: event.status,
            request: None,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            flow_control: false,
            rnr_retry_count: 0,
            srq: false,
            qp_num: 0,
            join: 0,
            way: None,
            arg: 0,
            private: [0; 256],
            private_bytes: 0,
        };
        if kind == EventKind::User {
            // SAFETY: such an event's union holds one number, and the library wrote all of it; alignment 8.
            taken.arg = unsafe { (&raw const event.param).cast::<u64>().read() };
            return taken;
        }
        // SAFETY: an event's id is live until the ack; its port space never changes.
        let port_space = id.map(|id| unsafe { (*id.as_ptr()).ps });
        let (data, bytes) = if matches!(port_space, Some(space::RDMA_PS_UDP | space::RDMA_PS_IPOIB)) {
            // SAFETY: in these port spaces the union holds `ud` whenever it holds anything; the library zeroed it first.
            taken.take_ud(unsafe { &event.param.ud })
        } else {
            // SAFETY: on a connected port space the union holds `conn` or nothing; the library zeroed it first.
            taken.take_conn(unsafe { &event.param.conn })
        };
        if !data.is_null() {
            taken.private_bytes = usize::from(bytes);
            // SAFETY: the event owns so many bytes there until the ack.
            let data = unsafe { std::slice::from_raw_parts(data.cast(), taken.private_bytes) };
            taken.private[..data.len()].copy_from_slice(data);
        }
        if is_request && channel.is_some() {
            // SAFETY: the library made this id for the request, and nobody owns it yet.
            taken.request = id.map(|id| unsafe { CmId::adopt(id, channel) });
        }
        taken
    }

    /// Takes what a connection's event says; returns where its private data is.
    fn take_conn(&mut self, conn: &sys::rdma_conn_param) -> (*const c_void, u8) {
        use EventKind as E;
        if !matches!(self.kind, E::ConnectRequest | E::ConnectResponse | E::Rejected | E::Established) {
            return (ptr::null(), 0);
        }
        self.responder_resources = conn.responder_resources;
        self.initiator_depth = conn.initiator_depth;
        self.retry_count = conn.retry_count & 7;
        self.flow_control = conn.flow_control != 0;
        self.rnr_retry_count = conn.rnr_retry_count & 7;
        self.srq = conn.srq != 0;
        self.qp_num = conn.qp_num;
        (conn.private_data, conn.private_data_len)
    }

    /// Takes what a datagram end point's event says; returns where its private data is.
    fn take_ud(&mut self, ud: &sys::rdma_ud_param) -> (*const c_void, u8) {
        if matches!(self.kind, EventKind::Established | EventKind::MulticastJoin) {
            self.qp_num = ud.qp_num;
            self.way = Some((ud.ah_attr, ud.qkey));
        }
        if matches!(self.kind, EventKind::MulticastJoin | EventKind::MulticastError) {
            // There the pointer is the context of the join and not data.
            self.join = ud.private_data.addr();
            return (ptr::null(), 0);
        }
        (ud.private_data, ud.private_data_len)
    }

    /// Of a port space of datagrams: who answered, or the group that was joined.
    #[must_use]
    pub fn datagram_peer(&self) -> Option<DatagramPeer> {
        let (address, qkey) = self.way?;
        // SAFETY: both members of the union are plain bytes of the same size.
        let gid = unsafe { address.grh.dgid.raw };
        Some(DatagramPeer {
            qp_num: self.qp_num,
            qkey,
            gid: (address.is_global != 0).then_some(gid),
            lid: address.dlid,
            service_level: address.sl,
            traffic_class: address.grh.traffic_class,
            port: address.port_num,
        })
    }

    /// Writes an event for `id` into its own channel (`rdma_write_cm_event(3)`): how a thread wakes another one that
    /// waits there. `kind` is [`EventKind::User`], or what the manual page allows beside it.
    ///
    /// # Errors
    /// errno; EOPNOTSUPP when librdmacm is older than 2025 and lacks the function.
    pub fn write(id: &CmId, kind: EventKind, status: i32, arg: u64) -> Result<(), i32> {
        let write = sys::newer().write_cm_event.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the id is live, and the rest are numbers.
        sys::cm_result(unsafe { write(id.raw(), kind.raw(), status, arg) })
    }

    /// What the peer sent along; the CM pads it with zeroes and may hide its length.
    pub fn private(&self) -> &[u8] {
        &self.private[..self.private_bytes]
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    /// The library's name of each event that it knows is ours with its prefix (`rdma_event_str(3)`).
    #[test]
    fn every_name_is_the_librarys() {
        if crate::error::require_libraries().is_err() {
            return;
        }
        for kind in EventKind::ALL {
            // SAFETY: takes a number, and returns a constant string.
            let name = unsafe { sys::rdma_event_str(kind.raw()) };
            // SAFETY: such a string ends with a NUL.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            let is_newer = kind.raw() > EventKind::TimewaitExit.raw();
            assert!(name == format!("RDMA_CM_EVENT_{}", kind.name()) || is_newer, "{name} and {kind:?}");
        }
    }
}
