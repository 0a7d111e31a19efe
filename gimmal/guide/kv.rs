use gimmal::{Cx, Sink};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, gimmal::Shape)]
pub struct Entry {
    pub key: String,
    #[serde(with = "serde_bytes")] // one piece of bytes, not a sequence of numbers
    pub value: Vec<u8>,
    pub version: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error, gimmal::Shape)]
pub enum KvError {
    #[error("no key {0}")]
    NotFound(String),
    #[error("the stored version is {stored}, not {expected}")]
    Conflict { stored: u64, expected: u64 },
}

#[gimmal::service(mock)]
pub trait Kv {
    /// Reads one entry. Safe to repeat, so a retry layer may do so.
    #[idempotent]
    async fn get(&self, cx: &Cx, key: String) -> Result<Entry, KvError>;
    /// Writes a value and returns its version. `expected` is the version that the caller has seen.
    async fn put(&self, cx: &Cx, key: String, value: Vec<u8>, expected: Option<u64>) -> Result<u64, KvError>;
    /// Streams all entries whose keys begin with `prefix`, and returns how many there were.
    async fn scan(&self, cx: &Cx, prefix: String, entries: Sink<Entry>) -> u64;
}
