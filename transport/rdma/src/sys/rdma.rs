//! The backend `rdma-sys`: the only file that names that crate. What differs from the C headers in it is put right here.
#![allow(dead_code, reason = "the interface of a C library, as a whole")]

use std::ffi::c_int;

#[allow(unused_imports, reason = "declared as a whole")]
pub(crate) use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
pub(crate) use rdma_sys::*;

/// With the events that are newer than the oldest headers this crate builds with.
pub(crate) mod rdma_cm_event_type {
    pub(crate) use rdma_sys::rdma_cm_event_type::*;

    pub(crate) const RDMA_CM_EVENT_ADDRINFO_RESOLVED: Type = 16;
    pub(crate) const RDMA_CM_EVENT_ADDRINFO_ERROR: Type = 17;
    pub(crate) const RDMA_CM_EVENT_USER: Type = 18;
    pub(crate) const RDMA_CM_EVENT_INTERNAL: Type = 19;
}

/// The crate has a closed Rust enum; C's is open.
pub(crate) mod ibv_event_type {
    pub(crate) type Type = u32;

    macro_rules! events {
        ($($name:ident)*) => { $(pub(crate) const $name: Type = rdma_sys::ibv_event_type::$name as u32;)* };
    }
    events! {
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE
        IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE
        IBV_EVENT_WQ_FATAL
    }
}

mod linked {
    use std::ffi::{c_int, c_uint};

    use super::{ibv_context, ibv_gid_entry, rdma_cm_id};

    // Symbols that the crate leaves out, or declares with a closed enum.
    unsafe extern "C" {
        pub(super) fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int;
        pub(super) fn _ibv_query_gid_ex(
            context: *mut ibv_context,
            port_num: u32,
            gid_index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            entry_size: usize,
        ) -> c_int;
        pub(super) fn _ibv_query_gid_table(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize,
        ) -> isize;
    }
}

/// Linked with the program: it would not run without the libraries.
pub(crate) fn available() -> Result<(), String> {
    Ok(())
}

/// # Safety
/// As `rdma_notify(3)` says.
pub(crate) unsafe fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type::Type) -> c_int {
    // SAFETY: the caller's promise, passed on.
    unsafe { linked::rdma_notify(id, event) }
}

/// The crate's own form compares the mark of an extended context with 32 bits of it, and leaves new fields unset.
///
/// # Safety
/// The context is open, and `port_attr` is a place for the struct.
pub(crate) unsafe fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: a place for the struct, by the caller's promise; it holds integers only.
    unsafe { port_attr.write_bytes(0, 1) };
    // SAFETY: the caller's promise, passed on; the symbol writes a prefix of the struct.
    unsafe { rdma_sys::ibv_query_port(context, port_num, port_attr.cast()) }
}

/// # Safety
/// The context is open, and `entry` is a place for the struct.
pub(crate) unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's promise, passed on, with the size of the place.
    unsafe {
        linked::_ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
    }
}

/// # Safety
/// The context is open, and `entries` has room for `max_entries`.
pub(crate) unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller's promise, passed on, with the size of one entry.
    unsafe { linked::_ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
}
