//! One CM event of `RDMA_PS_UDP`, copied out and acked at once: `rdma_destroy_id` waits for unacked events.

use std::{ptr::NonNull, sync::Arc};

use super::{
    id::UdId,
    name::{Gid, Qkey, QpNumber},
};
use crate::{
    id::{channel::EventChannel, cm_id::IdKey, event::EventKind},
    sys,
};

/// How to reach a queue pair or a group.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) attributes: sys::ibv_ah_attr,
    pub(super) qp: QpNumber,
    pub(super) qkey: Qkey,
}

impl Way {
    /// Where it leads.
    pub(super) fn gid(&self) -> Gid {
        gid_of(&self.attributes.grh.dgid)
    }
}

pub(super) fn gid_of(gid: &sys::ibv_gid) -> Gid {
    // SAFETY: both members are 16 bytes of integers, so reading either is defined.
    Gid(unsafe { gid.raw })
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
