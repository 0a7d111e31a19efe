//! A device as the CM opened it: what it can do, and its protection domain.
//!
//! ```text
//!  Context (the CM's; kept open while one is used)
//!  ├─ Pd      one for each port and device       ◄─ Mr, queue pairs
//!  └─ Cq      one or more for each port and device ◄─ queue pairs
//! ```
//! A child holds an `Arc` of its parents, so it is always destroyed first.

use std::{ffi::CStr, net::Ipv6Addr, ptr::NonNull, sync::Arc};

use crate::{
    error::{DeviceError, require_libraries, system},
    sys,
    verbs::{held, key::DeviceKey},
};

/// A device context. librdmacm owns it, and does not close it while the device is held.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<sys::ibv_context>,
}

// SAFETY: verbs contexts may be used from any thread (ibv_open_device(3)); we keep no thread-bound state with it.
unsafe impl Send for Context {}
// SAFETY: as above; libibverbs locks inside.
unsafe impl Sync for Context {}

impl Context {
    /// Wraps a context that was held with [`held::hold`], which its drop releases.
    pub(crate) fn of(raw: NonNull<sys::ibv_context>) -> Arc<Self> {
        Arc::new(Self { raw })
    }

    /// Every device of the host, opened (`rdma_get_devices(3)`).
    ///
    /// # Errors
    /// [`DeviceError::NoDevice`] without any, [`DeviceError::Unavailable`] without the libraries.
    pub fn all() -> Result<Vec<Arc<Self>>, DeviceError> {
        require_libraries()?;
        Ok(held::hold_all()?.into_iter().map(Self::of).collect())
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// Names the device.
    pub fn key(&self) -> DeviceKey {
        DeviceKey::of(self.raw)
    }

    /// `rxe0`.
    pub fn name(&self) -> String {
        // SAFETY: open while we hold it; `device` is set for as long.
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
    pub fn query(&self) -> Result<DeviceLimits, DeviceError> {
        // SAFETY: the context is open while we hold it.
        let attributes = unsafe { query_device(self.raw()) }?;
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        let depth = |value: i32| u8::try_from(positive(value).min(254)).unwrap_or(0);
        let iwarp = self.is_iwarp();
        Ok(DeviceLimits {
            iwarp,
            software: attributes.vendor_id == RXE_VENDOR,
            cq_entries: positive(attributes.max_cqe),
            qp_entries: positive(attributes.max_qp_wr),
            pieces: positive(attributes.max_sge),
            responder_resources: depth(attributes.max_qp_rd_atom),
            // Some drivers leave this one 0 although they can read.
            initiator_depth: depth(match attributes.max_qp_init_rd_atom {
                0 => attributes.max_qp_rd_atom,
                depth => depth,
            }),
            srqs: positive(attributes.max_srq),
            srq_entries: positive(attributes.max_srq_wr),
            atomics: attributes.atomic_cap != sys::ibv_atomic_cap::IBV_ATOMIC_NONE,
        })
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr, DeviceError> {
        // SAFETY: the context is open while we hold it.
        unsafe { query_port(self.raw(), port) }
    }

    /// An entry of a port's GID table, and what it is for; no entry where there is none at `index`.
    pub fn gid(&self, port: u8, index: u8) -> Option<GidEntry> {
        let mut entry: sys::ibv_gid_entry = sys::zeroed();
        // SAFETY: the context is open while we hold it, and the place is for one entry.
        let returned =
            unsafe { sys::ibv_query_gid_ex(self.raw(), port.into(), index.into(), &raw mut entry, 0) };
        if returned == 0 {
            return Some(GidEntry { gid: address(&entry.gid), kind: GidType::from_raw(entry.gid_type) });
        }
        // SAFETY: as above.
        let gid = unsafe { query_gid(self.raw(), port, index.into()) };
        gid.map(|gid| GidEntry { gid, kind: GidType::Unknown })
    }
}

/// What a device can do (`ibv_query_device(3)`).
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn query_device(
    context: *mut sys::ibv_context,
) -> Result<sys::ibv_device_attr, DeviceError> {
    let mut attributes = sys::zeroed();
    // SAFETY: open by the caller's promise, and the place is as large as the call writes.
    let returned = unsafe { sys::ibv_query_device(context, &raw mut attributes) };
    sys::verbs_result(returned).map_err(system("ibv_query_device"))?;
    Ok(attributes)
}

/// What a port can do, and does (`ibv_query_port(3)`).
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn query_port(
    context: *mut sys::ibv_context,
    port: u8,
) -> Result<sys::ibv_port_attr, DeviceError> {
    let mut attributes = sys::zeroed();
    // SAFETY: open by the caller's promise, and the place is as large as the call writes.
    let returned = unsafe { sys::ibv_query_port(context, port, &raw mut attributes) };
    sys::verbs_result(returned).map_err(system("ibv_query_port"))?;
    Ok(attributes)
}

/// An entry of a port's GID table, by what every version of the library has (`ibv_query_gid(3)`).
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn query_gid(context: *mut sys::ibv_context, port: u8, index: i32) -> Option<Ipv6Addr> {
    let mut gid = sys::ibv_gid { raw: [0; 16] };
    // SAFETY: open by the caller's promise, and the place is for one GID.
    let returned = unsafe { sys::ibv_query_gid(context, port, index, &raw mut gid) };
    (returned == 0).then(|| address(&gid))
}

/// `IBV_MTU_256` is 1, and each step doubles; 0 for what is none.
pub(crate) fn mtu_bytes(mtu: u32) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

/// A GID and the protocol that it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The GID, written as an IPv6 address.
    pub gid: Ipv6Addr,
    /// Which protocol it is for.
    pub kind: GidType,
}

/// Which protocol a GID is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, and iWARP's stand-in.
    Ib,
    /// RoCE version 1: Ethernet frames, not routable.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// Not told: the library is older than 1.11.
    Unknown,
}

impl GidType {
    pub(crate) const fn from_raw(kind: u32) -> Self {
        match kind {
            sys::IBV_GID_TYPE_IB => Self::Ib,
            sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            _ => Self::Unknown,
        }
    }
}

pub(crate) fn address(gid: &sys::ibv_gid) -> Ipv6Addr {
    // SAFETY: both members of the union are plain bytes of the same size.
    Ipv6Addr::from(unsafe { gid.raw })
}

impl Drop for Context {
    fn drop(&mut self) {
        held::release(self.key());
    }
}

/// rxe's vendor id (RXE_VENDOR_ID): an emulation that moves the bytes inside the post.
const RXE_VENDOR: u32 = 0x00ff_ffff;

/// What bounds our sums.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// No write-with-immediate, the active side first, a READ's sink needs remote write.
    pub iwarp: bool,
    /// rxe.
    pub software: bool,
    /// Entries of a completion queue.
    pub cq_entries: u32,
    /// Entries of a send or receive queue.
    pub qp_entries: u32,
    /// Pieces of memory that one request may name.
    pub pieces: u32,
    /// READs that peers may have outstanding at one queue pair.
    pub responder_resources: u8,
    /// READs that one queue pair may have outstanding.
    pub initiator_depth: u8,
    /// Shared receive queues, and the entries of one.
    pub srqs: u32,
    /// Entries of a shared receive queue.
    pub srq_entries: u32,
    /// Atomic operations on a peer's memory, among the device's own at least.
    pub atomics: bool,
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<sys::ibv_pd>,
    _context: Arc<Context>,
}

// SAFETY: a protection domain is only named in calls that libibverbs and the kernel serialise.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Makes one (`ibv_alloc_pd(3)`).
    ///
    /// # Errors
    /// [`DeviceError::System`].
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the context is open while we hold it.
        let raw = unsafe { sys::ibv_alloc_pd(context.raw()) };
        let raw = sys::pointer_result(raw).map_err(system("ibv_alloc_pd"))?;
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
