//! The RDMA CM's objects: one event channel, ids, events copied out.
//!
//! ```text
//!  EventChannel ◄─Arc─ CmId ─ its queue pair       drop: queue pair, id, then the channel
//!       └─ next() ─► CmEvent (copied out and acked before anybody sees it)
//! ```

pub(crate) mod address;
pub(crate) mod channel;
pub(crate) mod cm_id;
pub(crate) mod event;
pub(crate) mod params;
pub(crate) mod path;
pub mod reject;
pub(crate) mod space;

pub use address::{CmAddress, IbAddress};
pub use channel::EventChannel;
pub use cm_id::{CmId, ConnectCall, IdInfo, IdKey, IdOption};
pub use event::{CmEvent, EventKind};
pub use params::{
    ACCEPT_PRIVATE_BYTES, CONNECT_PRIVATE_BYTES, ConnectParams, QpRequest, REJECT_PRIVATE_BYTES,
};
pub use path::PathData;
pub use space::{PortSpace, QpType};
