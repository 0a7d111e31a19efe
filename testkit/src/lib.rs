//! What gimmal is tested with.
//!
//! [`conformance`] is the contract of a provider as named cases. It runs on every provider of this workspace, and on one of
//! your own: give it a [`Harness`](conformance::Harness).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod attack;
pub mod child;
pub mod conformance;
pub mod help;
mod hostile;
mod raw;
mod skip;
mod until;

#[doc(no_inline)]
pub use gimmal_transport::testing::{patient_connect, patient_listen};

pub use attack::{Attacker, Deed, Script};
pub use child::ChildGuard;
pub use hostile::Choices;
pub use skip::skip;
pub use until::{Over, until};
