//! The control side's handle on a port.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use super::{exposed::Exposures, pool::Pool};
use crate::{
    ConnId, Exposed, Gate, LoanError, PoolMemory, PortConfig, UserBytes, UserMemory, Waker,
    mem::{Loan, MemoryNode, user_bytes::Copies},
    sync::lock::lock,
};

/// Where loans come from, and what new connections are made for. Clone and send it anywhere.
#[derive(Clone, Debug)]
pub struct ShmGate {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: PortConfig,
    pub(super) waker: Waker,
    /// Where what is made for the port lies.
    pub(super) node: MemoryNode,
    pub(super) pool: Arc<Pool>,
    pub(super) exposures: Arc<Exposures>,
    /// Connections that loans may be had for.
    pub(super) open: Mutex<BTreeSet<ConnId>>,
    copies: Copies,
}

impl ShmGate {
    /// Of the calling thread's port.
    pub(super) fn new(config: PortConfig, waker: Waker) -> Self {
        let node = MemoryNode::of_this_thread();
        let pool = Pool::new(config.huge_pages, config.loan_bytes_max, node);
        let (exposures, open, copies) = (Arc::default(), Mutex::default(), Copies::default());
        Self { shared: Arc::new(Shared { config, waker, node, pool, exposures, open, copies }) }
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

impl Gate for ShmGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        self.admit(conn, bytes)?;
        Ok(self.shared.pool.allocate(conn, bytes)?)
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

    fn memory(&self) -> Vec<PoolMemory> {
        self.shared.pool.memory()
    }

    fn memory_node(&self) -> MemoryNode {
        self.shared.node
    }
}
