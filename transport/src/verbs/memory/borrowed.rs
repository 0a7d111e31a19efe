//! User memory that is lent as it lies: registered to be read, and kept so for the next loan of it.
//!
//! A registration keeps a clone of the memory's [`UserBytes`] and goes first, so nobody can free what a device may read. As
//! with loans of the pool, taking and returning one takes a lock, and their tickets hold the index and the rkey.
//!
//! It may begin and end within a page, whose other bytes are anybody's. After a fork on an old kernel a write to those moves
//! the page away from under the device, which then reads the one from before: these bytes are the same in it.

use std::{
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use gimmal_rdma::{
    DeviceError,
    verbs::{Mr, Pd},
};

use crate::{
    LoanError, PortConfig, PortError,
    mem::{
        Loan, LoanHome, UserBytes, UserMemory,
        user_bytes::{Keeper, Place},
    },
    pack::{high_half, join},
    sync::lock::lock,
    verbs::memory::{
        cache::{Cache, Limits},
        pool::removed,
        purpose::Purpose,
    },
};

/// What a port lends of user memory by one device.
#[derive(Debug)]
pub(crate) struct Borrowed {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None`: the device was removed.
    pd: Option<Arc<Pd>>,
    cache: Cache<Registered>,
}

/// Deregistered before its owner may go.
#[derive(Debug)]
struct Registered {
    /// `None`: the device was removed.
    mr: Option<Mr>,
    bytes: UserBytes,
}

impl Borrowed {
    pub(crate) fn new(pd: Arc<Pd>, config: &PortConfig) -> Arc<Self> {
        let limits = Limits { bytes: config.user_bytes_max, pieces: config.user_pieces_max.into() };
        Arc::new(Self { state: Mutex::new(State { pd: Some(pd), cache: Cache::new(limits) }) })
    }

    /// `bytes`, which are some, as they lie.
    pub(crate) fn lend(self: &Arc<Self>, bytes: &UserBytes) -> Result<Loan, LoanError> {
        bytes.kept_by(self);
        let pd = {
            let mut state = lock(&self.state);
            let pd = state.pd.clone().ok_or_else(removed)?;
            if let Some((index, known)) = state.cache.find(bytes.place()) {
                return self.loan(index, known);
            }
            pd
        };
        // Registering takes long: not under the lock.
        let registered = Registered {
            mr: Some(self.register(&pd, bytes).map_err(PortError::from)?),
            bytes: bytes.clone(),
        };
        let mut state = lock(&self.state);
        if state.pd.is_none() {
            drop(state);
            return Err(removed());
        }
        let (index, gone) = state.cache.insert(bytes.place(), registered);
        let loan = state.cache.get(index).ok_or_else(removed).and_then(|known| self.loan(index, known));
        drop(state);
        drop(gone);
        loan
    }

    /// Registers; at the limit of locked memory once more, without what is kept for nobody.
    fn register(&self, pd: &Arc<Pd>, bytes: &UserBytes) -> Result<Mr, DeviceError> {
        let error = match lent(pd, bytes) {
            Err(error @ DeviceError::Memlock { .. }) => error,
            other => return other,
        };
        let gone = lock(&self.state).cache.clear();
        if gone.is_empty() {
            return Err(error);
        }
        drop(gone);
        lent(pd, bytes)
    }

    fn loan(self: &Arc<Self>, index: u32, known: &Registered) -> Result<Loan, LoanError> {
        let rkey = known.mr.as_ref().map(Mr::rkey).ok_or_else(removed)?;
        let ticket = join(rkey, index);
        // SAFETY: `known` has them, and stays in the cache until as many loans as it was found or inserted for ended.
        Ok(unsafe { known.bytes.loan(ticket, Arc::clone(self) as Arc<dyn LoanHome>) })
    }

    /// The key that our own device needs for `loan`; `None` of another's, or when the device was removed.
    pub(crate) fn lkey(&self, loan: &Loan) -> Option<u32> {
        let state = lock(&self.state);
        let known = state.cache.get(high_half(loan.ticket()))?;
        known.mr.as_ref().filter(|_| known.bytes.as_ptr() == loan.as_ptr()).map(Mr::lkey)
    }

    pub(crate) fn counters(&self) -> UserMemory {
        lock(&self.state).cache.counters()
    }

    /// The port is gone: nothing is kept for another loan.
    pub(crate) fn close(&self) {
        let gone = lock(&self.state).cache.close();
        drop(gone);
    }

    /// The device is being removed, and no queue pair is left that could use a registration: they all go. Loans that are
    /// still out keep their memory, which nobody can reach any more.
    pub(crate) fn revoke(&self) {
        let mut state = lock(&self.state);
        let gone = state.cache.close();
        let registrations: Vec<Mr> = state.cache.values_mut().filter_map(|known| known.mr.take()).collect();
        let pd = state.pd.take();
        drop(state);
        drop((gone, registrations, pd));
    }
}

/// Registers user memory, to be read.
fn lent(pd: &Arc<Pd>, bytes: &UserBytes) -> Result<Mr, DeviceError> {
    let start = NonNull::from(&**bytes).cast();
    // SAFETY: the bytes stay where they are as long as a clone of `bytes` lives, and the registration has one beside it
    // (`Registered`) and goes first; these rights only let them be read, and nobody writes what is lent.
    unsafe { Mr::register(pd, start, bytes.len(), Purpose::Lent.rights()) }
}

impl LoanHome for Borrowed {
    fn give_back(&self, ticket: u64) {
        let gone = lock(&self.state).cache.end(high_half(ticket));
        // Deregistering takes long, and owners may do anything when they go: not under the lock.
        drop(gone);
    }
}

impl Keeper for Borrowed {
    fn forget(&self, place: Place) {
        let gone = lock(&self.state).cache.forget(place);
        drop(gone);
    }
}
