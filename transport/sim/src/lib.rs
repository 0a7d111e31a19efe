//! The simulator: a provider in one process, deterministic, seeded, with virtual time and faults on demand.
//!
//! ```text
//!  Sim ─ with_device ─► Sim      one world, one clock; a clone with another device shares it
//!   ├ open_port ─► SimPort ─┐
//!   ├ listen ──► SimListener┼──► World: what is on its way, by virtual time; both ends of each connection;
//!   └ connect ─► SimConnecting   the receive rings as they are; what was done that should not have been
//! ```
//!
//! Time is the largest `now` that any port of the world was polled with. Without delays everything is
//! immediate. It behaves as verbs do where that matters: completions come later and only for signalled chains, a chain uses up a
//! receive and meets an RNR without one, and a write over bytes that were not released is seen.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod attempt;
mod bulk;
mod config;
mod conn;
mod connect;
mod each;
mod gate;
mod halves;
mod listen;
mod one_sided;
mod oracle;
mod path;
mod port;
mod runs;
#[cfg(test)]
mod tests;
mod transfers;
mod trouble;
mod view;
mod world;

use std::sync::Arc;

use gimmal_transport::{
    Address, ConnectError, ConnectOptions, ListenError, ListenOptions, PortConfig, PortError, Provider, Time,
};

pub use config::{Fault, FaultKind, Misuse, SimConfig, SimDevice, Step, When};
pub use connect::{Link, SimConnecting};
pub use each::{Device, each, seeds, world};
pub use gate::SimGate;
pub use listen::{SimIncoming, SimListener};
pub use oracle::Findings;
pub use port::SimPort;
use world::Shared;

/// A simulated world, seen through one kind of device.
#[derive(Clone, Debug)]
pub struct Sim {
    shared: Arc<Shared>,
    device: SimDevice,
}

impl Sim {
    /// A world of its own.
    #[must_use]
    pub fn new(config: SimConfig) -> Self {
        let device = config.device.clone();
        Self { shared: Arc::new(Shared::new(config)), device }
    }

    /// Returns the world as seen through another device, which its ports, listeners and connections have.
    #[must_use]
    pub fn with_device(&self, device: SimDevice) -> Self {
        Self { shared: Arc::clone(&self.shared), device }
    }

    /// Lets something go wrong from now on.
    pub fn inject(&self, fault: Fault) {
        self.shared.with(|world| world.inject(fault));
    }

    /// Connects with any bytes in place of the hello, as a foreign client or a later version would.
    ///
    /// # Errors
    /// As [`Provider::connect`].
    pub fn connect_raw(
        &self,
        address: &Address,
        gate: &SimGate,
        options: &ConnectOptions,
        private_data: &[u8],
    ) -> Result<SimConnecting, ConnectError> {
        self.start(address, gate, options, Some(private_data.to_vec()))
    }

    fn start(
        &self,
        address: &Address,
        gate: &SimGate,
        options: &ConnectOptions,
        private_data: Option<Vec<u8>>,
    ) -> Result<SimConnecting, ConnectError> {
        let Address::Mem { name } = address else {
            let why = "the simulator knows mem://name only".to_owned();
            return Err(ConnectError::Address { address: address.to_string(), why });
        };
        let (port, name, url) = (gate.port(), name.clone(), address.to_string());
        self.shared.with(|world| {
            world.setup("rdma_create_id")?;
            world.setup("rdma_create_qp")?;
            world.setup("ibv_reg_mr of the rings")
        })?;
        let conn = self.shared.with(|world| world.start_attempt(url, name, port, options, private_data));
        let conn = conn.ok_or(PortError::System { step: "connect from a port that is gone", errno: 0 })?;
        Ok(SimConnecting::new(&self.shared, conn, port))
    }

    /// What happened so far, as a number: the same seed and the same calls give the same one.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.shared.with(|world| world.digest.value())
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.with(|world| world.now)
    }

    /// Moves virtual time on, as a poll with that `now` would.
    pub fn advance(&self, now: Time) {
        self.shared.with(|world| world.advance(now));
    }

    /// When the next thing happens by itself.
    #[must_use]
    pub fn next_at(&self) -> Time {
        self.shared.with(world::World::next_at)
    }

    /// Counts, and everything that was done against the contract.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.shared.with(|world| world.findings.clone())
    }

    /// Chains that met no receive; credits keep it at 0.
    #[must_use]
    pub fn rnr_count(&self) -> u64 {
        self.shared.with(|world| world.findings.rnr)
    }

    /// Writes over bytes that were not released; credits keep it at 0.
    #[must_use]
    pub fn overwrites(&self) -> u64 {
        let overwrite = |misuse: &&Misuse| matches!(misuse, Misuse::Overwrite { .. });
        self.shared.with(|world| world.findings.misuses.iter().filter(overwrite).count() as u64)
    }

    /// Loans of all connections that stand, offered or not, that were not dropped.
    #[must_use]
    pub fn loans(&self) -> usize {
        self.shared.with(|world| world.loans.len())
    }

    /// Ports that are open.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared.with(|world| world.ports.len())
    }

    /// Connections that the world still knows, attempts included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.with(|world| world.conns.len())
    }
}

impl Provider for Sim {
    type Port = SimPort;
    type Gate = SimGate;
    type Link = Link;
    type Listener = SimListener;
    type Connecting = SimConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<SimPort, PortError> {
        SimPort::new(&self.shared, &self.device, config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<SimListener, ListenError> {
        SimListener::new(&self.shared, address, options)
    }

    fn connect(
        &self,
        address: &Address,
        gate: &SimGate,
        options: &ConnectOptions,
    ) -> Result<SimConnecting, ConnectError> {
        self.start(address, gate, options, None)
    }
}
