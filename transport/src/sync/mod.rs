//! The atomics of this crate, from std or from loom, and the few structures built on them.
//!
//! Every `Release` store names its `Acquire` load with the same `SYNC POINT` label.

pub mod doorbell;

pub use doorbell::Doorbell;

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;
