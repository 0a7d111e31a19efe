//! The control side's handle on a port.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pool::Pool;
use crate::{ConnId, Gate, LoanError, PoolMemory, PortConfig, Waker, mem::Loan};

/// Where loans come from, and what new connections are made for. Clone and send it anywhere.
#[derive(Clone, Debug)]
pub struct ShmGate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: PortConfig,
    waker: Waker,
    pool: Arc<Pool>,
    open: Mutex<Open>,
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
    pub(super) fn new(config: PortConfig, waker: Waker) -> Self {
        let pool = Pool::new(config.huge_pages);
        Self { shared: Arc::new(Shared { config, waker, pool, open: Mutex::default() }) }
    }

    pub(super) fn config(&self) -> &PortConfig {
        &self.shared.config
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Connections that loans may be had for.
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        // A table of numbers is whole after any panic.
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for ShmGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        if !self.open().contains(conn) {
            return Err(LoanError::Closed);
        }
        let limit = self.shared.config.bulk_bytes_max;
        if bytes as u64 > limit {
            return Err(LoanError::TooLarge { bytes: bytes as u64, limit });
        }
        Ok(self.shared.pool.allocate(bytes)?)
    }

    fn memory(&self) -> Vec<PoolMemory> {
        self.shared.pool.memory()
    }
}
