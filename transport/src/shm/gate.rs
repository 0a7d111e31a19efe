//! The control side's handle on a port.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::pool::Pool;
use crate::{ConnId, Gate, LoanError, PortConfig, Waker, mem::Loan};

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
    open: Mutex<HashSet<ConnId>>,
}

impl ShmGate {
    pub(super) fn new(config: PortConfig, waker: Waker) -> Self {
        Self { shared: Arc::new(Shared { config, waker, pool: Pool::new(), open: Mutex::default() }) }
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
    pub(super) fn open(&self) -> MutexGuard<'_, HashSet<ConnId>> {
        // A set of numbers is whole after any panic.
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for ShmGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        if !self.open().contains(&conn) {
            return Err(LoanError::Closed);
        }
        let limit = self.shared.config.bulk_bytes_max;
        if bytes as u64 > limit {
            return Err(LoanError::TooLarge { bytes: bytes as u64, limit });
        }
        Ok(self.shared.pool.allocate(bytes)?)
    }
}
