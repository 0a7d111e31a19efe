//! The control side's handle on an [`AnyPort`](super::AnyPort).

use std::sync::Arc;

use super::have::{Have, SHM, Shm, TCP, Tcp, VERBS, Verbs, inner, number, prefer};
use crate::{
    ConnId, Exposed, Gate, Loan, LoanError, MemoryNode, NotNear, PoolMemory, PortError, Provider,
    SharedState, UserBytes, UserMemory,
};

/// The gates of an [`AnyPort`](super::AnyPort)'s sub-ports; see [`Gate`].
#[derive(Clone, Debug)]
pub struct AnyGate {
    pub(super) gates: Arc<Gates>,
}

#[derive(Debug)]
pub(super) struct Gates {
    pub(super) shm: Have<<Shm as Provider>::Gate>,
    pub(super) verbs: Have<<Verbs as Provider>::Gate>,
    pub(super) tcp: Have<<Tcp as Provider>::Gate>,
}

impl Gates {
    /// A configuration that no provider takes is an error at once; one that some take is not.
    pub(super) fn check(&self) -> Result<(), PortError> {
        let errors = [self.shm.as_ref().err(), self.verbs.as_ref().err(), self.tcp.as_ref().err()];
        if errors.iter().any(Option::is_none) {
            return Ok(());
        }
        errors.into_iter().flatten().fold(None, prefer).map_or(Ok(()), Err)
    }
}

/// Something of the gate that a connection belongs to.
macro_rules! of_gate {
    ($self:ident, $conn:expr, |$gate:ident, $id:ident| $then:expr) => {{
        let (gates, $id) = (&*$self.gates, inner($conn));
        match number($conn) {
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed).and_then(|$gate| $then),
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed).and_then(|$gate| $then),
            TCP => gates.tcp.as_ref().map_err(|_| LoanError::Closed).and_then(|$gate| $then),
            _ => Err(LoanError::Closed),
        }
    }};
}

/// Does something with every gate that there is.
macro_rules! for_each_gate {
    ($self:ident, |$gate:ident| $then:expr) => {
        $self.gates.shm.iter().for_each(|$gate| $then);
        $self.gates.verbs.iter().for_each(|$gate| $then);
        $self.gates.tcp.iter().for_each(|$gate| $then);
    };
}

impl Gate for AnyGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        of_gate!(self, conn, |gate, id| gate.allocate(id, bytes))
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        of_gate!(self, conn, |gate, id| gate.lend(id, bytes))
    }

    fn memory_node(&self) -> MemoryNode {
        // One thread opened them all.
        let mut node = MemoryNode::Anywhere { why: NotNear::Modelled };
        for_each_gate!(self, |gate| node = gate.memory_node());
        node
    }

    fn user_memory(&self) -> UserMemory {
        let mut sum = UserMemory::default();
        for_each_gate!(self, |gate| sum = sum.and(gate.user_memory()));
        sum
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        of_gate!(self, conn, |gate, id| gate.expose(id, bytes))
    }

    fn shared_receives(&self) -> Vec<SharedState> {
        let mut shared = Vec::new();
        for_each_gate!(self, |gate| shared.extend(gate.shared_receives()));
        shared
    }

    fn memory(&self) -> Vec<PoolMemory> {
        let mut memory = Vec::new();
        for_each_gate!(self, |gate| memory.extend(gate.memory()));
        memory
    }
}
