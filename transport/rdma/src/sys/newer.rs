//! Functions that are newer than the oldest librdmacm this crate supports, looked up when they are first needed.
//!
//! Both backends use this file: the headers of an older library do not declare these functions, and a program that
//! names them would not link.

use std::{
    ffi::{c_char, c_int},
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::{rdma_addrinfo, rdma_cm_id};

type ResolveAddrinfo =
    unsafe extern "C" fn(*mut rdma_cm_id, *const c_char, *const c_char, *const rdma_addrinfo) -> c_int;
type QueryAddrinfo = unsafe extern "C" fn(*mut rdma_cm_id, *mut *mut rdma_addrinfo) -> c_int;
type WriteCmEvent = unsafe extern "C" fn(*mut rdma_cm_id, u32, c_int, u64) -> c_int;

/// The functions of librdmacm of 2025 and later; `None` for those that the installed one lacks.
#[derive(Default)]
pub(crate) struct Newer {
    /// `rdma_resolve_addrinfo(3)`.
    pub(crate) resolve_addrinfo: Option<ResolveAddrinfo>,
    /// `rdma_query_addrinfo(3)`.
    pub(crate) query_addrinfo: Option<QueryAddrinfo>,
    /// `rdma_write_cm_event(3)`.
    pub(crate) write_cm_event: Option<WriteCmEvent>,
}

/// What the installed library has of them.
pub(crate) fn newer() -> &'static Newer {
    static NEWER: OnceLock<Newer> = OnceLock::new();
    NEWER.get_or_init(|| {
        // SAFETY: rdma-core's libraries have no initialisers that rely on the caller; this one is open already, and kept.
        let Ok(library) = (unsafe { Library::open(Some("librdmacm.so.1"), RTLD_NOW | RTLD_LOCAL) }) else {
            return Newer::default();
        };
        let found = Newer {
            // SAFETY: the type is the one of the manual page.
            resolve_addrinfo: unsafe { library.get::<ResolveAddrinfo>(b"rdma_resolve_addrinfo") }
                .ok()
                .map(|it| *it),
            // SAFETY: the type is the one of the manual page.
            query_addrinfo: unsafe { library.get::<QueryAddrinfo>(b"rdma_query_addrinfo") }
                .ok()
                .map(|it| *it),
            // SAFETY: the type is the one of the manual page.
            write_cm_event: unsafe { library.get::<WriteCmEvent>(b"rdma_write_cm_event") }.ok().map(|it| *it),
        };
        let _ = library.into_raw();
        found
    })
}
