//! The RDMA CM's objects: one event channel, ids, events copied out, and what each event means in each state.
//!
//! ```text
//!  EventChannel ◄─Arc─ CmId ─ its queue pair       drop: queue pair, id, then the channel
//!       └─ next() ─► CmEvent (copied out and acked before anybody sees it)
//! ```

pub(crate) mod channel;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod raw_id;
pub(crate) mod reject;
pub(crate) mod table;

pub(crate) use channel::EventChannel;
pub(crate) use event::{CmEvent, EventKind};
pub(crate) use id::{CmId, ConnectCall, ConnectParams, IdKey, QpRequest};
