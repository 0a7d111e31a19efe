//! What can be measured: something that makes calls.

use gimmal_engine::{transport::PortCounters, worker::duty::DutySnapshot};

use crate::{arrivals::Arrivals, error::BenchError, recorder::Recorder};

/// What a target's connection and worker counted since they began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// The connection's.
    pub port: PortCounters,
    /// The worker's.
    pub duty: DutySnapshot,
    /// Sends that found no room.
    pub blocked: u64,
    /// What the connection runs with; without it the others say nothing.
    pub negotiated: Option<String>,
}

/// One connection to an echo, through one layer.
///
/// A new layer is a new target: it connects, tells the server the plan, and makes calls; everything else (floors,
/// slices, reports) stays as it is.
pub trait Target: std::fmt::Debug {
    /// Makes `count` calls, never more than the plan's window outstanding, and records every round trip. Allocates
    /// nothing and, while no one sleeps, makes no system call.
    ///
    /// # Errors
    /// The first call that failed.
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError>;

    /// Makes calls when they are due, for as long as `arrivals` says; times them from when they were due.
    ///
    /// # Errors
    /// [`BenchError::Arguments`] from targets that cannot; else as [`Target::run`].
    fn offer(&mut self, arrivals: &mut Arrivals, recorder: &mut Recorder) -> Result<(), BenchError> {
        let _ = (arrivals, recorder);
        Err(BenchError::Arguments("the open loop needs --layer engine and --mode inline".to_owned()))
    }

    /// What was counted; nothing from targets that cannot tell.
    fn counted(&mut self) -> Counted {
        Counted::default()
    }

    /// Where the plan's layer is served; empty: on the plan's own connection.
    fn served_at(&self) -> &str {
        ""
    }

    /// Says goodbye.
    fn close(self: Box<Self>);
}

/// Reads an echo as far as a receiver must: one word of every cache line.
#[inline]
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    const LINE: usize = 64;
    let mut sum = 0u64;
    for line in bytes.chunks(LINE) {
        sum = sum.wrapping_add(match line.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => line.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        });
    }
    sum
}

/// Reads every byte: the sum of all words.
#[inline]
#[must_use]
pub fn total(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

/// What [`total`] makes of `bytes` bytes that are all `filling`.
#[must_use]
pub fn total_of(filling: u8, bytes: usize) -> u64 {
    let (words, word) = ((bytes / 8) as u64, u64::from_le_bytes([filling; 8]));
    words.wrapping_mul(word).wrapping_add((bytes % 8) as u64 * u64::from(filling))
}

/// Reads an echo: every byte if `is_thorough`, else as far as a receiver must.
#[inline]
#[must_use]
pub fn read(bytes: &[u8], is_thorough: bool) -> u64 {
    if is_thorough { total(bytes) } else { digest(bytes) }
}

/// The body that is sent: bytes that differ.
#[must_use]
pub fn body(bytes: usize) -> Vec<u8> {
    (0..=250u8).cycle().take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_counts() {
        let bytes = body(200);
        for at in [0, 64, 128, 192, 199] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(digest(&bytes), digest(&other), "byte {at}");
        }
        assert_eq!(digest(&[]), 0);
        assert_eq!(total_of(77, 203), total(&[77; 203]));
        for at in 0..200 {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(total(&bytes), total(&other), "byte {at}");
        }
    }
}
