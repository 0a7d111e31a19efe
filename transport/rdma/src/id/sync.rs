//! Ids without an event channel: each call returns when its event has come.

use std::{
    ops::{Deref, DerefMut},
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use crate::{
    id::{channel::EventChannel, cm_id::CmId, event::CmEvent, space::PortSpace},
    sys,
    wait::{Deadline, readable},
};

/// An id without an event channel: `rdma_create_id(3)` with NULL, or `rdma_create_ep(3)`.
///
/// The calls of [`CmId`] block on it until their event has come, and fail with the event's error. Only
/// [`SyncId::request`] has a deadline; for the others, move the id to a channel with [`SyncId::into_channel`].
#[derive(Debug)]
pub struct SyncId(CmId);

impl Deref for SyncId {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.0
    }
}

impl DerefMut for SyncId {
    fn deref_mut(&mut self) -> &mut CmId {
        &mut self.0
    }
}

impl SyncId {
    /// Makes an id in a port space.
    ///
    /// # Errors
    /// errno; ENODEV when the kernel has no RDMA CM.
    pub fn new(port_space: PortSpace) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        let no_channel = std::ptr::null_mut();
        // SAFETY: without a channel the library makes one of its own; `raw` is a place for one pointer.
        let returned =
            unsafe { sys::rdma_create_id(no_channel, &raw mut raw, std::ptr::null_mut(), port_space.raw()) };
        sys::cm_result(returned)?;
        Self::adopt(raw)
    }

    /// Makes an id that is bound, or has its address and route, as `result` says (`rdma_create_ep(3)`).
    ///
    /// # Safety
    /// `result` is as `rdma_getaddrinfo(3)` makes them, and lives during the call.
    pub(crate) unsafe fn create_ep(result: *mut sys::rdma_addrinfo) -> Result<Self, i32> {
        let (mut raw, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the caller's promise; `raw` is a place for one pointer; without attributes no queue pair is made.
        let returned = unsafe { sys::rdma_create_ep(&raw mut raw, result, none, std::ptr::null_mut()) };
        sys::cm_result(returned)?;
        Self::adopt(raw)
    }

    fn adopt(raw: *mut sys::rdma_cm_id) -> Result<Self, i32> {
        let raw = NonNull::new(raw).ok_or(libc::EINVAL)?;
        // SAFETY: the library just made this id, without a channel of ours, and nobody owns it yet.
        Ok(Self(unsafe { CmId::adopt(raw, None) }))
    }

    /// Takes an id from its channel, with its pending events (`rdma_migrate_id(3)` to NULL).
    ///
    /// # Errors
    /// errno; the id is destroyed then.
    pub fn from_channel(mut id: CmId) -> Result<Self, i32> {
        id.move_to(None)?;
        Ok(Self(id))
    }

    /// Moves the id to a channel (`rdma_migrate_id(3)`): from there on its calls return at once.
    ///
    /// # Errors
    /// errno; the id is destroyed then.
    pub fn into_channel(mut self, channel: &Arc<EventChannel>) -> Result<CmId, i32> {
        self.0.move_to(Some(channel))?;
        Ok(self.0)
    }

    /// The event that the last call waited for, which the library keeps until the next one.
    #[must_use]
    pub fn event(&self) -> Option<CmEvent> {
        // SAFETY: the id is live; only calls on it change the field, and it is borrowed.
        let event = NonNull::new(unsafe { (*self.0.raw()).event })?;
        // SAFETY: the library acks the event at the next call on the id, which is borrowed until this returns.
        let event = unsafe { event.as_ref() };
        // SAFETY: as above; a request's id has its owner already, so it is not adopted.
        Some(unsafe { CmEvent::copy(event, None) })
    }

    /// The next request of an id that listens (`rdma_get_request(3)`), as an id without a channel; [`SyncId::event`] of
    /// that one says what was asked. `None` when none comes within `timeout`.
    ///
    /// # Errors
    /// errno; EINVAL for an event that is no request, such as the device's removal.
    pub fn request(&mut self, timeout: Duration) -> Result<Option<Self>, i32> {
        if !readable(&[self.fd()], &Deadline::after(timeout))? {
            return Ok(None);
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: the id is live, and `raw` is a place for one pointer.
        sys::cm_result(unsafe { sys::rdma_get_request(self.0.raw(), &raw mut raw) })?;
        Self::adopt(raw).map(Some)
    }

    /// Readable when an event waits.
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the id is live, and has a channel of the library's.
        let channel = unsafe { (*self.0.raw()).channel };
        // SAFETY: that channel lives as long as the id.
        let fd = unsafe { (*channel).fd };
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}
