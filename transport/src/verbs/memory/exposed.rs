//! Exposed memory: a registration of its own, with the rights that a peer needs, gone before the memory is.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use gimmal_rdma::verbs::{Mr, Pd};

use crate::{
    LoanError, PortError,
    kernel::system_io,
    mem::{
        Exposed, MemoryNode, Region, Words,
        exposed::{ExposedHome, fresh_key},
    },
    sync::lock::lock,
    verbs::memory::purpose::Purpose,
};

/// What a port exposes by one device.
#[derive(Debug)]
pub(crate) struct Exposures {
    atomics: bool,
    wants_huge: bool,
    node: MemoryNode,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None`: the device was removed.
    pd: Option<Arc<Pd>>,
    table: BTreeMap<u64, Mr>,
}

impl Exposures {
    pub(crate) fn new(pd: Arc<Pd>, atomics: bool, wants_huge: bool, node: MemoryNode) -> Arc<Self> {
        let state = State { pd: Some(pd), table: BTreeMap::new() };
        Arc::new(Self { atomics, wants_huge, node, state: Mutex::new(state) })
    }

    pub(crate) fn expose(self: &Arc<Self>, bytes: usize) -> Result<Exposed, LoanError> {
        let removed = || PortError::NoDevice { detail: "it was removed".to_owned() };
        let pd = lock(&self.state).pd.clone().ok_or_else(removed)?;
        // Mapping and registering take long: not under the lock.
        let map = || Region::large(Words::mapped_bytes(bytes), self.wants_huge);
        let (region, _) = self.node.place(map).map_err(|error| system_io("mmap", &error))?;
        let registration = Mr::new(&pd, &region, Purpose::Exposed { atomics: self.atomics }.rights())
            .map_err(PortError::from)?;
        let (key, mut state) = (fresh_key(), lock(&self.state));
        if state.pd.is_none() {
            drop(state);
            return Err(removed().into());
        }
        state.table.insert(key, registration);
        drop(state);
        Ok(Exposed::new(Arc::new(Words::new(region, bytes)), key, Arc::clone(self) as Arc<dyn ExposedHome>))
    }

    /// What a peer's device needs for it.
    pub(crate) fn rkey(&self, exposed: &Exposed) -> Option<u32> {
        lock(&self.state).table.get(&exposed.key()).map(Mr::rkey)
    }

    /// The device is being removed, and no queue pair is left that could use a registration.
    pub(crate) fn revoke(&self) {
        let mut state = lock(&self.state);
        let gone = (std::mem::take(&mut state.table), state.pd.take());
        drop(state);
        drop(gone);
    }
}

impl ExposedHome for Exposures {
    fn withdraw(&self, key: u64) {
        let gone = lock(&self.state).table.remove(&key);
        // Deregistering takes long: not under the lock.
        drop(gone);
    }
}
