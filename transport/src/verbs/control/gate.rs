//! How the control side of other layers reaches a verbs port.

use std::sync::Arc;

use crate::{
    ConnId, Exposed, LoanError, PoolMemory, SharedState,
    mem::{Account, Loan, MemoryNode, UserBytes, UserMemory},
    provider::Gate,
    verbs::control::{
        mailbox::ControlHandle,
        shared::{PortDevice, Shared},
    },
};

/// How the control side reaches a verbs port.
#[derive(Clone, Debug)]
pub struct VerbsGate {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Arc<ControlHandle>,
}

impl VerbsGate {
    /// The device of which `conn` may have memory of `bytes`, and its account.
    fn admit(&self, conn: ConnId, bytes: usize) -> Result<(Arc<PortDevice>, Arc<Account>), LoanError> {
        let (bytes, limit) = (bytes as u64, self.shared.config.bulk_bytes_max);
        if bytes > limit {
            return Err(LoanError::TooLarge { bytes, limit });
        }
        self.shared.seated_at(conn).ok_or(LoanError::Closed)
    }
}

impl Gate for VerbsGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        let (device, account) = self.admit(conn, bytes)?;
        Ok(device.pool.lend(&account, bytes)?.loan)
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        if bytes.is_empty() {
            return Ok(self.allocate(conn, 0)?.read_only());
        }
        self.admit(conn, bytes.len())?.0.borrowed.lend(bytes)
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        self.admit(conn, bytes)?.0.exposures.expose(bytes)
    }

    fn shared_receives(&self) -> Vec<SharedState> {
        let devices = self.shared.devices();
        let states = |device: &Arc<PortDevice>| {
            let name = device.context.name();
            device.queues().into_iter().map(move |queue| queue.state(name.clone()))
        };
        devices.iter().flat_map(states).collect()
    }

    fn memory(&self) -> Vec<PoolMemory> {
        self.shared.devices().iter().flat_map(|device| device.pool.memory()).collect()
    }

    fn memory_node(&self) -> MemoryNode {
        self.shared.node
    }

    fn user_memory(&self) -> UserMemory {
        let devices = self.shared.devices();
        devices.iter().fold(UserMemory::default(), |sum, device| sum.and(device.borrowed.counters()))
    }
}
