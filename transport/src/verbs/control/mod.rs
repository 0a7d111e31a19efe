//! The control side: the control thread, its ids, listening and connecting.

pub(crate) mod attempt;
pub(crate) mod connect;
pub(crate) mod connecting;
pub(crate) mod cq_room;
pub(crate) mod cqs;
pub(crate) mod entry;
pub(crate) mod gate;
pub(crate) mod ids;
pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod listen;
pub(crate) mod listener;
pub(crate) mod mailbox;
pub(crate) mod naming;
pub(crate) mod ports;
pub(crate) mod reject;
pub(crate) mod removal;
pub(crate) mod request;
pub(crate) mod shared;
pub(crate) mod table;
pub(crate) mod thread;
pub(crate) mod watches;
