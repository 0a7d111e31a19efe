//! The providers and their numbers, and what each has to offer or why it has nothing.

#[cfg(not(feature = "shm"))]
pub(super) use super::absent::Absent as Shm;
#[cfg(not(feature = "tcp"))]
pub(super) use super::absent::Absent as Tcp;
#[cfg(not(feature = "verbs"))]
pub(super) use super::absent::Absent as Verbs;
#[cfg(feature = "shm")]
pub(super) use crate::shm::Shm;
#[cfg(feature = "tcp")]
pub(super) use crate::tcp::Tcp;
#[cfg(feature = "verbs")]
pub(super) use crate::verbs::Verbs;
use crate::{Address, ConnId, PortError};

/// Shared memory's number in a [`ConnId`].
pub(super) const SHM: usize = 0;
/// Verbs' number.
pub(super) const VERBS: usize = 1;
/// TCP's number.
pub(super) const TCP: usize = 2;
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

/// Which providers a port opens; all that are compiled in, by default.
#[derive(Clone, Copy, Debug)]
pub struct AnyConfig {
    /// Open shared memory.
    pub shm: bool,
    /// Open verbs.
    pub verbs: bool,
    /// Open TCP.
    pub tcp: bool,
}

impl Default for AnyConfig {
    fn default() -> Self {
        Self { shm: true, verbs: true, tcp: true }
    }
}

impl AnyConfig {
    /// Only what `addresses` need.
    #[must_use]
    pub fn for_addresses(addresses: &[Address]) -> Self {
        let some = |is: fn(&Address) -> bool| addresses.iter().any(is);
        Self {
            shm: some(|address| matches!(address, Address::Shm { .. } | Address::Mem { .. })),
            verbs: some(|address| matches!(address, Address::Rdma { .. })),
            tcp: some(|address| matches!(address, Address::Tcp { .. })),
        }
    }
}

/// The providers that a port has ports of.
#[derive(Clone, Debug)]
pub(super) struct Providers {
    pub(super) shm: Have<Shm>,
    pub(super) verbs: Have<Verbs>,
    pub(super) tcp: Have<Tcp>,
}

/// A provider that is compiled in, if it is `wanted`.
macro_rules! provider {
    ($name:literal, $wanted:expr, $new:expr) => {{
        #[cfg(feature = $name)]
        let have = if $wanted { Ok($new) } else { Err(PortError::NotOpened { provider: $name }) };
        #[cfg(not(feature = $name))]
        let have = Err(PortError::NotBuilt { provider: $name, feature: $name });
        have
    }};
}

impl Providers {
    pub(super) fn new(config: AnyConfig) -> Self {
        Self {
            shm: provider!("shm", config.shm, Shm),
            verbs: provider!("verbs", config.verbs, Verbs::new()),
            tcp: provider!("tcp", config.tcp, Tcp),
        }
    }
}

/// What was tried says more than what was not asked for, or is not compiled in.
pub(super) fn prefer(first: Option<PortError>, error: &PortError) -> Option<PortError> {
    match first {
        Some(PortError::NotOpened { .. } | PortError::NotBuilt { .. }) | None => Some(error.clone()),
        some => some,
    }
}

pub(super) fn have<T>(had: &Have<T>) -> Result<&T, PortError> {
    had.as_ref().map_err(Clone::clone)
}
