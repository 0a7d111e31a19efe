//! The control side's handle on a port.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use super::{allocate::Memory, exposed::Exposures};
use crate::{
    ConnId, Exposed, Gate, LoanError, PortConfig, UserBytes, UserMemory, Waker,
    mem::{Loan, MemoryNode, user_bytes::Copies},
    sync::lock::lock,
};

/// Where loans come from, and what new connections are made for. Clone and send it anywhere.
#[derive(Clone, Debug)]
pub struct TcpGate {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: PortConfig,
    pub(super) waker: Waker,
    /// Where what is made for the port lies.
    pub(super) node: MemoryNode,
    pub(super) memory: Arc<Memory>,
    pub(super) exposures: Arc<Exposures>,
    /// Connections that loans may be had for.
    pub(super) open: Mutex<BTreeSet<ConnId>>,
    copies: Copies,
}

impl TcpGate {
    /// Of the calling thread's port.
    pub(super) fn new(config: PortConfig, waker: Waker) -> Self {
        let node = MemoryNode::of_this_thread();
        let (memory, exposures, open) = (Arc::default(), Arc::default(), Mutex::default());
        let copies = Copies::default();
        Self { shared: Arc::new(Shared { config, waker, node, memory, exposures, open, copies }) }
    }

    /// Whether `conn` may have memory of `bytes`.
    fn admit(&self, conn: ConnId, bytes: usize) -> Result<(), LoanError> {
        if !lock(&self.shared.open).contains(&conn) {
            return Err(LoanError::Closed);
        }
        let (bytes, limit) = (bytes as u64, self.shared.config.bulk_bytes_max);
        if bytes > limit { Err(LoanError::TooLarge { bytes, limit }) } else { Ok(()) }
    }
}

impl Gate for TcpGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        self.admit(conn, bytes)?;
        Ok(self.shared.memory.allocate(bytes)?)
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        Ok(self.shared.copies.lend(self.allocate(conn, bytes.len())?, bytes))
    }

    fn user_memory(&self) -> UserMemory {
        self.shared.copies.counters()
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        self.admit(conn, bytes)?;
        Ok(self.shared.node.place(|| self.shared.exposures.expose(bytes))?)
    }

    fn memory_node(&self) -> MemoryNode {
        self.shared.node
    }
}
