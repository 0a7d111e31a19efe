//! How to reach a queue pair or a group.

use std::net::SocketAddr;

use super::name::{Qkey, QpNumber};
use crate::{id::event::CmEvent, sys};

/// How to reach a queue pair or a group.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) attributes: sys::ibv_ah_attr,
    pub(super) qp: QpNumber,
    pub(super) qkey: Qkey,
}

impl Way {
    /// What an answer or a join says.
    pub(super) fn of(event: &CmEvent) -> Option<Self> {
        let (attributes, qkey) = event.way?;
        Some(Self { attributes, qp: QpNumber::new(event.qp_num), qkey: Qkey(qkey) })
    }
}

/// Gives `address` the interface of `like`: a link-local address is nothing without one.
pub(super) fn with_scope(mut address: SocketAddr, like: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(v6), SocketAddr::V6(like)) = (&mut address, like) {
        v6.set_scope_id(like.scope_id());
    }
    address
}
