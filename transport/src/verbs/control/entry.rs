//! What the control thread keeps for each id: what it is for, and when it may be destroyed.

use std::sync::{Arc, Weak};

use gimmal_rdma::id::CmId;

use crate::verbs::{
    control::{
        attempt::{Active, Attempt},
        lane::{Handle, Holdings, Lane},
        request::{Listening, Requested},
        shared::Fate,
        table::State,
    },
    srq::queue::SharedQueue,
};

/// A connection that a port has, or will.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) fate: Arc<Fate>,
    /// Names its completion queue in asynchronous events.
    pub(crate) cq: usize,
    pub(crate) queue: Weak<SharedQueue>,
}

impl Live {
    pub(crate) fn of(lane: &Lane) -> Self {
        Self {
            fate: Arc::clone(&lane.holdings.seat.0),
            cq: lane.holdings.share.cq.address(),
            queue: lane.holdings.queue().map(Arc::downgrade).unwrap_or_default(),
        }
    }
}

/// What an id is for.
#[derive(Debug)]
pub(crate) enum Role {
    Listener(Listening),
    Active(Active),
    Requested(Requested),
    Live(Live),
    /// Bound to a device to hear of its removal, and nothing else.
    Sentinel,
    /// Nobody wants it. Perhaps `rdma_connect` has not returned, or the kernel has not said how it went.
    Dying(Option<Lane>),
}

impl Role {
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Listener(_) | Self::Sentinel => State::Listening,
            Self::Active(active) => active.state(),
            Self::Requested(_) => State::Requested,
            Self::Live(_) => State::Live,
            Self::Dying(_) => State::Dying,
        }
    }

    /// The attempt, if it was one, and what the destruction of the id needs.
    pub(crate) fn split(self) -> (Option<Box<Attempt>>, Option<Lane>) {
        match self {
            Self::Active(active) => {
                let (attempt, lane) = active.split();
                (Some(attempt), lane)
            }
            Self::Dying(lane) => (None, lane),
            Self::Listener(_) | Self::Requested(_) | Self::Live(_) | Self::Sentinel => (None, None),
        }
    }

    /// The shared receive queue of an attempt or a connection.
    pub(crate) fn queue(&self) -> Option<Arc<SharedQueue>> {
        match self {
            Self::Active(active) => active.lane()?.holdings.queue().cloned(),
            Self::Live(live) => live.queue.upgrade(),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: CmId,
    pub(crate) serial: u64,
    /// A helper thread is inside `rdma_connect` with it.
    pub(crate) busy: bool,
    /// iWARP: connecting, and no event said how it went. Until one does, destroying the id would wait in the kernel
    /// for the peer's answer (`iw_destroy_cm_id`), and everybody with it.
    pub(crate) unanswered: bool,
    pub(crate) role: Role,
}

impl Entry {
    pub(crate) fn handle(&self) -> Handle {
        Handle { key: self.id.key(), serial: self.serial }
    }

    /// In the only safe order: queue pair, id, then the parts that they used, which are returned.
    pub(crate) fn destroy(mut self, lane: Option<Lane>) -> Option<Holdings> {
        let (qp, holdings) = lane.map(|lane| (lane.qp, lane.holdings)).unzip();
        self.id.destroy_qp(qp);
        drop(self);
        holdings
    }
}
