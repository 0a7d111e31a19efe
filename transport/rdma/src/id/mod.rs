//! The RDMA CM's objects: one event channel, ids, events copied out.
//!
//! ```text
//!  EventChannel ◄─Arc─ CmId ─ its queue pair       drop: queue pair, id, then the channel
//!       └─ next() ─► CmEvent (copied out and acked before anybody sees it)
//! ```

pub(crate) mod address;
pub(crate) mod channel;
pub(crate) mod cm_id;
pub(crate) mod ece;
pub(crate) mod event;
pub(crate) mod membership;
pub(crate) mod own_qp;
pub(crate) mod params;
pub(crate) mod path;
pub(crate) mod record;
pub mod reject;
pub(crate) mod space;
pub(crate) mod srq;
pub(crate) mod sync;

pub use address::{CmAddress, IbAddress};
pub use channel::EventChannel;
pub use cm_id::{Blocking, BlockingCall, CmId, IdInfo, IdKey, IdOption};
pub use ece::Ece;
pub use event::{CmEvent, DatagramPeer, EventKind};
pub use membership::Membership;
pub use own_qp::OwnQp;
pub use params::{
    ACCEPT_PRIVATE_BYTES, CONNECT_PRIVATE_BYTES, ConnectParams, QpRequest, REJECT_PRIVATE_BYTES,
};
pub use path::PathData;
pub use record::PathRecord;
pub use space::{PortSpace, QpType};
pub use srq::IdSrq;
pub use sync::SyncId;
