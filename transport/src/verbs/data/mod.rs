//! The data side: a port and its connections, used by one poll thread.

pub(crate) mod access;
pub(crate) mod close;
pub(crate) mod conn;
pub(crate) mod down;
pub(crate) mod flush;
pub(crate) mod peer_pulse;
pub(crate) mod poll;
pub(crate) mod port;
pub(crate) mod pulls;
pub(crate) mod runs;
pub(crate) mod rx;
pub(crate) mod table;
pub(crate) mod tx;
pub(crate) mod wr_id;
