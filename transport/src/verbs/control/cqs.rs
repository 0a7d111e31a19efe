//! The completion queues of a port on one device, and what each has room for.
//!
//! ```text
//!  entries of a queue ≥ sends of the connections on it
//!                     + their own receives
//!                     + slots of the shared receives that complete on it, for any of them
//! ```
//! Work is counted from before it can be posted, because a full queue drops completions. One connection can use up all
//! slots that it shares, those of others too, so shared receives belong to one completion queue and are counted whole.
//! A slot completes once until it is posted again, which is after its completion was taken.

use std::sync::{Arc, Mutex};

use gimmal_rdma::{DeviceError, verbs::Cq};

use crate::{
    PortError,
    sync::lock::lock,
    verbs::{control::cq_room::CqRoom, srq::queue::SharedQueue},
};

/// One completion queue, and the shared receives that complete on it.
#[derive(Debug)]
pub(crate) struct PortCq {
    pub(crate) cq: Arc<Cq>,
    pub(crate) room: Arc<CqRoom>,
    /// Made with the first connection that shares its receives.
    pub(crate) shared: Option<Arc<SharedQueue>>,
    /// It reported CQ_ERR: nobody else is placed on it.
    is_broken: bool,
}

impl PortCq {
    fn new(cq: Arc<Cq>) -> Self {
        let room = CqRoom::new(cq.entries());
        Self { cq, room, shared: None, is_broken: false }
    }
}

/// The completion queues of a port on one device. More are made when those there are have no room.
#[derive(Debug)]
pub(crate) struct PortCqs(Mutex<Vec<PortCq>>);

impl PortCqs {
    pub(crate) fn new(first: Arc<Cq>) -> Self {
        Self(Mutex::new(vec![PortCq::new(first)]))
    }

    /// Places a connection on the first queue that has room for it, or on one that `make` makes.
    ///
    /// # Errors
    /// [`PortError::Limit`] when not even a new queue has the room; what `make` and `place` say otherwise.
    pub(crate) fn place<R>(
        &self,
        make: impl FnOnce() -> Result<Arc<Cq>, DeviceError>,
        mut place: impl FnMut(&mut PortCq) -> Result<R, PortError>,
    ) -> Result<R, PortError> {
        let mut cqs = lock(&self.0);
        for cq in cqs.iter_mut().filter(|cq| !cq.is_broken) {
            match place(cq) {
                Err(PortError::Limit { .. }) => {}
                placed => return placed,
            }
        }
        let mut new = PortCq::new(make()?);
        let placed = place(&mut new)?;
        cqs.push(new);
        Ok(placed)
    }

    /// The queue at `address` reported CQ_ERR. Connections on it keep what they hold.
    pub(crate) fn broke(&self, address: usize) {
        for cq in lock(&self.0).iter_mut().filter(|cq| cq.cq.address() == address) {
            cq.is_broken = true;
        }
    }

    /// Returns the shared receives of all queues.
    pub(crate) fn shared(&self) -> Vec<Arc<SharedQueue>> {
        lock(&self.0).iter().filter_map(|cq| cq.shared.clone()).collect()
    }
}
