//! TLS 1.3 between a connection's rings and its socket: the state machine of rustls, and what it is told.
//!
//! ```text
//!  rings, records, bulk ─ gather, at most 16 KiB ─► seal ─► output ─► socket
//!  rings, memory that pulls ◄─ scatter ─ open ◄─ input ◄─ recv, at most 36 KiB
//! ```
//! What is flushed together is sealed together. rustls allocates once for each record that is sealed or opened.

mod faults;
mod files;
pub mod foreign;
mod names;
mod records;
mod session;
mod verify;

pub(crate) use self::files::Kept;
pub(super) use self::session::Session;

/// What both sides name in the handshake: nothing else is spoken inside.
const PROTOCOL: &[u8] = b"gimmal/1";
