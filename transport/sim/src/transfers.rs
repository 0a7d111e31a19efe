//! What the two ends of a connection do with each other's memory: loans and pulls, exposed memory and operations on it.

use std::sync::Arc;

use gimmal_transport::{
    Offer, Remote,
    mem::{Debit, OneSided, Release, Words},
};

/// A loan that was made, and what was offered of it.
#[derive(Debug)]
pub(super) struct LoanState {
    pub(super) conn: u64,
    /// Where it lies: loans of other providers may have its ticket.
    pub(super) at: usize,
    pub(super) side: usize,
    pub(super) bytes: Option<Arc<[u8]>>,
    pub(super) readers: u32,
    pub(super) lent: Vec<Arc<Release>>,
    /// Held for its drop.
    pub(super) _debit: Debit,
}

/// A pull in flight.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) token: u64,
    pub(super) offer: Offer,
    pub(super) issued: u64,
    pub(super) arrived: u64,
    /// What chooses the bit that is another one.
    pub(super) flipped: Option<u64>,
}

/// Memory that one end of a connection exposes to the other.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) conn: u64,
    pub(super) side: usize,
    pub(super) words: Arc<Words>,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) token: u64,
    pub(super) remote: Remote,
    pub(super) op: OneSided,
}
