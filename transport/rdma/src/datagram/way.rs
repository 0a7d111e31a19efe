//! How to reach a queue pair or a group.

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
