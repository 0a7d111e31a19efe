//! How to reach a queue pair or a group.

use super::name::{Gid, Qkey, QpNumber};
use crate::sys;

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
