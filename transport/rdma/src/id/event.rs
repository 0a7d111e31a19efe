//! One CM event, copied out and acked at once: `rdma_destroy_id` waits for unacked events.

use std::{fmt, ptr::NonNull, sync::Arc};

use crate::{
    id::{
        channel::EventChannel,
        cm_id::{CmId, IdKey},
    },
    sys::{self, rdma_cm_event_type as raw},
};

/// `rdma_cm_event_type`, open ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// The address is resolved: the id has a device.
    AddrResolved,
    /// No device reaches the address.
    AddrError,
    /// The route is resolved.
    RouteResolved,
    /// There is no route.
    RouteError,
    /// A peer asks to connect; the event brings a new id.
    ConnectRequest,
    /// The peer accepted, and the queue pair is not the CM's.
    ConnectResponse,
    /// Connecting failed.
    ConnectError,
    /// The peer did not answer.
    Unreachable,
    /// The peer refused.
    Rejected,
    /// The connection is established; of a look-up, the answer.
    Established,
    /// The connection has ended.
    Disconnected,
    /// The device is being removed: destroy everything on it.
    DeviceRemoval,
    /// A multicast group is joined.
    MulticastJoin,
    /// A multicast group is lost, or was not joined.
    MulticastError,
    /// The hardware address moved, for instance by a bond's failover.
    AddrChange,
    /// The queue pair has left TIMEWAIT and may be used again.
    TimewaitExit,
    /// Newer than this program.
    Other(u32),
}

impl EventKind {
    /// Every kind this program knows, and one that it does not.
    pub const ALL: [Self; 17] = [
        Self::AddrResolved,
        Self::AddrError,
        Self::RouteResolved,
        Self::RouteError,
        Self::ConnectRequest,
        Self::ConnectResponse,
        Self::ConnectError,
        Self::Unreachable,
        Self::Rejected,
        Self::Established,
        Self::Disconnected,
        Self::DeviceRemoval,
        Self::MulticastJoin,
        Self::MulticastError,
        Self::AddrChange,
        Self::TimewaitExit,
        Self::Other(99),
    ];

    /// As `rdma_event_str` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::AddrError => "ADDR_ERROR",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::RouteError => "ROUTE_ERROR",
            Self::ConnectRequest => "CONNECT_REQUEST",
            Self::ConnectResponse => "CONNECT_RESPONSE",
            Self::ConnectError => "CONNECT_ERROR",
            Self::Unreachable => "UNREACHABLE",
            Self::Rejected => "REJECTED",
            Self::Established => "ESTABLISHED",
            Self::Disconnected => "DISCONNECTED",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
            Self::MulticastJoin => "MULTICAST_JOIN",
            Self::MulticastError => "MULTICAST_ERROR",
            Self::AddrChange => "ADDR_CHANGE",
            Self::TimewaitExit => "TIMEWAIT_EXIT",
            Self::Other(_) => "UNKNOWN",
        }
    }
}

impl From<u32> for EventKind {
    fn from(value: u32) -> Self {
        match value {
            raw::RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddrResolved,
            raw::RDMA_CM_EVENT_ADDR_ERROR => Self::AddrError,
            raw::RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            raw::RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError,
            raw::RDMA_CM_EVENT_CONNECT_REQUEST => Self::ConnectRequest,
            raw::RDMA_CM_EVENT_CONNECT_RESPONSE => Self::ConnectResponse,
            raw::RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError,
            raw::RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable,
            raw::RDMA_CM_EVENT_REJECTED => Self::Rejected,
            raw::RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            raw::RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            raw::RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            raw::RDMA_CM_EVENT_MULTICAST_JOIN => Self::MulticastJoin,
            raw::RDMA_CM_EVENT_MULTICAST_ERROR => Self::MulticastError,
            raw::RDMA_CM_EVENT_ADDR_CHANGE => Self::AddrChange,
            raw::RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            other => Self::Other(other),
        }
    }
}

/// An event that needs no ack any more.
pub struct CmEvent {
    /// Whose it is; for CONNECT_REQUEST the listener's.
    pub key: IdKey,
    /// What happened.
    pub kind: EventKind,
    /// 0, a negative errno, or a reject code.
    pub status: i32,
    /// The new id of a CONNECT_REQUEST.
    pub request: Option<CmId>,
    /// READs the peer may have outstanding at us, as the CM says; already swapped by it.
    pub responder_resources: u8,
    /// READs we may have outstanding at the peer, as the CM says.
    pub initiator_depth: u8,
    /// Whether the peer says that it has hardware flow control.
    pub flow_control: bool,
    /// 3 bits: how often the peer wants our sends to be tried again when it has no receive.
    pub rnr_retry_count: u8,
    /// Whether the peer's receives come from a shared queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qp_num: u32,
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
        channel.take(|event| unsafe { Self::copy(event, channel) })
    }

    /// Copies an event, and takes over the id of a request.
    ///
    /// # Safety
    /// `held` is of `channel`, is not acked before we return, and is copied once.
    unsafe fn copy(held: &sys::rdma_cm_event, channel: &Arc<EventChannel>) -> Self {
        let kind = EventKind::from(held.event);
        let is_request = kind == EventKind::ConnectRequest;
        let mut taken = Self {
            key: IdKey::of(if is_request { held.listen_id } else { held.id }),
            kind,
            status: held.status,
            request: None,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            rnr_retry_count: 0,
            srq: false,
            qp_num: 0,
            private: [0; 256],
            private_bytes: 0,
        };
        if is_request {
            let id = NonNull::new(held.id);
            // SAFETY: the library made this id for the request, and nobody owns it yet.
            taken.request = id.map(|id| unsafe { CmId::adopt(id, channel) });
        }
        if matches!(
            kind,
            EventKind::ConnectRequest
                | EventKind::ConnectResponse
                | EventKind::Rejected
                | EventKind::Established
        ) {
            // SAFETY: for these kinds on a connected port space the union holds `conn`; the library zeroed it first.
            let conn = unsafe { held.param.conn };
            taken.responder_resources = conn.responder_resources;
            taken.initiator_depth = conn.initiator_depth;
            taken.flow_control = conn.flow_control != 0;
            taken.rnr_retry_count = conn.rnr_retry_count & 7;
            taken.srq = conn.srq != 0;
            taken.qp_num = conn.qp_num;
            if !conn.private_data.is_null() {
                let bytes = usize::from(conn.private_data_len);
                // SAFETY: the event owns `private_data_len` bytes there until the ack.
                let data = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), bytes) };
                taken.private[..bytes].copy_from_slice(data);
                taken.private_bytes = bytes;
            }
        }
        taken
    }

    /// What the peer sent along; the CM pads it with zeroes and may hide its length.
    pub fn private(&self) -> &[u8] {
        &self.private[..self.private_bytes]
    }
}
