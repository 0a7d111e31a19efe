//! One provider over all that are compiled in: the address chooses, at run time.
//!
//! ```text
//!  Any ─ open_port ─► AnyPort ─┬─ ShmPort    shm://, mem://     index bits 31..30 = 0
//!                              └─ VerbsPort  rdma://                              = 1
//! ```
//! So public types need no provider parameter, and one poll thread serves shared memory and RDMA together. A call
//! on a connection costs a match on two bits; a poll visits only sub-ports that have connections. A provider that
//! could not be opened on this machine is remembered with its error, which later users of it get.

mod gate;
mod have;
mod port;
mod used;

use std::time::Duration;

pub use gate::AnyGate;
pub use port::{AnyLink, AnyPort};

#[cfg(feature = "shm")]
use crate::shm::{Shm, ShmConnecting, ShmIncoming, ShmListener};
#[cfg(feature = "verbs")]
use crate::verbs::{Verbs, VerbsConnecting, VerbsIncoming, VerbsListener};
use crate::{
    AcceptError, Address, ConnectError, ConnectOptions, Connecting, Hello, Incoming, ListenError,
    ListenOptions, Listener, PortConfig, PortError, Provider, Refusal, RejectReason,
    any::{
        have::{have, not_opened},
        port::Providers,
    },
};

/// A match on whichever enum of this module, with one body for all its arms.
macro_rules! each {
    ($value:expr, $arm:ident => $body:expr) => {
        match $value {
            #[cfg(feature = "shm")]
            Self::Shm($arm) => $body,
            #[cfg(feature = "verbs")]
            Self::Verbs($arm) => $body,
        }
    };
}

/// Which providers a port opens; all that are compiled in, by default.
#[derive(Clone, Copy, Debug)]
pub struct AnyConfig {
    /// Open shared memory.
    pub shm: bool,
    /// Open verbs.
    pub verbs: bool,
}

impl Default for AnyConfig {
    fn default() -> Self {
        Self { shm: true, verbs: true }
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
        }
    }
}

/// All compiled-in providers as one; see [`Provider`].
#[derive(Clone, Debug)]
pub struct Any {
    providers: Providers,
}

impl Any {
    /// All that are compiled in.
    #[must_use]
    pub fn new() -> Self {
        Self::with(AnyConfig::default())
    }

    /// Those that `config` names.
    #[must_use]
    pub fn with(config: AnyConfig) -> Self {
        let providers = Providers {
            #[cfg(feature = "shm")]
            shm: if config.shm { Ok(Shm) } else { Err(not_opened("shm")) },
            #[cfg(feature = "verbs")]
            verbs: if config.verbs { Ok(Verbs::new()) } else { Err(not_opened("verbs")) },
        };
        Self { providers }
    }
}

impl Default for Any {
    fn default() -> Self {
        Self::new()
    }
}

/// The error for an address whose provider is not compiled in.
#[cfg(not(all(feature = "shm", feature = "verbs")))]
const fn not_built(address: &Address) -> PortError {
    let provider = match address {
        Address::Shm { .. } | Address::Mem { .. } => "shm",
        Address::Rdma { .. } => "verbs",
        Address::Tcp { .. } => "tcp",
    };
    PortError::NotBuilt { provider, feature: provider }
}

/// The error for an address whose provider this one does not have.
fn by_itself() -> PortError {
    PortError::Unavailable {
        provider: "tcp",
        why: "this provider has none; use shm://name, rdma://host:port, gimmal://host:port or mem://name"
            .to_owned(),
    }
}

