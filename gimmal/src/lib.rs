//! RPC and messaging between processes and hosts, over shared memory, TCP and RDMA, with one API.
//!
//! - **One API**: the URL decides whether a call goes through shared memory, TCP or RDMA.
//! - **Zero copy**: requests are read where they arrive, answers are written where they leave from.
//! - **Honest failures**: every failed call says whether its handler ran.
//!
//! ```
//! use gimmal::Cx;
//!
//! #[gimmal::service]
//! trait Hello {
//!     /// Greets.
//!     async fn hello(&self, cx: &Cx, name: String) -> String;
//! }
//!
//! struct Greeter;
//!
//! impl Hello for Greeter {
//!     async fn hello(&self, _: &Cx, name: String) -> String {
//!         format!("Hello, {name}!")
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = gimmal::serve("mem://hello", serve_hello(Greeter))?;
//! let client = HelloClient::new(gimmal::connect("mem://hello")?);
//! assert_eq!(client.hello("world".into()).wait()?, "Hello, world!"); // or `.await`, in any runtime
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! | URL | reaches | cargo feature |
//! |---|---|---|
//! | `shm://name`, `shm:///path` | processes of this host, through shared memory | `shm` (default) |
//! | `tcp://host:port` | any host, over TCP | `tcp` (default) |
//! | `tcp+tls://host:port` | any host, over TLS 1.3 | `tls` |
//! | `rdma://host:port` | other hosts: InfiniBand, RoCE, iWARP | `verbs` |
//! | `mem://name` | this process: unit tests | `shm` (default) |
//! | `gimmal://host:port` | any host, by the best of shared memory, RDMA and TCP | those of the ways |
//!
//! Start with [`guide::start`]: a two-process service with state, typed errors, a stream, a deadline, Ctrl-C and tests.
//! [`guide`] lists all chapters. Linux only.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod guide;

#[doc(hidden)]
pub use gimmal_rpc::__macro;
#[doc(inline)]
pub use gimmal_rpc::engine::transport::{Allow, Bulk, Instant, Key, Loan, UserBytes};
#[doc(inline)]
pub use gimmal_rpc::{
    Call, CallError, CallOptions, CancelToken, Channel, Client, ClientBuilder, Code, Config, ConnectError,
    Cx, Fate, Metadata, MetadataError, ReadError, Reconnect, ServeError, Server, ServerBuilder, Service,
    Shape, Sink, Stats, Status, Stream, StreamError, TransportError, WithLoan, service,
};

pub mod auth {
    //! The identity of the other end, and whether it may connect. A shared [`Key`](crate::Key), [`Allow`](crate::Allow) and
    //! the certificates of [`Tls`] decide
    //! before a connection is made; [`ServerBuilder::admit`](crate::ServerBuilder::admit) can refuse it.

    #[doc(inline)]
    pub use gimmal_rpc::engine::transport::{
        Certificate, Credentials, Hello, KeyError, Refusal, RejectReason, Secured, Tls,
    };
    #[doc(inline)]
    pub use gimmal_rpc::{Identity, Origin};
}

pub mod balance {
    //! A channel over several servers.

    #[doc(inline)]
    pub use gimmal_rpc::balance::{
        Balanced, BalancedBuilder, Dns, LocalTask, Member, Pick, Resolver, Source,
    };
}

pub mod call {
    //! Kinds of calls, and the response that a call ends with when it is asked for more than its value.

    #[doc(inline)]
    pub use gimmal_rpc::response::{ResponseCall, TypedResponse};
    #[doc(inline)]
    pub use gimmal_rpc::{RawCall, StreamCall};
}

pub mod codec {
    //! How arguments, responses and items are written, and how a response is borrowed from its bytes.

    #[doc(inline)]
    #[cfg(feature = "bincode")]
    pub use gimmal_rpc::Bincode;
    #[doc(inline)]
    #[cfg(feature = "evolve")]
    pub use gimmal_rpc::MessagePack;
    #[doc(inline)]
    pub use gimmal_rpc::codec::{Codec, Decode, DecodeError, Encode, EncodeError, Postcard, Raw};
    #[doc(inline)]
    pub use gimmal_rpc::lend::Lend;
    #[doc(inline)]
    #[cfg(feature = "zerocopy")]
    pub use gimmal_rpc::{InPlace, Zerocopy};
}

pub mod config {
    //! What [`Config`](crate::Config) is made of below the RPC layer: workers, rings, connecting and listening.

    #[doc(inline)]
    pub use gimmal_rpc::engine::transport::{
        ConnectOptions, DeviceChoice, ListenOptions, PortConfig, Receives, SharedReceives, Trust,
    };
    #[doc(inline)]
    pub use gimmal_rpc::engine::{Config as EngineConfig, Cpu, Cpus, Idle, NumaNode, Placement};
}

pub mod error {
    //! What the errors at the root are made of: for a match on the exact cause.

