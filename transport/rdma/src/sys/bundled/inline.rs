//! What the headers define inline or as macros: the data path over the table in a device context, and choices between
//! old and new forms. Each refuses with EOPNOTSUPP what the device's table does not have.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::offset_of,
};

use super::{
    load::UNSUPPORTED,
    types_verbs::{
        ibv_context, ibv_context_ops, ibv_cq, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp,
        ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context,
    },
    verbs::{_ibv_query_gid_ex, _ibv_query_gid_table, ibv_reg_mr_iova2, plain},
};

/// The functions of `context`'s device.
///
/// # Safety
/// The context is open.
unsafe fn ops(context: *mut ibv_context) -> *const ibv_context_ops {
    // SAFETY: open by the caller's promise, so the struct is there; the library sets the table before it is handed out.
    unsafe { &raw const (*context).ops }
}

/// Functions that lead to the device's own, over the table in the context of their first argument.
macro_rules! posted {
    ($(
        $(#[$doc:meta])* fn $name:ident($object:ident: $object_type:ty, $($argument:ident: $type:ty),*)
            by $op:ident, else $absent:expr;
    )*) => { $(
        $(#[$doc])*
        #[inline]
        pub(crate) unsafe fn $name($object: *mut $object_type, $($argument: $type),*) -> c_int {
            // SAFETY: live by the caller's promise.
            let context = unsafe { (*$object).context };
            // SAFETY: a live object's context is open.
            let ops = unsafe { ops(context) };
            // SAFETY: as above: the table is there.
            match unsafe { (*ops).$op } {
                // SAFETY: the caller's promise, passed on.
                Some(function) => unsafe { function($object, $($argument),*) },
                None => $absent,
            }
        }
    )* };
}

posted! {
    /// `ibv_post_send(3)`.
    ///
    /// # Safety
    /// The queue pair is live; the list and what it names live as long as the manual page asks.
    fn ibv_post_send(qp: ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) by post_send, else UNSUPPORTED;
    /// `ibv_post_recv(3)`.
    ///
    /// # Safety
    /// The queue pair is live; the list and what it names live as long as the manual page asks.
    fn ibv_post_recv(qp: ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) by post_recv, else UNSUPPORTED;
    /// `ibv_post_srq_recv(3)`.
    ///
    /// # Safety
    /// The shared receive queue is live; the list and what it names live as long as the manual page asks.
    fn ibv_post_srq_recv(srq: ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr)
        by post_srq_recv, else UNSUPPORTED;
    /// `ibv_poll_cq(3)`: how many completions were written, negative on failure.
    ///
    /// # Safety
    /// The queue is live, and `wc` has room for `num_entries`.
    fn ibv_poll_cq(cq: ibv_cq, num_entries: c_int, wc: *mut ibv_wc) by poll_cq, else -UNSUPPORTED;
    /// `ibv_req_notify_cq(3)`.
    ///
    /// # Safety
    /// The queue is live.
    fn ibv_req_notify_cq(cq: ibv_cq, solicited_only: c_int) by req_notify_cq, else UNSUPPORTED;
}

/// The access flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL_ACCESS: c_int = 0x3ff0_0000;

/// `ibv_reg_mr(3)`. Optional access flags are passed by the newer function only; a library without it takes the rest.
///
/// # Safety
/// The domain is live, and the bytes stay mapped until the region is deregistered.
pub(crate) unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    if access & OPTIONAL_ACCESS != 0 {
        let flags = c_uint::from_ne_bytes(access.to_ne_bytes());
        // SAFETY: the caller's promise, passed on.
        let region = unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, flags) };
        let is_absent = std::io::Error::last_os_error().raw_os_error() == Some(UNSUPPORTED);
        if !region.is_null() || !is_absent {
            return region;
        }
    }
    // SAFETY: the caller's promise, passed on.
    unsafe { plain::ibv_reg_mr(pd, addr, length, access & !OPTIONAL_ACCESS) }
}

/// `ibv_query_port(3)`: the device's own function writes the whole struct; the symbol of this name writes the older,
/// shorter one, and the rest stays zero.
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
    // SAFETY: open by the caller's promise.
    match unsafe { extended_query_port(context) } {
        // SAFETY: the caller's promise, passed on, with the size of the place.
        Some(query) => unsafe { query(context, port_num, port_attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the caller's promise, passed on; what is written is a prefix of the place.
        None => unsafe { plain::ibv_query_port(context, port_num, port_attr) },
    }
}

type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

/// # Safety
/// The context is open.
unsafe fn extended_query_port(context: *mut ibv_context) -> Option<QueryPort> {
    // SAFETY: open by the caller's promise.
    let mark = unsafe { (*context).abi_compat };
    if mark.addr() != usize::MAX {
        return None;
    }
    let around = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: the mark says that the context is the last field of a `verbs_context`; `sz` lies right before it.
    let bytes = unsafe { (*around).sz };
    if bytes < size_of::<verbs_context>() - offset_of!(verbs_context, query_port) {
        return None;
    }
    // SAFETY: the struct is as large as the offset of the field needs.
    unsafe { (*around).query_port }
}

/// `ibv_query_gid_ex(3)`, since libibverbs 1.11.
///
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
    unsafe { _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>()) }
}

/// `ibv_query_gid_table(3)`, since libibverbs 1.11: how many entries were written, negative on failure.
///
/// # Safety
/// The context is open, and `entries` has room for `max_entries`.
pub(crate) unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller's promise, passed on, with the size of one entry.
    unsafe { _ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
}
