//! The control side's handle on an [`AnyPort`](super::AnyPort).

use std::sync::Arc;

#[cfg(feature = "shm")]
use super::have::SHM;
use super::have::{Have, inner, number};
#[cfg(feature = "verbs")]
use super::have::{VERBS, prefer};
#[cfg(feature = "shm")]
use crate::shm::ShmGate;
#[cfg(feature = "verbs")]
use crate::verbs::VerbsGate;
use crate::{
    ConnId, Exposed, Gate, Loan, LoanError, MemoryNode, NotNear, PoolMemory, PortError, SharedState,
    UserBytes, UserMemory,
};

/// A configuration that no provider takes is an error at once; one that some take is not.
pub(super) fn some_opened(gates: &Gates) -> Result<(), PortError> {
    let mut first = None;
    #[cfg(feature = "shm")]
    match &gates.shm {
        Ok(_) => return Ok(()),
        Err(error) => first = first.or_else(|| Some(error.clone())),
    }
    #[cfg(feature = "verbs")]
    match &gates.verbs {
        Ok(_) => return Ok(()),
        Err(error) => first = prefer(first, error),
    }
    first.map_or(Ok(()), Err)
}

/// The gates of an [`AnyPort`](super::AnyPort)'s sub-ports; see [`Gate`].
#[derive(Clone, Debug)]
pub struct AnyGate {
    pub(super) gates: Arc<Gates>,
}

#[derive(Debug)]
pub(super) struct Gates {
    #[cfg(feature = "shm")]
    pub(super) shm: Have<ShmGate>,
    #[cfg(feature = "verbs")]
    pub(super) verbs: Have<VerbsGate>,
}

impl Gate for AnyGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        let (gates, id) = (&self.gates, inner(conn));
        match number(conn) {
            #[cfg(feature = "shm")]
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed)?.allocate(id, bytes),
            #[cfg(feature = "verbs")]
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed)?.allocate(id, bytes),
            _ => Err(LoanError::Closed),
        }
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        let (gates, id) = (&self.gates, inner(conn));
        match number(conn) {
            #[cfg(feature = "shm")]
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed)?.lend(id, bytes),
            #[cfg(feature = "verbs")]
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed)?.lend(id, bytes),
            _ => Err(LoanError::Closed),
        }
    }

    fn memory_node(&self) -> MemoryNode {
        // One thread opened them all.
        #[cfg(feature = "shm")]
        if let Ok(gate) = &self.gates.shm {
            return gate.memory_node();
        }
        #[cfg(feature = "verbs")]
        if let Ok(gate) = &self.gates.verbs {
            return gate.memory_node();
        }
        MemoryNode::Anywhere { why: NotNear::Modelled }
    }

    fn user_memory(&self) -> UserMemory {
        let mut sum = UserMemory::default();
        #[cfg(feature = "shm")]
        self.gates.shm.iter().for_each(|gate| sum = sum.and(gate.user_memory()));
        #[cfg(feature = "verbs")]
        self.gates.verbs.iter().for_each(|gate| sum = sum.and(gate.user_memory()));
        sum
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        let (gates, id) = (&self.gates, inner(conn));
        match number(conn) {
            #[cfg(feature = "shm")]
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed)?.expose(id, bytes),
            #[cfg(feature = "verbs")]
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed)?.expose(id, bytes),
            _ => Err(LoanError::Closed),
        }
    }

    fn shared_receives(&self) -> Vec<SharedState> {
        #[allow(unused_mut, reason = "verbs alone has any")]
        let mut shared = Vec::new();
        #[cfg(feature = "verbs")]
        shared.extend(self.gates.verbs.iter().flat_map(Gate::shared_receives));
        shared
    }

    fn memory(&self) -> Vec<PoolMemory> {
        #[allow(unused_mut, reason = "without a provider there is none")]
        let mut memory = Vec::new();
        #[cfg(feature = "shm")]
        memory.extend(self.gates.shm.iter().flat_map(Gate::memory));
        #[cfg(feature = "verbs")]
        memory.extend(self.gates.verbs.iter().flat_map(Gate::memory));
        memory
    }
}