    #[doc(inline)]
    pub use gimmal_rpc::engine::transport::{
        AccessError, AddressError, BulkError, CloseReason, ConnectError as ConnectCause, ListenError,
        LoanError, PortError, TlsError, Violation,
    };
    #[doc(inline)]
    pub use gimmal_rpc::engine::{ConfigError, OpenError, PlaceError, StartError};
    #[doc(inline)]
    pub use gimmal_rpc::error::Mismatch;
}

pub mod info {
    //! What a connection, a method and a port tell about themselves.

    #[doc(inline)]
    pub use gimmal_rpc::engine::transport::{
        Address, Capabilities, Clamp, DataPath, Negotiated, PortCounters, Term, UserMemory, Via,
    };
    #[doc(inline)]
    pub use gimmal_rpc::engine::worker::duty::DutySnapshot;
    #[doc(inline)]
    pub use gimmal_rpc::{Method, MethodKind};
}

pub mod layer {
    //! Layers: channels around channels for clients, services around services for servers.

    #[doc(inline)]
    pub use gimmal_rpc::layer::{
        Authorize, Ended, Guarded, Hedge, Layer, Layered, Limit, Log, MethodMetrics, Metrics, Rate, Retry,
        RetryPolicy, ServerLayer, Timeout, WithToken, tokens,
    };
    #[doc(inline)]
    pub use gimmal_rpc::response::{Body, Failure, Response, ResponseStatus};
}

pub mod local {
    //! Clients and servers on the calling thread: no worker thread, the lowest latency. None of them is `Send`.

    #[doc(inline)]
    pub use gimmal_rpc::local::{Dialling, Driver, Gone, LocalCall, LocalClient, Running, RunningUntil};
    #[doc(inline)]
    pub use gimmal_rpc::{Answered, LocalServer, Pipeline};
}

pub mod memory {
    //! One-sided access: a handler exposes memory, its caller reads and changes it while no handler runs. See the guide's
    //! chapter [`data`](crate::guide::data#one-sided-access).

    #[doc(inline)]
    pub use gimmal_rpc::engine::transport::{Exposed, Words};
    #[doc(inline)]
    pub use gimmal_rpc::memory::{Access, Accessor, RemoteMemory};
}

pub mod metadata {
    //! Keys of metadata that gimmal itself reads, and its limit.

    #[doc(inline)]
    pub use gimmal_rpc::metadata::{AUTHORIZATION, METADATA_BYTES_MAX, TRACEPARENT, TRACESTATE};
}

pub mod raw {
    //! Methods without a codec: a request is read where it landed, a response is written where it leaves from.

    #[doc(inline)]
    pub use gimmal_rpc::{ResponseWriter, response_writer::RawOutcome};
}

pub mod reflect {
    //! What every server tells about itself, as a service.

    #[doc(inline)]
    pub use gimmal_rpc::reflect::{
        ConnectionInfo, Delivery, Health, MethodInfo, Reflection, ReflectionClient, ReflectionServer,
        serve_reflection,
    };
}

pub mod shape {
    //! Shapes of types, which both sides of a call compare, for codecs and for programs that read reflection.
    //! [`Shape`](crate::Shape) is the derive.

    #[doc(inline)]
    pub use gimmal_rpc::shape::{
        Contents, Describe, Describing, Field, Form, Schema, Shapes, Type, TypeRef, Variant,
    };
}

pub mod runtime {
    //! What a server needs of an async runtime that its handlers use, and what it tells them. `tokio::Tokio` (feature
    //! `tokio`) is such a runtime.

    #[doc(inline)]
    pub use gimmal_rpc::{
        Draining,
        engine::Alarm,
        layer::Spawned,
        runtime::{BoxFuture, Runtime},
    };
}

pub mod topic {
    //! Publish and subscribe.

    #[doc(inline)]
    pub use gimmal_rpc::topic::{Behind, Fed, Published, Topic};
}

#[cfg(feature = "tokio")]
pub mod tokio {
    //! Tokio for [handlers](crate::guide::tokio), and clients on a runtime of the user's.

    mod client;
    mod runtime;
    mod server;

    pub use self::{
        client::{LocalCall, LocalClient, RunUntil},
        runtime::Tokio,
        server::serve_until,
    };
}

#[cfg(feature = "tower")]
pub mod tower {
    //! Raw calls as a service of `tower`, our layers as its layers.

    #[doc(inline)]
    pub use gimmal_rpc::layer::tower::{Around, Calls, Request};
}

/// Connects to a server that is already listening, with the default configuration. Blocks the calling thread, at most for the connect
/// and handshake time-outs of each way: 7 s by default. In async code use [`Client::connect_async`].
///
/// # Errors
/// A variant of [`ConnectError`] for each cause: a malformed URL, no server, a refusal, no thread.
pub fn connect(url: &str) -> Result<Client, ConnectError> {
    Client::connect(url)
}

/// Serves one service with the default configuration, on a worker thread of its own. Dropping the [`Server`] stops it.
/// [`Server::builder`] takes more services and settings. Blocks while a name is looked up.
///
/// # Errors
/// A variant of [`ServeError`] for each cause: a malformed URL, an address that is in use, no thread.
pub fn serve(url: &str, service: impl Service) -> Result<Server, ServeError> {
    Server::builder().service(service).listen(url)
}
