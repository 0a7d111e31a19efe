use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use gimmal::{Cx, Sink};

use super::{Entry, Kv, KvError};

#[derive(Clone, Default)]
pub struct Store {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
}

impl Kv for Store {
    async fn get(&self, _: &Cx, key: String) -> Result<Entry, KvError> {
        self.entries.lock().unwrap().get(&key).cloned().ok_or(KvError::NotFound(key))
    }

    async fn put(
        &self,
        _: &Cx,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Result<u64, KvError> {
        let mut entries = self.entries.lock().unwrap();
        let stored = entries.get(&key).map_or(0, |entry| entry.version);
        match expected {
            Some(expected) if expected != stored => Err(KvError::Conflict { stored, expected }),
            _ => {
                let version = stored + 1;
                entries.insert(key.clone(), Entry { key, value, version });
                Ok(version)
            }
        }
    }

    async fn scan(&self, _: &Cx, prefix: String, mut entries: Sink<Entry>) -> u64 {
        let found: Vec<Entry> = self.entries.lock().unwrap().values()
            .filter(|entry| entry.key.starts_with(&prefix)).cloned().collect();
        let mut sent = 0;
        for entry in found {
            if entries.send(&entry).await.is_err() {
                break; // the caller is gone
            }
            sent += 1;
        }
        sent
    }
}
