//! Registered memory for bulk, in few sizes, kept registered between loans.
//!
//! Taking and returning a loan takes a lock: bulk is off the message path. The ticket of a loan is its index
//! in the table and its rkey, so that an offer needs neither lock nor look-up.

use std::sync::{Arc, Mutex};

use gimmal_rdma::verbs::{Mr, Pd, Rights};

use crate::{
    LoanError, PortConfig, PortError,
    kernel::system_io,
    mem::{
        Account, Debit, Loan, LoanHome, MemoryNode, Pages, PoolMemory, Region, kept::Kept,
        pages::buffer_bytes,
    },
    pack::{high_half, join, low_half},
    sync::lock::lock,
    verbs::memory::purpose::Purpose,
};

/// Registered memory for bulk, in few sizes, kept registered between loans.
#[derive(Debug)]
pub(crate) struct Pool {
    iwarp: bool,
    wants_huge: bool,
    relaxed: bool,
    node: MemoryNode,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: the device was removed, and nothing is registered any more.
    pd: Option<Arc<Pd>>,
    table: Vec<Option<Buffer>>,
    vacant: Vec<u32>,
    /// Indexes of buffers that nobody uses.
    idle: Kept<u32>,
}

/// Deregistered before it is unmapped.
#[derive(Debug)]
struct Buffer {
    /// `None`: the device was removed.
    mr: Option<Mr>,
    region: Region,
    pages: Pages,
    /// Of the connection that has it.
    debit: Option<Debit>,
}

/// A loan with the key our own device needs for it.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) loan: Loan,
    pub(crate) lkey: u32,
}

impl Pool {
    pub(crate) fn new(pd: Arc<Pd>, iwarp: bool, config: &PortConfig, node: MemoryNode) -> Arc<Self> {
        let state = Mutex::new(State { pd: Some(pd), ..State::default() });
        let (wants_huge, relaxed) = (config.huge_pages, config.relaxed_ordering);
        Arc::new(Self { iwarp, wants_huge, relaxed, node, state })
    }

    /// A loan of `bytes` for the connection of `account`.
    pub(crate) fn lend(self: &Arc<Self>, account: &Arc<Account>, bytes: usize) -> Result<Granted, LoanError> {
        let debit = account.take(buffer_bytes(bytes)? as u64)?;
        self.grant(bytes, Some(debit))
    }

    /// A loan of `bytes` for the port itself.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Granted, LoanError> {
        self.grant(bytes, None)
    }

    /// A buffer of at least `bytes`, lent as exactly `bytes`.
    fn grant(self: &Arc<Self>, bytes: usize, debit: Option<Debit>) -> Result<Granted, LoanError> {
        let size = buffer_bytes(bytes)?;
        let (reused, pd) = {
            let mut state = lock(&self.state);
            let pd = state.pd.clone().ok_or_else(removed)?;
            (state.idle.take(size), pd)
        };
        let index = match reused {
            Some(index) => index,
            None => {
                // Mapping and registering take long: not under the lock.
                let mapped = self.node.place(|| Region::large(size, self.wants_huge));
                let (region, pages) = mapped.map_err(|error| system_io("mmap", &error))?;
                let rights = Purpose::Bulk { iwarp: self.iwarp }.rights();
                let mr = Mr::new(&pd, &region, Rights { relaxed_ordering: self.relaxed, ..rights })
                    .map_err(PortError::from)?;
                tracing::debug!(size, %pages, "memory for loans more");
                lock(&self.state).add(Buffer { mr: Some(mr), region, pages, debit: None })
            }
        };
        let mut state = lock(&self.state);
        let buffer = state.table[index as usize].as_mut().expect("the index is ours until the loan returns");
        buffer.debit = debit;
        let (rkey, lkey) = buffer.mr.as_ref().map(|mr| (mr.rkey(), mr.lkey())).ok_or_else(removed)?;
        let ticket = join(rkey, index);
        // SAFETY: the region is zeroed or holds older loans' bytes, stays in the table (so mapped) until
        // `give_back`, and its index is on no free list, so nobody else gets it.
        let loan = unsafe { Loan::new(buffer.region.base(), bytes, ticket, self.clone()) };
        Ok(Granted { loan, lkey })
    }
}

impl Pool {
    /// The key that our own device needs for `loan`; `None` of another pool's, or when the device was removed.
    pub(crate) fn lkey(&self, loan: &Loan) -> Option<u32> {
        let state = lock(&self.state);
        let buffer = state.table.get(high_half(loan.ticket()) as usize)?.as_ref()?;
        buffer
            .mr
            .as_ref()
            .filter(|_| buffer.region.base().as_ptr().cast_const() == loan.as_ptr())
            .map(Mr::lkey)
    }

    /// What there is now, in use or not.
    pub(crate) fn memory(&self) -> Vec<PoolMemory> {
        let piece = |buffer: &Buffer| PoolMemory { bytes: buffer.region.len(), pages: buffer.pages };
        lock(&self.state).table.iter().flatten().map(piece).collect()
    }

    /// The device is being removed, and no queue pair is left that could use a registration: they all go. Loans
    /// that are still out keep their memory, which nobody can reach any more.
    pub(crate) fn revoke(&self) {
        let (pd, registrations) = {
            let mut state = lock(&self.state);
            state.idle = Kept::default();
            let registrations: Vec<Mr> =
                state.table.iter_mut().flatten().filter_map(|buffer| buffer.mr.take()).collect();
            (state.pd.take(), registrations)
        };
        drop(registrations);
        drop(pd);
    }
}

/// Nothing can be had of a device that is gone.
pub(crate) fn removed() -> LoanError {
    PortError::NoDevice { detail: "it was removed".to_owned() }.into()
}

impl State {
    fn add(&mut self, buffer: Buffer) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.table[index as usize] = Some(buffer);
            return index;
        }
        self.table.push(Some(buffer));
        u32::try_from(self.table.len() - 1).expect("fewer than 2^32 registrations")
    }

    /// Takes the buffer of `index` out, which nobody uses.
    fn remove(&mut self, index: u32) -> Option<Buffer> {
        let buffer = self.table.get_mut(index as usize)?.take()?;
        self.vacant.push(index);
        Some(buffer)
    }
}

/// The rkey of a loan of a pool.
pub(crate) fn rkey_of(loan: &Loan) -> u32 {
    low_half(loan.ticket())
}

impl LoanHome for Pool {
    fn give_back(&self, ticket: u64) {
        let index = high_half(ticket);
        let gone: Vec<Buffer> = {
            let mut state = lock(&self.state);
            let Some(Some(buffer)) = state.table.get_mut(index as usize) else { return };
            buffer.debit = None;
            let size = buffer.region.len();
            let is_registered = buffer.mr.is_some();
            let gone = if is_registered { state.idle.keep(size, index) } else { vec![index] };
            gone.into_iter().filter_map(|index| state.remove(index)).collect()
        };
        // Deregistering takes long: not under the lock.
        drop(gone);
    }
}
