//! Connections: the active and the passive side of the RDMA CM, typed, with deadlines.
//!
//! Everything blocks, at most as long as the caller says. Each object owns its event channel, and destroys what it
//! has in the right order when it is dropped.
//!
//! ```text
//!  active    Resolve ─► Target ─► Draft ─► Resolved ─► Routed ─► Dialing ─connect─► Connection     (or dial())
//!  passive   Draft ─listen─► Listener ─► Request ─endpoint─► Answering ─accept─► Connection
//!                                           └─ reject ◄────────────┘
//! ```
//!
//! Manual pages: `rdma_cm(7)`, `rdma_getaddrinfo(3)`, `rdma_connect(3)`, `rdma_accept(3)`, `rdma_reject(3)`,
//! `rdma_set_option(3)`, `rdma_init_qp_attr(3)`, `rdma_establish(3)`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use gimmal_rdma::cm::{Access, ConnectParam, DialOptions, Resolve, dial};
//!
//! # fn main() -> Result<(), gimmal_rdma::cm::CmError> {
//! let targets = Resolve::to("server", 7471).run()?;
//! let (mut connection, inbox) = dial(&targets, &DialOptions::default(), &ConnectParam::default(), |endpoint| {
//!     let inbox = endpoint.add_buffer(4096, Access::Local)?;
//!     endpoint.post_receive(inbox.all(), 0)?;
//!     Ok(inbox)
//! })?;
//! println!("{}", connection.depths().initiator_depth);
//! let arrived = connection.completion(Duration::from_secs(1))?;
//! let mut bytes = vec![0; arrived.span.len()];
//! connection.read(inbox.all(), &mut bytes)?;
//! # Ok(())
//! # }
//! ```

mod active;
mod connection;
mod device;
mod ece;
mod endpoint;
mod ep;
mod error;
mod listener;
mod memory;
mod operation;
mod order;
mod params;
mod resolve;
mod route;
mod shared;
mod target;
mod transfer;
mod view;
mod wait;

pub use active::{DialOptions, Dialing, Draft, Resolved, Routed, dial};
pub use connection::{Connection, ConnectionEvent, Done};
pub use endpoint::{Endpoint, QpMaker, QpPlan};
pub use error::{CmError, Rejection};
pub use listener::{Answering, Listener, Request};
pub use memory::{Access, Buffer, RemoteBuffer, Span};
pub use operation::Operation;
pub use params::{
    AcceptData, AcceptParam, ConnParam, ConnectData, ConnectParam, Depth, Depths, DeviceDepths, GrantedDepth,
    RejectData, RetryCount,
};
pub use resolve::{Family, Resolve};
pub use route::{Route, route};
pub use shared::SharedReceives;
pub use target::Target;
pub use transfer::{SendFlags, Transfer};
pub use view::QpView;

pub use crate::id::{
    CmAddress, CmEvent, Ece, EventKind, IbAddress, IdInfo, PathData, PathRecord, PortSpace, QpType,
};
pub use crate::private_data::{PrivateData, TooLong};
