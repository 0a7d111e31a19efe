//! Memory for loans and for what is pulled: plain memory, kept for its next use.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::{
    ConnId, PortError,
    kernel::mapping,
    mem::{
        Account, Debit, Loan, LoanHome, Region, departing, exposed::fresh_key, kept::Kept,
        pages::buffer_bytes,
    },
    sync::lock::lock,
};

/// Where the loans of a port come from.
#[derive(Debug, Default)]
pub(super) struct Memory {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lent: BTreeMap<u64, Lent>,
    kept: Kept<Arc<Region>>,
}

#[derive(Debug)]
struct Lent {
    region: Arc<Region>,
    /// Connections that it was offered on, and how much of it.
    offered: Vec<(ConnId, u64)>,
    /// Of the connection that has it, held for its drop.
    _debit: Debit,
}

impl Memory {
    /// A loan of `bytes` for the connection of `account`.
    pub(super) fn allocate(
        self: &Arc<Self>,
        account: &Arc<Account>,
        bytes: usize,
    ) -> Result<Loan, PortError> {
        let size = buffer_bytes(bytes)?;
        let debit = account.take(size as u64)?;
        let kept = lock(&self.state).kept.take(size);
        // Pages come when they are touched: a peer that offers much and brings little costs little.
        let fresh = || Region::reserved(size).map(Arc::new).map_err(|error| mapping(&error));
        let region = kept.map_or_else(fresh, Ok)?;
        let (key, at) = (fresh_key(), region.base());
        lock(&self.state).lent.insert(key, Lent { region, offered: Vec::new(), _debit: debit });
        let home = Arc::clone(self) as Arc<dyn LoanHome>;
        // SAFETY: mapped zeroed memory that holds what was written since; the entry keeps it mapped until `give_back(key)`,
        // and a region is in one entry, or kept, never in two. The kernel alone reads it while it is sent.
        Ok(unsafe { Loan::new(at, bytes, key, home) })
    }

    /// The peer of `conn` may pull `bytes` of the loan `key`; whether there is one.
    pub(super) fn offer(&self, key: u64, conn: ConnId, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        let Some(lent) = state.lent.get_mut(&key) else { return false };
        lent.offered.retain(|(known, _)| *known != conn);
        lent.offered.push((conn, bytes));
        true
    }

    /// The memory of loan `key`, if `bytes` of it were offered to the peer of `conn`.
    pub(super) fn find(&self, key: u64, conn: ConnId, bytes: u64) -> Option<Arc<Region>> {
        let state = lock(&self.state);
        let lent = state.lent.get(&key)?;
        let is_offered = lent.offered.iter().any(|(known, offered)| *known == conn && bytes <= *offered);
        is_offered.then(|| Arc::clone(&lent.region))
    }

    /// The memory of loan `key`.
    pub(super) fn region(&self, key: u64) -> Option<Arc<Region>> {
        lock(&self.state).lent.get(&key).map(|lent| Arc::clone(&lent.region))
    }
}

impl LoanHome for Memory {
    fn give_back(&self, key: u64) {
        let mut state = lock(&self.state);
        let Some(Lent { mut region, .. }) = state.lent.remove(&key) else { return };
        // A connection that still sends it has a share: then the memory is not used again.
        let is_ours = Arc::get_mut(&mut region).is_some();
        let size = region.len();
        let gone = if is_ours { state.kept.keep(size, region) } else { vec![region] };
        drop(state);
        let bytes = gone.iter().map(|region| region.len()).sum();
        departing::drop_pieces(bytes, gone);
    }
}
