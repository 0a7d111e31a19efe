//! One provider over all that are compiled in: the address chooses, at run time.
//!
//! ```text
//!  Any ─ open_port ─► AnyPort ─┬─ ShmPort    shm://, mem://     index bits 31..30 = 0
//!                              ├─ VerbsPort  rdma://                              = 1
//!                              └─ TcpPort    tcp://                               = 2
//! ```
//! So public types need no provider parameter, and one poll thread serves them together. A call on a connection costs a
//! match on two bits; a poll visits only sub-ports that have connections. One whose connections are idle is looked at
//! now and then, so that it costs the others nothing. A provider that could not be opened on this machine is remembered
//! with its error, which later users of it get.

#[cfg(not(all(feature = "shm", feature = "tcp", feature = "verbs")))]
mod absent;
mod gate;
mod have;
mod port;
#[cfg(all(test, feature = "shm", feature = "tcp", not(loom)))]
mod tests;
mod used;

use std::{sync::Arc, time::Duration};

#[cfg(not(all(feature = "shm", feature = "tcp", feature = "verbs")))]
pub use absent::Absent;
pub use gate::AnyGate;
pub use have::AnyConfig;
pub use port::{AnyLink, AnyPort};

use crate::{
    AcceptError, Address, ConnectError, ConnectOptions, Connecting, Hello, Incoming, ListenError,
    ListenOptions, Listener, PortConfig, PortError, Provider, Refusal,
    any::have::{Providers, Shm, Tcp, Verbs, have},
    rejected::Rejected,
};

/// A match on whichever enum of this module, with one body for all its arms; `wrap` makes the same variant of another.
macro_rules! each {
    ($value:expr, $arm:ident => $body:expr) => {
        match $value {
            Self::Shm($arm) => $body,
            Self::Verbs($arm) => $body,
            Self::Tcp($arm) => $body,
        }
    };
    ($value:expr, $arm:ident, $other:ident::$wrap:ident => $body:expr) => {
        match $value {
            Self::Shm($arm) => {
                let $wrap = $other::Shm;
                $body
            }
            Self::Verbs($arm) => {
                let $wrap = $other::Verbs;
                $body
            }
            Self::Tcp($arm) => {
                let $wrap = $other::Tcp;
                $body
            }
        }
    };
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
        Self { providers: Providers::new(config) }
    }
}

impl Default for Any {
    fn default() -> Self {
        Self::new()
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
        let Providers { shm, verbs, tcp } = &self.providers;
        Ok(match address {
            Address::Shm { .. } | Address::Mem { .. } => {
                AnyListener::Shm(have(shm)?.listen(address, options)?)
            }
            Address::Rdma { .. } => AnyListener::Verbs(have(verbs)?.listen(address, options)?),
            Address::Tcp { .. } => AnyListener::Tcp(have(tcp)?.listen(address, options)?),
        })
    }

    fn connect(
        &self,
        address: &Address,
        gate: &AnyGate,
        options: &ConnectOptions,
    ) -> Result<AnyConnecting, ConnectError> {
        let (Providers { shm, verbs, tcp }, gates) = (&self.providers, &gate.gates);
        Ok(match address {
            Address::Shm { .. } | Address::Mem { .. } => {
                AnyConnecting::Shm(have(shm)?.connect(address, have(&gates.shm)?, options)?)
            }
            Address::Rdma { .. } => {
                AnyConnecting::Verbs(have(verbs)?.connect(address, have(&gates.verbs)?, options)?)
            }
            Address::Tcp { .. } => {
                AnyConnecting::Tcp(have(tcp)?.connect(address, have(&gates.tcp)?, options)?)
            }
        })
    }
}

/// A listener of some provider; see [`Listener`].
#[allow(clippy::large_enum_variant, reason = "a process has few of them")]
#[derive(Debug)]
pub enum AnyListener {
    /// Shared memory.
    Shm(<Shm as Provider>::Listener),
    /// Verbs.
    Verbs(<Verbs as Provider>::Listener),
    /// TCP.
    Tcp(<Tcp as Provider>::Listener),
}

impl Listener for AnyListener {
    type Gate = AnyGate;
    type Link = AnyLink;
    type Incoming = AnyIncoming;

    fn address(&self) -> Address {
        each!(self, listener => listener.address())
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<AnyIncoming>, ListenError> {
        Ok(each!(self, listener, AnyIncoming::wrap => listener.accept(timeout)?.map(wrap)))
    }

    fn rejections(&self) -> &Arc<Rejected> {
        each!(self, listener => listener.rejections())
    }
}

/// A request of some provider; see [`Incoming`].
#[derive(Debug)]
pub enum AnyIncoming {
    /// Shared memory.
    Shm(IncomingOf<Shm>),
    /// Verbs.
    Verbs(IncomingOf<Verbs>),
    /// TCP.
    Tcp(IncomingOf<Tcp>),
}

type IncomingOf<P> = <<P as Provider>::Listener as Listener>::Incoming;

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
            Self::Shm(incoming) => AnyLink::Shm(incoming.accept(have(&gates.shm)?)?),
            Self::Verbs(incoming) => AnyLink::Verbs(incoming.accept(have(&gates.verbs)?)?),
            Self::Tcp(incoming) => AnyLink::Tcp(incoming.accept(have(&gates.tcp)?)?),
        })
    }

    fn accept_then(self, gate: &AnyGate, then: impl FnOnce(Result<AnyLink, AcceptError>) + Send + 'static) {
        match self {
            Self::Verbs(incoming) => match have(&gate.gates.verbs) {
                Ok(gate) => incoming.accept_then(gate, |link| then(link.map(AnyLink::Verbs))),
                Err(error) => then(Err(error.into())),
            },
            other => then(other.accept(gate)),
        }
    }

    fn refuse(self, refusal: Refusal) {
        each!(self, incoming => incoming.refuse(refusal));
    }
}

/// An attempt through some provider; see [`Connecting`].
#[allow(clippy::large_enum_variant, reason = "a process has few of them")]
#[derive(Debug)]
pub enum AnyConnecting {
    /// Shared memory.
    Shm(<Shm as Provider>::Connecting),
    /// Verbs.
    Verbs(<Verbs as Provider>::Connecting),
    /// TCP.
    Tcp(<Tcp as Provider>::Connecting),
}

impl Connecting for AnyConnecting {
    type Link = AnyLink;

    fn poll(&mut self, timeout: Duration) -> Option<Result<AnyLink, ConnectError>> {
        each!(self, connecting, AnyLink::wrap => connecting.poll(timeout).map(|outcome| outcome.map(wrap)))
    }
}
