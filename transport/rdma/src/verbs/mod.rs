//! Devices and their objects.

pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod events;
pub(crate) mod gather;
pub(crate) mod held;
pub(crate) mod key;
pub(crate) mod lists;
pub(crate) mod mr;
pub(crate) mod qp;
pub(crate) mod receiver;
pub(crate) mod shield;
pub(crate) mod srq;

pub use context::{Context, DeviceLimits, GidEntry, GidType, Pd};
pub use cq::{CQ_ENTRIES, Completion, Cq, Harvest, POLL_BURST, STATUS_FLUSHED};
pub use events::{AsyncEvent, DeviceEvent, DeviceNews};
pub use key::DeviceKey;
pub use lists::{OneRequest, RecvList, SendList};
pub use mr::{Mr, Rights, registrations};
pub use qp::{Flags, LocalBytes, PostError, Qp, RemoteBytes};
pub use receiver::DeviceEvents;
pub use srq::Srq;
