//! The atomics of this crate, from std or from loom, and the few structures built on them.
//!
//! Every `Release` store names its `Acquire` load with the same `SYNC POINT` label.

pub mod answer;
pub mod counter;
pub mod doorbell;
pub(crate) mod flag;
pub(crate) mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, loom))]
mod loom_threads;
pub mod once;
pub(crate) mod prefetch;
pub(crate) mod publish;
#[cfg(feature = "tokio")]
pub mod readable;
pub(crate) mod release;
pub mod thread;
pub mod timer;
pub(crate) mod wake;
pub(crate) mod word;

pub use counter::Counter;
pub use doorbell::Doorbell;

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic;
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic;
