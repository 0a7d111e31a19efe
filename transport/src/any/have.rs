//! The providers' numbers, and what each has to offer or why it has nothing.

use crate::{ConnId, PortError};

/// Shared memory's number in a [`ConnId`].
#[cfg(feature = "shm")]
pub(super) const SHM: usize = 0;
/// Verbs' number.
#[cfg(feature = "verbs")]
pub(super) const VERBS: usize = 1;
/// Room for all numbers.
pub(super) const PROVIDERS: usize = ConnId::POOLS;

/// Which provider a connection belongs to.
pub(super) const fn number(conn: ConnId) -> usize {
    conn.pool()
}

/// The connection as its provider knows it.
pub(super) const fn inner(conn: ConnId) -> ConnId {
    ConnId::new(conn.place(), conn.generation())
}

/// The connection as the caller knows it.
pub(super) const fn outer(number: usize, conn: ConnId) -> ConnId {
    conn.in_pool(number)
}

/// What one provider has to offer, or why it has nothing.
pub(super) type Have<T> = Result<T, PortError>;

/// What was tried says more than what was not asked for.
#[cfg(feature = "verbs")]
pub(super) fn prefer(first: Option<PortError>, error: &PortError) -> Option<PortError> {
    match first {
        Some(PortError::NotOpened { .. }) | None => Some(error.clone()),
        some => some,
    }
}

pub(super) fn not_opened(provider: &'static str) -> PortError {
    PortError::NotOpened { provider }
}

pub(super) fn have<T>(had: &Have<T>) -> Result<&T, PortError> {
    had.as_ref().map_err(Clone::clone)
}
