//! What the suite must be told about a provider.

use std::time::Duration;

use gimmal_transport::{Address, ConnectError, PortConfig, Provider, SharedReceives, Time};

/// A client that speaks foreign bytes to a listener. It is asked again and again until it says how its attempt ended; the
/// inner `None` is an end without a reason.
pub type Knock = Box<dyn FnMut() -> Option<Option<ConnectError>>>;

/// A provider under test.
pub trait Harness<P: Provider> {
    /// For the report: the provider, and the fabric or world it runs on.
    fn name(&self) -> String;

    /// The provider of `side` (0 connects, 1 listens).
    fn provider(&mut self, side: usize) -> P;

    /// An address that can be listened on; another one at each call, or one that the listener completes (port 0).
    fn address(&mut self) -> Address;

    /// An address of another provider.
    fn wrong_address(&self) -> Address;

    /// What ports are opened with, where a case has no wish of its own.
    fn config(&self) -> PortConfig {
        middle_config()
    }

    /// The time that ports are polled with.
    fn now(&mut self) -> Time;

    /// Nothing happened: lets some time pass.
    fn step(&mut self);

    /// After this a case gives up.
    fn time_out(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// So long nothing must arrive, where nothing may.
    fn quiet_time(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Whether [`Harness::knock`] does anything.
    fn can_knock(&self) -> bool {
        false
    }

    /// Connects with these bytes in place of the hello.
    fn knock(&mut self, _address: &Address, _private_data: &[u8]) -> Option<Knock> {
        None
    }

    /// After each case: what only the harness can see (a simulator's findings, device counters).
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

/// Small enough that rings wrap and queues fill soon.
pub(super) fn middle_config() -> PortConfig {
    PortConfig {
        ring_bytes: 64 << 10,
        slot_bytes: 4 << 10,
        arrivals: 16,
        sends: 64,
        signal_interval: 8,
        bulk_piece_bytes: 16 << 10,
        bulk_piece_in_post_bytes: 4 << 10,
        bulk_bytes_max: 16 << 20,
        connections: 32,
        shared: SharedReceives { slot_bytes: 4096, sends: 64, depth: 16, ..SharedReceives::default() },
        ..PortConfig::default()
    }
}
