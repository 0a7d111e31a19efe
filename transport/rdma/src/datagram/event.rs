//! What happens to an end point: CM events of `RDMA_PS_UDP`, copied out and acked at once, because `rdma_destroy_id` waits
//! for unacked ones; and what its owner is told of them.

use std::{net::IpAddr, ptr::NonNull, sync::Arc};

use super::{
    id::UdId,
    name::{Qkey, QpNumber},
    request::LookUpRequest,
    way::Way,
};
use crate::{
    id::{channel::EventChannel, cm_id::IdKey, event::EventKind},
    sys,
};

/// What happened to an end point beside its messages.
#[derive(Debug)]
#[non_exhaustive]
pub enum DatagramEvent {
    /// Somebody looks up our queue pair: answer with [`Datagram::accept`](super::Datagram::accept) or [`Datagram::reject`](super::Datagram::reject).
    Request(LookUpRequest),
    /// A group that was joined is lost (`RDMA_CM_EVENT_MULTICAST_ERROR`) and was left: join it again, or give up.
    GroupLost {
        /// The group.
        group: IpAddr,
        /// A negative errno.
        status: i32,
    },
    /// The hardware address moved, for instance by a bond's failover. A hint: look peers up again if they fall silent.
    AddressChanged,
    /// The device goes away, and waits for us: drop the end point and its peers. Everything else fails from here on.
    DeviceRemoved,
}

/// An event that needs no ack any more.
pub(super) struct UdEvent {
    /// Whose it is; for CONNECT_REQUEST the listener's.
    pub(super) key: IdKey,
    pub(super) kind: EventKind,
    /// 0, a negative errno, or a SIDR status.
    pub(super) status: i32,
    /// The new id of a CONNECT_REQUEST.
    pub(super) request: Option<UdId>,
    /// Which join a multicast event is about.
    pub(super) join: usize,
    /// For ESTABLISHED and MULTICAST_JOIN.
    pub(super) way: Option<Way>,
    private: [u8; 256],
    private_bytes: usize,
}

impl UdEvent {
    /// The next event, if one waits.
    ///
    /// # Errors
    /// errno, when the channel itself is broken.
    pub(super) fn next(channel: &Arc<EventChannel>) -> Result<Option<Self>, i32> {
        // SAFETY: `take` lends an event of this channel before its ack, and once; all ids on it are of `RDMA_PS_UDP`.
        channel.take(|event| unsafe { Self::copy(event, channel) })
    }

    /// Copies an event, and takes over the id of a look-up.
    ///
    /// # Safety
    /// `held` is of `channel`, which has ids of `RDMA_PS_UDP` only, is not acked before we return, and is copied once.
    unsafe fn copy(held: &sys::rdma_cm_event, channel: &Arc<EventChannel>) -> Self {
        let kind = EventKind::from(held.event);
        let is_request = kind == EventKind::ConnectRequest;
        let mut taken = Self {
            key: IdKey::of(if is_request { held.listen_id } else { held.id }),
            kind,
            status: held.status,
            request: None,
            join: 0,
            way: None,
            private: [0; 256],
            private_bytes: 0,
        };
        if is_request {
            let id = NonNull::new(held.id);
            // SAFETY: the library made this id for the request, and nobody owns it yet.
            taken.request = id.map(|id| unsafe { UdId::adopt(id, channel) });
        }
        // SAFETY: on this port space the union holds `ud` whenever it holds anything; the library zeroed it first.
        let ud = unsafe { held.param.ud };
        match kind {
            // There the pointer is the context of the join and not data.
            EventKind::MulticastJoin | EventKind::MulticastError => taken.join = ud.private_data.addr(),
            _ if !ud.private_data.is_null() => {
                let bytes = usize::from(ud.private_data_len);
                // SAFETY: the event owns `private_data_len` bytes there until the ack.
                let data = unsafe { std::slice::from_raw_parts(ud.private_data.cast::<u8>(), bytes) };
                taken.private[..bytes].copy_from_slice(data);
                taken.private_bytes = bytes;
            }
            _ => {}
        }
        if matches!(kind, EventKind::Established | EventKind::MulticastJoin) {
            let qp = QpNumber::new(ud.qp_num);
            taken.way = Some(Way { attributes: ud.ah_attr, qp, qkey: Qkey(ud.qkey) });
        }
        taken
    }

    /// What the other side sent along; the CM pads it with zeroes.
    pub(super) fn private(&self) -> &[u8] {
        &self.private[..self.private_bytes]
    }
}
