//! One provider over all that are compiled in: the address chooses, at run time.
//!
//! ```text
//!  Any ─ open_port ─► AnyPort ─┬─ ShmPort    shm://, mem://     index bits 31..30 = 0
//!                              └─ VerbsPort  rdma://                              = 1
//! ```
//! So public types need no provider parameter, and one poll thread serves shared memory and RDMA together. A call
//! on a connection costs a match on two bits; a poll visits only sub-ports that have connections. A provider that
//! could not be opened on this machine is remembered with its error, which later users of it get.

mod port;
mod used;

use std::{sync::Arc, time::Duration};

pub use port::AnyPort;

#[cfg(feature = "shm")]
use crate::shm::{Shm, ShmConnecting, ShmGate, ShmIncoming, ShmLink, ShmListener};
#[cfg(feature = "verbs")]
use crate::verbs::{Verbs, VerbsConnecting, VerbsGate, VerbsIncoming, VerbsLink, VerbsListener};
use crate::{
    AcceptError, Address, ConnId, ConnectError, ConnectOptions, Connecting, Exposed, Gate, Hello, Incoming,
    ListenError, ListenOptions, Listener, Loan, LoanError, MemoryNode, NotNear, PoolMemory, PortConfig,
    PortError, Provider, Refusal, RejectReason, SharedState, UserBytes, UserMemory,
};

/// Shared memory's number in a [`ConnId`].
#[cfg(feature = "shm")]
const SHM: usize = 0;
/// Verbs' number.
#[cfg(feature = "verbs")]
const VERBS: usize = 1;
/// Room for all numbers.
const PROVIDERS: usize = ConnId::POOLS;

/// Which provider a connection belongs to.
const fn number(conn: ConnId) -> usize {
    conn.pool()
}

/// The connection as its provider knows it.
const fn inner(conn: ConnId) -> ConnId {
    ConnId::new(conn.place(), conn.generation())
}

/// The connection as the caller knows it.
const fn outer(number: usize, conn: ConnId) -> ConnId {
    conn.in_pool(number)
}

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

/// What one provider has to offer, or why it has nothing.
type Have<T> = Result<T, PortError>;

/// A configuration that no provider takes is an error at once; one that some take is not.
fn some_opened(gates: &Gates) -> Result<(), PortError> {
    let mut first = None;
    #[cfg(feature = "shm")]
    match &gates.shm {
        Ok(_) => return Ok(()),
        Err(error) => first = first.or_else(|| Some(error.clone())),
    }
    #[cfg(feature = "verbs")]
    match &gates.verbs {
        Ok(_) => return Ok(()),
        Err(error) => first = prefer(first, error),
    }
    first.map_or(Ok(()), Err)
}

/// What was tried says more than what was not asked for.
#[cfg(feature = "verbs")]
fn prefer(first: Option<PortError>, error: &PortError) -> Option<PortError> {
    match first {
        Some(PortError::NotOpened { .. }) | None => Some(error.clone()),
        some => some,
    }
}

fn not_opened(provider: &'static str) -> PortError {
    PortError::NotOpened { provider }
}

/// All compiled-in providers as one; see [`Provider`].
#[derive(Clone, Debug)]
pub struct Any {
    #[cfg(feature = "shm")]
    shm: Have<Shm>,
    #[cfg(feature = "verbs")]
    verbs: Have<Verbs>,
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
        Self {
            #[cfg(feature = "shm")]
            shm: if config.shm { Ok(Shm) } else { Err(not_opened("shm")) },
            #[cfg(feature = "verbs")]
            verbs: if config.verbs { Ok(Verbs::new()) } else { Err(not_opened("verbs")) },
        }
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
    };
    PortError::NotBuilt { provider, feature: provider }
}

