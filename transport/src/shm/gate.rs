//! The control side's handle on a port.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{exposed::Exposures, pool::Pool};
use crate::{
    ConnId, Exposed, Gate, LoanError, PoolMemory, PortConfig, UserBytes, UserMemory, Waker,
    mem::{Loan, MemoryNode, user_bytes::Copies},
};

/// Where loans come from, and what new connections are made for. Clone and send it anywhere.
#[derive(Clone, Debug)]
pub struct ShmGate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: PortConfig,
    waker: Waker,
    node: MemoryNode,
    pool: Arc<Pool>,
    exposures: Arc<Exposures>,
    open: Mutex<Open>,
    copies: Copies,
}

/// Connections that loans may be had for: of each slot the generation, while it is open.
#[derive(Debug, Default)]
pub(super) struct Open(Vec<Option<u32>>);

impl Open {
    pub(super) fn insert(&mut self, conn: ConnId) {
        let index = conn.index() as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(conn.generation());
    }

    pub(super) fn remove(&mut self, conn: ConnId) {
        if self.contains(conn) {
            self.0[conn.index() as usize] = None;
        }
    }

    fn contains(&self, conn: ConnId) -> bool {
        self.0.get(conn.index() as usize) == Some(&Some(conn.generation()))
    }
}

impl ShmGate {
    /// Of the calling thread's port.
    pub(super) fn new(config: PortConfig, waker: Waker) -> Self {
        let node = MemoryNode::of_this_thread();
        let pool = Pool::new(config.huge_pages, node);
        let (exposures, open, copies) = (Arc::default(), Mutex::default(), Copies::default());
        Self { shared: Arc::new(Shared { config, waker, node, pool, exposures, open, copies }) }
    }

    pub(super) fn config(&self) -> &PortConfig {
        &self.shared.config
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    /// Where what is made for the port lies.
    pub(super) fn node(&self) -> MemoryNode {
        self.shared.node
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    pub(super) fn exposures(&self) -> &Arc<Exposures> {
        &self.shared.exposures
    }

    /// Connections that loans may be had for.
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        // A table of numbers is whole after any panic.
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShmGate {
    /// Whether `conn` may have memory of `bytes`.
    fn admit(&self, conn: ConnId, bytes: usize) -> Result<(), LoanError> {
        if !self.open().contains(conn) {
            return Err(LoanError::Closed);
        }
        let (bytes, limit) = (bytes as u64, self.shared.config.bulk_bytes_max);
        if bytes > limit { Err(LoanError::TooLarge { bytes, limit }) } else { Ok(()) }
    }
}

impl Gate for ShmGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        self.admit(conn, bytes)?;
        Ok(self.shared.pool.allocate(bytes)?)
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
        self.node()
    }
}
