//! The control side's handle on a port.

use std::sync::Arc;

use super::{allocate::Memory, exposed::Exposures};
use crate::{
    ConnId, Exposed, Gate, LoanError, PortConfig, UserBytes, UserMemory, Waker,
    mem::{Account, Loan, MemoryNode, accounts::Accounts, user_bytes::Copies},
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
    pub(super) accounts: Accounts,
    copies: Copies,
}

impl TcpGate {
    /// Of the calling thread's port.
    pub(super) fn new(config: PortConfig, waker: Waker) -> Self {
        let node = MemoryNode::of_this_thread();
        let (memory, exposures, accounts) = (Arc::default(), Arc::default(), Accounts::default());
        let copies = Copies::default();
        Self { shared: Arc::new(Shared { config, waker, node, memory, exposures, accounts, copies }) }
    }

    /// The account of `conn`, which may have memory of `bytes`.
    fn admit(&self, conn: ConnId, bytes: usize) -> Result<Arc<Account>, LoanError> {
        self.shared.accounts.admit(conn, bytes, &self.shared.config)
    }
}

impl Gate for TcpGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        let account = self.admit(conn, bytes)?;
        Ok(self.shared.memory.allocate(&account, bytes)?)
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
