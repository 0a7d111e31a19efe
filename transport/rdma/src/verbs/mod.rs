//! Devices and their objects.

pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod events;
pub(crate) mod lists;
pub(crate) mod mr;
pub(crate) mod qp;
pub(crate) mod srq;

pub use context::{
    Context, DeviceKey, DeviceLimits, GidEntry, GidType, Pd, is_present, require_device, require_libraries,
    set_leaving,
};
pub use cq::{Completion, Cq, Harvest, POLL_BURST, STATUS_FLUSHED};
pub use events::{AsyncEvent, DeviceEvent};
pub use lists::{OneRequest, RecvList, SendList};
pub use mr::{Mr, Rights, registrations};
pub use qp::{Flags, LocalBytes, PostError, Qp, RemoteBytes};
pub use srq::Srq;
