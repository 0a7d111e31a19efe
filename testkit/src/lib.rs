//! What gimmal is tested with.
//!
//! [`conformance`] is the contract of a provider as named cases. It runs on every provider of this workspace, and on one of
//! your own: give it a [`Harness`](conformance::Harness).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod child;
pub mod conformance;
mod until;

pub use child::ChildGuard;
pub use until::until;
