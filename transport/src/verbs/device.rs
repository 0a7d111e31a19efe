//! A device as the CM opened it: what it can do, and its protection domain.
//!
//! ```text
//!  Context (the CM's; kept open by a device list)
//!  ├─ Pd      one for each port and device       ◄─ Mr, queue pairs
//!  └─ Cq      one or more for each port and device ◄─ queue pairs
//! ```
//! A child holds an `Arc` of its parents, so it is always destroyed first.

use std::{ffi::CStr, mem::MaybeUninit, ptr::NonNull, sync::Arc};

use crate::{Capabilities, PortError, verbs::sys};

/// A device context. librdmacm owns it; the device list that we hold keeps it from being closed.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<sys::ibv_context>,
    list: NonNull<*mut sys::ibv_context>,
}

// SAFETY: verbs contexts may be used from any thread (ibv_open_device(3)); we keep no thread-bound state with it.
unsafe impl Send for Context {}
// SAFETY: as above; libibverbs locks inside.
unsafe impl Sync for Context {}

impl Context {
    /// The context behind an id that is bound to a device.
    ///
    /// # Safety
    /// `raw` is the `verbs` of a live `rdma_cm_id`.
    pub(crate) unsafe fn of(raw: NonNull<sys::ibv_context>) -> Result<Arc<Self>, PortError> {
        let list = device_list()?.ok_or_else(no_device)?;
        Ok(Arc::new(Self { raw, list }))
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// The descriptor on which asynchronous events arrive.
    pub(crate) fn async_fd(&self) -> i32 {
        // SAFETY: the context is open while the list is held; the field never changes.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    /// `rxe0`.
    pub(crate) fn name(&self) -> String {
        // SAFETY: open while we hold the list; `device` is set for as long.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: the device outlives its context.
        let name = unsafe { &(*device).name };
        // SAFETY: libibverbs terminates the array with a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    fn is_iwarp(&self) -> bool {
        // SAFETY: as in `name`.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: the device outlives its context.
        unsafe { (*device).transport_type == sys::ibv_transport_type::IBV_TRANSPORT_IWARP }
    }

    /// What the device says about itself.
    pub(crate) fn query(&self) -> Result<DeviceLimits, PortError> {
        let mut attributes = MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the place is as large as the call writes.
        let returned = unsafe { sys::ibv_query_device(self.raw(), attributes.as_mut_ptr()) };
        sys::verbs_result(returned).map_err(|errno| PortError::System { step: "ibv_query_device", errno })?;
        // SAFETY: the call succeeded and filled it; every field is an integer, so zeroes are valid too.
        let attributes = unsafe { attributes.assume_init() };
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        let depth = |value: i32| u8::try_from(positive(value).min(254)).unwrap_or(0);
        let iwarp = self.is_iwarp();
        Ok(DeviceLimits {
            iwarp,
            software: attributes.vendor_id == RXE_VENDOR,
            cq_entries: positive(attributes.max_cqe),
            qp_entries: positive(attributes.max_qp_wr),
            responder_resources: depth(attributes.max_qp_rd_atom),
            // Some drivers leave this one 0 although they can read.
            initiator_depth: depth(match attributes.max_qp_init_rd_atom {
                0 => attributes.max_qp_rd_atom,
                depth => depth,
            }),
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the list came from `rdma_get_devices` and is freed once, here.
        unsafe { sys::rdma_free_devices(self.list.as_ptr()) };
    }
}

/// rxe's vendor id (RXE_VENDOR_ID): an emulation that moves the bytes inside the post.
const RXE_VENDOR: u32 = 0x00ff_ffff;

/// What bounds our sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLimits {
    /// No write-with-immediate, the active side first, a READ's sink needs remote write.
    pub(crate) iwarp: bool,
    /// rxe.
    pub(crate) software: bool,
    /// Entries of a completion queue.
    pub(crate) cq_entries: u32,
    /// Entries of a send or receive queue.
    pub(crate) qp_entries: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl DeviceLimits {
    /// The capabilities of the contract, with the inline bytes a queue pair was granted.
    pub(crate) fn capabilities(&self, inline_bytes: u16) -> Capabilities {
        Capabilities {
            ring: !self.iwarp,
            credit_words: false,
            arrivals: true,
            bulk_in_place: false,
            transfers_in_post: self.software,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            inline_bytes,
            message_bytes: 1 << 23,
            timers: !self.iwarp,
        }
    }
}

/// Whether there is any device; the error says what to do.
pub(crate) fn require_device() -> Result<(), PortError> {
    let list = device_list()?.ok_or_else(no_device)?;
    // SAFETY: from `rdma_get_devices` just now, freed once.
    unsafe { sys::rdma_free_devices(list.as_ptr()) };
    Ok(())
}

/// Whether the libraries can be opened; the error says what to install.
pub(crate) fn require_libraries() -> Result<(), PortError> {
    sys::available().map_err(|why| PortError::Unavailable { provider: "verbs", why })
}

fn no_device() -> PortError {
    PortError::NoDevice { detail: "rdma_get_devices lists none".to_owned() }
}

type DeviceList = NonNull<*mut sys::ibv_context>;

/// `Ok(None)`: the list is empty.
fn device_list() -> Result<Option<DeviceList>, PortError> {
    require_libraries()?;
    let mut count = 0;
    // SAFETY: `count` is a place for one int.
    let list = unsafe { sys::rdma_get_devices(&raw mut count) };
    let list = sys::pointer_result(list).map_err(|errno| PortError::NoDevice {
        detail: format!("rdma_get_devices: {}", crate::error::errno_text(errno)),
    })?;
    if count > 0 {
        return Ok(Some(list));
    }
    // SAFETY: from `rdma_get_devices` just now, freed once.
    unsafe { sys::rdma_free_devices(list.as_ptr()) };
    Ok(None)
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    raw: NonNull<sys::ibv_pd>,
    _context: Arc<Context>,
}

// SAFETY: a protection domain is only named in calls that libibverbs and the kernel serialise.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, PortError> {
        // SAFETY: the context is open while we hold it.
        let raw = unsafe { sys::ibv_alloc_pd(context.raw()) };
        let raw =
            sys::pointer_result(raw).map_err(|errno| PortError::System { step: "ibv_alloc_pd", errno })?;
        Ok(Arc::new(Self { raw, _context: Arc::clone(context) }))
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: every MR holds an `Arc` of us and every queue pair's owner too, so nothing uses it any more.
        let returned = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_dealloc_pd failed: something still uses the protection domain");
        }
    }
}