impl Provider for Any {
    type Port = AnyPort;
    type Gate = AnyGate;
    type Link = AnyLink;
    type Listener = AnyListener;
    type Connecting = AnyConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<AnyPort, PortError> {
        AnyPort::open(self, config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<AnyListener, ListenError> {
        match address {
            #[cfg(feature = "shm")]
            Address::Shm { .. } | Address::Mem { .. } => {
                Ok(AnyListener::Shm(have(&self.shm)?.listen(address, options)?))
            }
            #[cfg(feature = "verbs")]
            Address::Rdma { .. } => Ok(AnyListener::Verbs(have(&self.verbs)?.listen(address, options)?)),
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
                let connecting = have(&self.shm)?.connect(address, have(&gates.shm)?, options)?;
                Ok(AnyConnecting::Shm(connecting))
            }
            #[cfg(feature = "verbs")]
            Address::Rdma { .. } => {
                let connecting = have(&self.verbs)?.connect(address, have(&gates.verbs)?, options)?;
                Ok(AnyConnecting::Verbs(connecting))
            }
            #[cfg(not(all(feature = "shm", feature = "verbs")))]
            other => Err(not_built(other).into()),
        }
    }
}

fn have<T>(had: &Have<T>) -> Result<&T, PortError> {
    had.as_ref().map_err(Clone::clone)
}

/// The gates of an [`AnyPort`]'s sub-ports; see [`Gate`].
#[derive(Clone, Debug)]
pub struct AnyGate {
    gates: Arc<Gates>,
}

#[derive(Debug)]
struct Gates {
    #[cfg(feature = "shm")]
    shm: Have<ShmGate>,
    #[cfg(feature = "verbs")]
    verbs: Have<VerbsGate>,
}

impl Gate for AnyGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        let (gates, id) = (&self.gates, inner(conn));
        match number(conn) {
            #[cfg(feature = "shm")]
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed)?.allocate(id, bytes),
            #[cfg(feature = "verbs")]
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed)?.allocate(id, bytes),
            _ => Err(LoanError::Closed),
        }
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        let (gates, id) = (&self.gates, inner(conn));
        match number(conn) {
            #[cfg(feature = "shm")]
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed)?.lend(id, bytes),
            #[cfg(feature = "verbs")]
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed)?.lend(id, bytes),
            _ => Err(LoanError::Closed),
        }
    }

    fn memory_node(&self) -> MemoryNode {
        // One thread opened them all.
        #[cfg(feature = "shm")]
        if let Ok(gate) = &self.gates.shm {
            return gate.memory_node();
        }
        #[cfg(feature = "verbs")]
        if let Ok(gate) = &self.gates.verbs {
            return gate.memory_node();
        }
        MemoryNode::Anywhere { why: NotNear::Modelled }
    }

    fn user_memory(&self) -> UserMemory {
        let mut sum = UserMemory::default();
        #[cfg(feature = "shm")]
        self.gates.shm.iter().for_each(|gate| sum = sum.and(gate.user_memory()));
        #[cfg(feature = "verbs")]
        self.gates.verbs.iter().for_each(|gate| sum = sum.and(gate.user_memory()));
        sum
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        let (gates, id) = (&self.gates, inner(conn));
        match number(conn) {
            #[cfg(feature = "shm")]
            SHM => gates.shm.as_ref().map_err(|_| LoanError::Closed)?.expose(id, bytes),
            #[cfg(feature = "verbs")]
            VERBS => gates.verbs.as_ref().map_err(|_| LoanError::Closed)?.expose(id, bytes),
            _ => Err(LoanError::Closed),
        }
    }

    fn shared_receives(&self) -> Vec<SharedState> {
        #[allow(unused_mut, reason = "verbs alone has any")]
        let mut shared = Vec::new();
        #[cfg(feature = "verbs")]
        shared.extend(self.gates.verbs.iter().flat_map(Gate::shared_receives));
        shared
    }

    fn memory(&self) -> Vec<PoolMemory> {
        #[allow(unused_mut, reason = "without a provider there is none")]
        let mut memory = Vec::new();
        #[cfg(feature = "shm")]
        memory.extend(self.gates.shm.iter().flat_map(Gate::memory));
        #[cfg(feature = "verbs")]
        memory.extend(self.gates.verbs.iter().flat_map(Gate::memory));
        memory
    }
}

/// An established connection of some provider.
#[derive(Debug)]
pub enum AnyLink {
    /// Shared memory.
    #[cfg(feature = "shm")]
    Shm(ShmLink),
    /// Verbs.
    #[cfg(feature = "verbs")]
    Verbs(VerbsLink),
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