impl Provider for Any {
    type Port = AnyPort;
    type Gate = AnyGate;
    type Link = AnyLink;
    type Listener = AnyListener;
    type Connecting = AnyConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<AnyPort, PortError> {
        AnyPort::open(&self.providers, config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<AnyListener, ListenError> {
        match address {
            #[cfg(feature = "shm")]
            Address::Shm { .. } | Address::Mem { .. } => {
                Ok(AnyListener::Shm(have(&self.providers.shm)?.listen(address, options)?))
            }
            #[cfg(feature = "verbs")]
            Address::Rdma { .. } => {
                Ok(AnyListener::Verbs(have(&self.providers.verbs)?.listen(address, options)?))
            }
            Address::Tcp { .. } => Err(by_itself().into()),
            #[cfg(not(all(feature = "shm", feature = "verbs")))]
            other => Err(not_built(other).into()),
        }
    }

    fn connect(
        &self,
        address: &Address,
        gate: &AnyGate,
        options: &ConnectOptions,
    ) -> Result<AnyConnecting, ConnectError> {
        let gates = &gate.gates;
        match address {
            #[cfg(feature = "shm")]
            Address::Shm { .. } | Address::Mem { .. } => {
                let connecting = have(&self.providers.shm)?.connect(address, have(&gates.shm)?, options)?;
                Ok(AnyConnecting::Shm(connecting))
            }
            #[cfg(feature = "verbs")]
            Address::Rdma { .. } => {
                let connecting =
                    have(&self.providers.verbs)?.connect(address, have(&gates.verbs)?, options)?;
                Ok(AnyConnecting::Verbs(connecting))
            }
            Address::Tcp { .. } => Err(by_itself().into()),
            #[cfg(not(all(feature = "shm", feature = "verbs")))]
            other => Err(not_built(other).into()),
        }
    }
}

/// A listener of some provider; see [`Listener`].
#[allow(clippy::large_enum_variant, reason = "a process has few of them")]
#[derive(Debug)]
pub enum AnyListener {
    /// Shared memory.
    #[cfg(feature = "shm")]
    Shm(ShmListener),
    /// Verbs.
    #[cfg(feature = "verbs")]
    Verbs(VerbsListener),
}

impl Listener for AnyListener {
    type Gate = AnyGate;
    type Link = AnyLink;
    type Incoming = AnyIncoming;

    fn address(&self) -> Address {
        each!(self, listener => listener.address())
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<AnyIncoming>, ListenError> {
        Ok(match self {
            #[cfg(feature = "shm")]
            Self::Shm(listener) => listener.accept(timeout)?.map(AnyIncoming::Shm),
            #[cfg(feature = "verbs")]
            Self::Verbs(listener) => listener.accept(timeout)?.map(AnyIncoming::Verbs),
        })
    }

    fn rejected(&self) -> u64 {
        each!(self, listener => listener.rejected())
    }

    fn last_rejected(&self) -> Option<RejectReason> {
        each!(self, listener => listener.last_rejected())
    }
}

/// A request of some provider; see [`Incoming`].
#[derive(Debug)]
pub enum AnyIncoming {
    /// Shared memory.
    #[cfg(feature = "shm")]
    Shm(ShmIncoming),
    /// Verbs.
    #[cfg(feature = "verbs")]
    Verbs(VerbsIncoming),
}

impl Incoming for AnyIncoming {
    type Gate = AnyGate;
    type Link = AnyLink;

    fn hello(&self) -> &Hello {
        each!(self, incoming => incoming.hello())
    }

    fn peer(&self) -> String {
        each!(self, incoming => incoming.peer())
    }

    fn accept(self, gate: &AnyGate) -> Result<AnyLink, AcceptError> {
        let gates = &gate.gates;
        Ok(match self {
            #[cfg(feature = "shm")]
            Self::Shm(incoming) => AnyLink::Shm(incoming.accept(have(&gates.shm)?)?),
            #[cfg(feature = "verbs")]
            Self::Verbs(incoming) => AnyLink::Verbs(incoming.accept(have(&gates.verbs)?)?),
        })
    }

    fn accept_then(self, gate: &AnyGate, then: impl FnOnce(Result<AnyLink, AcceptError>) + Send + 'static) {
        match self {
            #[cfg(feature = "verbs")]
            Self::Verbs(incoming) => match have(&gate.gates.verbs) {
                Ok(gate) => incoming.accept_then(gate, |link| then(link.map(AnyLink::Verbs))),
                Err(error) => then(Err(error.into())),
            },
            #[cfg(feature = "shm")]
            other => then(other.accept(gate)),
        }
    }

    fn refuse(self, refusal: Refusal) {
        each!(self, incoming => incoming.refuse(refusal));
    }
}

/// An attempt through some provider; see [`Connecting`].
#[derive(Debug)]
pub enum AnyConnecting {
    /// Shared memory.
    #[cfg(feature = "shm")]
    Shm(ShmConnecting),
    /// Verbs.
    #[cfg(feature = "verbs")]
    Verbs(VerbsConnecting),
}

impl Connecting for AnyConnecting {
    type Link = AnyLink;

    fn poll(&mut self, timeout: Duration) -> Option<Result<AnyLink, ConnectError>> {
        match self {
            #[cfg(feature = "shm")]
            Self::Shm(connecting) => connecting.poll(timeout).map(|outcome| outcome.map(AnyLink::Shm)),
            #[cfg(feature = "verbs")]
            Self::Verbs(connecting) => connecting.poll(timeout).map(|outcome| outcome.map(AnyLink::Verbs)),
        }
    }
}
