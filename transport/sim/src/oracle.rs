//! What a world remembers for tests: a hash of everything that happened, and what should not have.

use super::config::{FaultKind, Misuse};

/// Randomness from a seed: splitmix64, good enough to choose delays and orders.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below `bound`, 0 when that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }
}

/// A running hash (FNV-1a, 64 bits).
#[derive(Debug)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) fn words(&mut self, what: &str, words: &[u64]) {
        self.bytes(what.as_bytes());
        for word in words {
            self.bytes(&word.to_le_bytes());
        }
    }

    pub(super) const fn value(&self) -> u64 {
        self.0
    }
}

/// Counts and findings of one world.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Chains that met no receive, each attempt counted.
    pub rnr: u64,
    /// Faults that happened.
    pub injected: Vec<FaultKind>,
    /// Breaches of the contract by its user, in order.
    pub misuses: Vec<Misuse>,
    /// Most READs that were outstanding on one connection.
    pub reads_outstanding_max: u32,
    /// Chains that were delivered.
    pub chains: u64,
    /// Frames that were delivered.
    pub frames: u64,
    /// Calls that set something up.
    pub setups: u64,
    /// Which of them failed.
    pub failed_setup: Option<&'static str>,
}
