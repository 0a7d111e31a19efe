//! Connecting two peers, registered memory, moving bytes.
//!
//! Two planes. The **control side** ([`Provider`], [`Listener`], [`Incoming`], [`Connecting`]) makes
//! connections and may block; the **data side** ([`Port`]) belongs to one poll thread, never blocks and
//! never allocates. What one says to the other is plain data: [`Negotiated`], [`Event`], [`CloseReason`].
//!
//! ```text
//!            control thread                             poll thread (a worker)
//!  listen ─► Listener ─► Incoming ─accept─► Link ──adopt──► Port ─► ConnId
//!  connect ─► Connecting ─────────────────► Link ──adopt──►   compose · flush · next_run · poll · pull
//! ```
//!
//! The provider contract, its eight clauses and the cases that prove them: [`provider`] and
//! the crate `gimmal-testkit`. Nothing above this crate asks which provider it has; it reads [`Negotiated`].
//!
//! The RDMA CM and verbs by themselves, for peers that are not ours, are the crate `gimmal-rdma`.
//!
//! All `unsafe` of the workspace lives in that crate and here, in `mem`, `sync`, `shm`, `tcp`, `verbs` and `floor`.

#![deny(missing_docs)]
// What a provider left out would use: the models are built without any.
#![cfg_attr(not(all(feature = "shm", feature = "tcp")), allow(dead_code, unused_variables))]

#[cfg(not(target_os = "linux"))]
compile_error!("gimmal runs on Linux only: memfd seals, epoll and the RDMA CM are what it is built on");

pub mod address;
pub mod allow;
#[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
pub mod any;
pub mod batch;
pub mod config;
mod copy;
pub mod counters;
pub mod device_port;
pub mod error;
#[cfg(feature = "floor")]
pub mod floor;
pub mod frame;
#[cfg(any(feature = "shm", feature = "tcp"))]
mod goodbye;
pub mod hello;
pub mod id;
mod kernel;
pub mod key;
mod log_pace;
pub mod mem;
pub mod negotiated;
pub mod pack;
pub mod parts;
#[cfg(any(feature = "shm", feature = "tcp"))]
mod peer;
#[cfg(any(feature = "tcp", feature = "verbs"))]
mod pieces;
mod proof;
pub mod provider;
#[cfg(any(feature = "shm", feature = "verbs"))]
mod pulse;
#[cfg(any(feature = "shm", feature = "tcp"))]
mod reception;
pub mod refusal;
mod rejected;
mod share;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(any(feature = "shm", feature = "tcp"))]
mod strangers;
pub mod sync;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod time;
pub mod tls;
pub mod trust;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use address::{Address, Via};
pub use allow::Allow;
#[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
pub use any::{Any, AnyConfig};
pub use batch::{Batch, Event, Limit, Look, Pulled};
pub use config::{ConnectOptions, ListenOptions, PortConfig, Receives, SharedReceives};
pub use copy::copy;
pub use counters::{PortCounters, SharedState};
pub use device_port::{DeviceChoice, DevicePort, Fabric, Gid};
pub use error::{
    AcceptError, AccessError, AddressError, BulkError, CloseReason, ConnectError, ListenError, LoanError,
    PortError, Refused, RejectReason, Violation,
};
pub use frame::{FrameWord, Tag};
pub use hello::Hello;
pub use id::{ConnId, Credit, Position};
pub use key::{Key, KeyError};
pub use mem::{
    Accessed, Bulk, Exposed, Holder, Lent, Loan, MemoryNode, NotHuge, NotNear, Offer, OneSided, Pages,
    PoolMemory, REMOTE_BYTES, Remote, Run, RxBuf, RxFrame, UserBytes, UserMemory, Words,
};
pub use negotiated::{Capabilities, Clamp, Credentials, DataPath, Negotiated, Term};
pub use provider::{
    Chain, Connecting, CreditView, Gate, Incoming, Listener, Port, Provider, Pulse, Staged, Transfer, Wait,
};
pub use refusal::Refusal;
pub use sync::{doorbell::Waker, thread};
pub use time::{Instant, Time};
pub use tls::{Certificate, Secured, Tls, error::TlsError};
pub use trust::Trust;
