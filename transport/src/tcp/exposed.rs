//! Memory that a port exposes: the peer's operations on it are made in this port's turn.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use crate::{
    ConnId, PortError,
    kernel::mapping,
    mem::{
        Exposed, Words,
        exposed::{ExposedHome, fresh_key},
    },
    sync::lock::lock,
};

/// What a port exposes.
#[derive(Debug, Default)]
pub(super) struct Exposures {
    table: Mutex<BTreeMap<u64, Exposure>>,
}

#[derive(Debug)]
struct Exposure {
    words: Arc<Words>,
    shown: BTreeSet<ConnId>,
}

impl Exposures {
    /// Exposes `bytes`, zeroed.
    pub(super) fn expose(self: &Arc<Self>, bytes: usize) -> Result<Exposed, PortError> {
        let words = Arc::new(Words::anonymous(bytes).map_err(|error| mapping(&error))?);
        let key = fresh_key();
        lock(&self.table).insert(key, Exposure { words: Arc::clone(&words), shown: BTreeSet::new() });
        Ok(Exposed::new(words, key, Arc::clone(self) as Arc<dyn ExposedHome>))
    }

    /// The peer of `conn` may use the memory `key`; how long it is.
    pub(super) fn show(&self, key: u64, conn: ConnId) -> Option<u64> {
        let mut table = lock(&self.table);
        let exposure = table.get_mut(&key)?;
        exposure.shown.insert(conn);
        Some(exposure.words.len())
    }

    /// The memory `key`, if it was shown to the peer of `conn`.
    pub(super) fn find(&self, key: u64, conn: ConnId) -> Option<Arc<Words>> {
        let table = lock(&self.table);
        let exposure = table.get(&key).filter(|exposure| exposure.shown.contains(&conn))?;
        Some(Arc::clone(&exposure.words))
    }

    /// The connection has ended.
    pub(super) fn forget(&self, conn: ConnId) {
        for exposure in lock(&self.table).values_mut() {
            exposure.shown.remove(&conn);
        }
    }

    /// Connections that memory was shown on, each as often as pieces were.
    #[cfg(test)]
    pub(super) fn shown(&self) -> usize {
        lock(&self.table).values().map(|exposure| exposure.shown.len()).sum()
    }
}

impl ExposedHome for Exposures {
    fn withdraw(&self, key: u64) {
        let gone = lock(&self.table).remove(&key);
        // Unmapping takes long: not under the lock.
        drop(gone);
    }
}
