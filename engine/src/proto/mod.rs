//! The pure core: what one connection may send, what it owes, where it stands.
//!
//! No thread, clock, lock, socket or provider: `handle_*` takes arrivals, `poll_*` says what to send, `now` is an
//! argument. `Connection` joins it to a port.
//!
//! ```text
//!            window: may a frame be committed?         ledger: what do we owe?
//!   send ──► TxWindow ──► Port::compose       arrive ──► RxLedger ──► credit, when half (quarter) is owed
//!   loans:  offered by us, kept until done    pulls:  offered to us, answered when brought or released
//!   state:  Opening ─► Open ─► Draining ─► Closed
//!   heart:  is the peer still there?                          check: is a frame the next one, and whole?
//! ```

pub mod bulk;
pub mod check;
pub mod heart;
pub mod ledger;
pub mod state;
pub mod window;
pub mod wire;

pub use check::Check;
pub use heart::{Beat, Heart, Pace};
pub use ledger::RxLedger;
pub use state::{State, StateEvent};
pub use window::{Lane, TxWindow};
