//! Receives that connections share: the queue of a device, its slots, and rings to send from.

pub(crate) mod queue;
pub(crate) mod receives;
pub(crate) mod slots;
pub(crate) mod tx_rings;
