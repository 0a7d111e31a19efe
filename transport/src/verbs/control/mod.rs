//! The control side: the control thread, its ids, listening and connecting.

pub(crate) mod connect;
pub(crate) mod connecting;
pub(crate) mod entry;
pub(crate) mod gate;
#[cfg(feature = "conformance")]
pub(crate) mod knock;
pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod listen;
pub(crate) mod mailbox;
pub(crate) mod naming;
pub(crate) mod ports;
pub(crate) mod reject;
pub(crate) mod removal;
pub(crate) mod table;
pub(crate) mod thread;
pub(crate) mod timers;
pub(crate) mod turns;
pub(crate) mod untold;
pub(crate) mod watches;
