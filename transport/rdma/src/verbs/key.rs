//! The name of an open device.

use std::ptr::NonNull;

use crate::sys;

/// Names a device of this process as long as a [`Context`](crate::verbs::Context) of it lives; another one may have the name afterwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceKey(usize);

impl DeviceKey {
    pub(crate) fn of(raw: NonNull<sys::ibv_context>) -> Self {
        Self(raw.as_ptr().addr())
    }

    /// The number that names it to the kernel's epoll.
    pub(crate) fn number(self) -> u64 {
        self.0 as u64
    }

    /// The device with this number, for tests that have none.
    #[doc(hidden)]
    pub const fn made_up(number: usize) -> Self {
        Self(number)
    }
}
