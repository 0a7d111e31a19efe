//! The control thread's record of an id: its role, and when it may be destroyed.

use std::sync::{Arc, Weak};

use gimmal_rdma::id::{CmEvent, CmId};

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

/// A connection that a port has adopted or will adopt.
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
            cq: lane.holdings.cq.address(),
            queue: lane.holdings.queue().map(Arc::downgrade).unwrap_or_default(),
        }
    }
}

/// The purpose of an id.
#[derive(Debug)]
pub(crate) enum Role {
    Listener(Listening),
    Active(Active),
    Requested(Requested),
    Live(Live),
    /// To be destroyed when its helper thread has returned and the kernel has reported how the attempt went.
    Dying(Option<Lane>),
}

impl Role {
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Listener(_) => State::Listening,
            Self::Active(active) => active.state(),
            Self::Requested(_) => State::Requested,
            Self::Live(_) => State::Live,
            Self::Dying(_) => State::Dying,
        }
    }

    /// Returns the attempt, if it was one, and the lane that is destroyed with the id.
    pub(crate) fn split(self) -> (Option<Box<Attempt>>, Option<Lane>) {
        match self {
            Self::Active(active) => {
                let (attempt, lane) = active.split();
                (Some(attempt), lane)
            }
            Self::Dying(lane) => (None, lane),
            Self::Listener(_) | Self::Requested(_) | Self::Live(_) => (None, None),
        }
    }

    /// Returns what names the completion queue of an attempt or a connection in asynchronous events.
    pub(crate) fn cq(&self) -> Option<usize> {
        match self {
            Self::Active(active) => Some(active.lane()?.holdings.cq.address()),
            Self::Live(live) => Some(live.cq),
            _ => None,
        }
    }

    /// Returns the shared receive queue of an attempt or a connection.
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
    /// A helper thread runs a call on it. Nobody else uses the id meanwhile.
    pub(crate) busy: bool,
    /// What the CM reported while it was busy.
    pub(crate) held: Vec<CmEvent>,
    /// Connecting over iWARP, and no event has reported the outcome. Until one does, destroying the id would block this
    /// thread in the kernel until the peer answers (`iw_destroy_cm_id`).
    pub(crate) unanswered: bool,
    pub(crate) role: Role,
}

impl Entry {
    pub(crate) fn handle(&self) -> Handle {
        Handle { key: self.id.key(), serial: self.serial }
    }

    /// Destroys the queue pair, then the id: the only safe order. Returns what they used.
    pub(crate) fn destroy(mut self, lane: Option<Lane>) -> Option<Holdings> {
        lane.map(|lane| lane.destroy(&mut self.id))
    }
}
