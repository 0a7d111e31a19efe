//! The event channel: one reader, never blocking.

use std::{os::fd::BorrowedFd, ptr::NonNull, sync::Arc};

use rustix::fs::OFlags;

use crate::{
    error::{DeviceError, require_libraries, system},
    sys,
};

/// Where the CM reports (`rdma_create_event_channel(3)`).
#[derive(Debug)]
pub struct EventChannel {
    raw: NonNull<sys::rdma_event_channel>,
}

// SAFETY: the channel is a descriptor and the library locks around it; ids on any thread may hold it alive.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens one.
    ///
    /// # Errors
    /// [`DeviceError::NoDevice`] when the kernel has no RDMA CM.
    pub fn new() -> Result<Arc<Self>, DeviceError> {
        require_libraries()?;
        // SAFETY: takes nothing.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let raw = sys::pointer_result(raw).map_err(|errno| match errno {
            // The kernel has no RDMA CM: no /dev/infiniband/rdma_cm.
            libc::ENODEV | libc::ENOENT => DeviceError::NoDevice {
                detail: "the kernel has no RDMA CM; load it with `modprobe rdma_ucm`".to_owned(),
            },
            errno => system("rdma_create_event_channel")(errno),
        })?;
        let channel = Self { raw };
        rustix::fs::fcntl_setfl(channel.fd(), OFlags::NONBLOCK)
            .map_err(|error| system("fcntl")(error.raw_os_error()))?;
        Ok(Arc::new(channel))
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_event_channel {
        self.raw.as_ptr()
    }

    /// Readable when an event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live while we are.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: open until our drop.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The next event as `copy` makes it from the library's, which is acked then: `rdma_destroy_id` waits for unacked
    /// events. `copy` is the only one that sees it, so what it holds (a request's id) may be taken over.
    ///
    /// # Errors
    /// errno, when the channel itself is broken.
    pub(crate) fn take<T>(&self, copy: impl FnOnce(&sys::rdma_cm_event) -> T) -> Result<Option<T>, i32> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is live, and `event` is a place for one pointer.
        let returned = unsafe { sys::rdma_get_cm_event(self.raw(), &raw mut event) };
        match sys::cm_result(returned) {
            Ok(()) => {}
            Err(libc::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let event = NonNull::new(event).ok_or(libc::EINVAL)?;
        // SAFETY: the call succeeded, so this is an event that nobody acked yet: live until the ack below.
        let copied = copy(unsafe { event.as_ref() });
        // SAFETY: acked once, and not used afterwards.
        let returned = unsafe { sys::rdma_ack_cm_event(event.as_ptr()) };
        if let Err(errno) = sys::cm_result(returned) {
            tracing::warn!(errno, "rdma_ack_cm_event failed");
        }
        Ok(Some(copied))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id holds an `Arc` of us, and every event was acked when it was copied.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
