//! What the headers define inline or as macros: the data path over the table in a device context, and choices between
//! old and new forms. Each refuses with EOPNOTSUPP what the device's table does not have.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::offset_of,
};

use libc::sockaddr;

use super::{
    load::{Absent, UNSUPPORTED},
    types_cm::rdma_cm_id,
    types_verbs::{
        ibv_context, ibv_context_ops, ibv_cq, ibv_gid_entry, ibv_mr, ibv_mw, ibv_mw_bind, ibv_pd,
        ibv_port_attr, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context,
    },
    values::ibv_mw_type,
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

/// `ibv_post_send(3)`.
///
/// # Safety
/// The queue pair is live; the list and what it names live as long as the manual page asks.
#[inline]
pub(crate) unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*qp).context };
    // SAFETY: a live queue pair's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).post_send } {
        // SAFETY: the caller's promise, passed on.
        Some(post_send) => unsafe { post_send(qp, wr, bad_wr) },
        None => UNSUPPORTED,
    }
}

/// `ibv_post_recv(3)`.
///
/// # Safety
/// The queue pair is live; the list and what it names live as long as the manual page asks.
#[inline]
pub(crate) unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*qp).context };
    // SAFETY: a live queue pair's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).post_recv } {
        // SAFETY: the caller's promise, passed on.
        Some(post_recv) => unsafe { post_recv(qp, wr, bad_wr) },
        None => UNSUPPORTED,
    }
}

/// `ibv_post_srq_recv(3)`.
///
/// # Safety
/// The shared receive queue is live; the list and what it names live as long as the manual page asks.
#[inline]
pub(crate) unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*srq).context };
    // SAFETY: a live queue's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).post_srq_recv } {
        // SAFETY: the caller's promise, passed on.
        Some(post_srq_recv) => unsafe { post_srq_recv(srq, recv_wr, bad_recv_wr) },
        None => UNSUPPORTED,
    }
}

/// `ibv_poll_cq(3)`: how many completions were written, negative on failure.
///
/// # Safety
/// The queue is live, and `wc` has room for `num_entries`.
#[inline]
pub(crate) unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*cq).context };
    // SAFETY: a live queue's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).poll_cq } {
        // SAFETY: the caller's promise, passed on.
        Some(poll_cq) => unsafe { poll_cq(cq, num_entries, wc) },
        None => -UNSUPPORTED,
    }
}

/// `ibv_req_notify_cq(3)`.
///
/// # Safety
/// The queue is live.
#[inline]
pub(crate) unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*cq).context };
    // SAFETY: a live queue's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).req_notify_cq } {
        // SAFETY: the caller's promise, passed on.
        Some(req_notify_cq) => unsafe { req_notify_cq(cq, solicited_only) },
        None => UNSUPPORTED,
    }
}

/// `ibv_alloc_mw(3)`; drivers leave three of its fields to the caller.
///
/// # Safety
/// The domain is live.
pub(crate) unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type::Type) -> *mut ibv_mw {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*pd).context };
    // SAFETY: a live domain's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    let Some(alloc_mw) = (unsafe { (*ops).alloc_mw }) else { return Absent::absent(0) };
    // SAFETY: the caller's promise, passed on.
    let window = unsafe { alloc_mw(pd, type_) };
    // SAFETY: null, or made just now and known to nobody else.
    if let Some(window) = unsafe { window.as_mut() } {
        window.context = context;
        window.pd = pd;
        window.type_ = type_;
    }
    window
}

/// `ibv_dealloc_mw(3)`.
///
/// # Safety
/// The window is live and not used afterwards.
pub(crate) unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: live by the caller's promise.
    let context = unsafe { (*mw).context };
    // SAFETY: a live window's context is open.
    let ops = unsafe { ops(context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).dealloc_mw } {
        // SAFETY: the caller's promise, passed on.
        Some(dealloc_mw) => unsafe { dealloc_mw(mw) },
        None => UNSUPPORTED,
    }
}

/// `ibv_bind_mw(3)`, for windows of type 1; EINVAL for what the header refuses without asking the device.
///
/// # Safety
/// The queue pair, the window and the memory region named in `mw_bind` are live.
pub(crate) unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: live by the caller's promise.
    let window = unsafe { &*mw };
    // SAFETY: as above.
    let info = unsafe { (*mw_bind).bind_info };
    // SAFETY: null, or a live region by the caller's promise.
    let region = unsafe { info.mr.as_ref() };
    let has_nothing = region.is_none() && (info.addr != 0 || info.length != 0);
    let is_elsewhere = region.is_some_and(|region| region.pd != window.pd);
    if window.type_ != ibv_mw_type::IBV_MW_TYPE_1 || has_nothing || is_elsewhere {
        return libc::EINVAL;
    }
    // SAFETY: the window is live, so its context is open.
    let ops = unsafe { ops(window.context) };
    // SAFETY: as above: the table is there.
    match unsafe { (*ops).bind_mw } {
        // SAFETY: the caller's promise, passed on.
        Some(bind_mw) => unsafe { bind_mw(qp, mw, mw_bind) },
        None => UNSUPPORTED,
    }
}

/// The key of a window after its next bind.
pub(crate) fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & 0xffff_ff00) | (rkey.wrapping_add(1) & 0xff)
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

/// Our own address.
///
/// # Safety
/// The id is live.
pub(crate) unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: live by the caller's promise.
    unsafe { (&raw mut (*id).route.addr.src_addr_union).cast() }
}

/// The peer's address.
///
/// # Safety
/// The id is live.
pub(crate) unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: live by the caller's promise.
    unsafe { (&raw mut (*id).route.addr.dst_addr_union).cast() }
}
