//! What the control thread keeps for each id: what it is for, and when it may be destroyed.

use std::sync::Arc;

use gimmal_rdma::{
    id::{CmId, IdKey},
    verbs::{DeviceKey, Qp},
};

use crate::{
    CloseReason,
    verbs::control::{
        connect::Active,
        gate::{Fate, Shared},
        lane::{Holdings, LinkParts},
        listen::{Listening, Requested},
        table::State,
    },
};

/// An id, and which use of its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Handle {
    pub(crate) key: IdKey,
    pub(crate) serial: u64,
}

/// A connection that a port has, or will.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) fate: Arc<Fate>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) conn: crate::ConnId,
    /// Names its completion queue in asynchronous events.
    pub(crate) cq: usize,
    /// And its shared receive queue.
    pub(crate) srq: Option<usize>,
}

impl Live {
    pub(crate) fn of(parts: &LinkParts, _: &CmId, shared: &Arc<Shared>) -> Self {
        let seat = &parts.lane.holdings.seat;
        Self {
            fate: Arc::clone(&seat.fate),
            shared: Arc::clone(shared),
            conn: seat.conn,
            cq: parts.lane.holdings.share().cq.address(),
            srq: parts.lane.holdings.queue().map(|queue| queue.address()),
        }
    }

    /// Only the first cause counts.
    pub(crate) fn down(&self, reason: CloseReason) {
        let _ = self.fate.down.set(reason);
        self.shared.note(self.conn);
    }

    /// A closing port may go on.
    pub(crate) fn last_receive(&self) {
        self.fate.set_last_receive();
        self.shared.note(self.conn);
    }

    /// The port is told once, until it has looked.
    pub(crate) fn suspect(&self) {
        if self.fate.suspect() {
            self.shared.note(self.conn);
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
    /// Its attempt is over, but `rdma_connect` has not returned, or the kernel has not said how it went.
    Dying(Option<(Qp, Box<Holdings>)>),
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

    /// The device it is on; `None` before it is bound to one.
    pub(crate) fn device(&self) -> Option<DeviceKey> {
        self.id.device()
    }

    /// In the only safe order: queue pair, id, then the parts that they used, which are returned.
    pub(crate) fn destroy(mut self, parts: Option<(Qp, Box<Holdings>)>) -> Option<Box<Holdings>> {
        let (qp, holdings) = parts.unzip();
        self.id.destroy_qp(qp);
        drop(self);
        holdings
    }
}
