//! Places of a port for its connections.

use std::sync::Arc;

use super::{link::End, live::Live};
use crate::{ConnId, Negotiated, PortCounters, Time};

/// A place for a connection; used again under another generation.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) counters: PortCounters,
}

/// What is in a slot.
#[derive(Debug)]
pub(super) enum Stage {
    Free,
    /// The peer's segment has not come.
    Greeting(Box<Greeting>),
    Live(Box<Live>),
    /// Gone, but its `Closed` was not fetched.
    Ended,
}

/// The passive side between its accept and the peer's grant.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) index: u32,
    pub(super) end: End,
    pub(super) negotiated: Arc<Negotiated>,
    pub(super) until: Time,
}

impl Slot {
    /// Whether it has this generation of its connections.
    #[inline]
    pub(super) const fn is_of(&self, conn: ConnId) -> bool {
        self.generation == conn.generation()
    }
}

/// The connection that `conn` names, if it lives, and what is counted of it.
#[inline]
pub(super) fn live(slots: &mut [Slot], conn: ConnId) -> Option<(&mut Live, &mut PortCounters)> {
    let slot = slots.get_mut(conn.index() as usize)?;
    match &mut slot.stage {
        Stage::Live(live) if slot.generation == conn.generation() => Some((live, &mut slot.counters)),
        _ => None,
    }
}
