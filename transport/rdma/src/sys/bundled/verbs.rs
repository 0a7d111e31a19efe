//! The functions of libibverbs that are symbols. It has old and new versions of many; the default one is found.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use super::{
    load::{Absent, Opened, UNSUPPORTED},
    types_verbs::{
        ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
        ibv_device_attr, ibv_ece, ibv_gid, ibv_gid_entry, ibv_grh, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
        ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
    },
    values::ibv_port_state,
};

functions! {
    library "libibverbs.so.1" package "libibverbs1 ibverbs-providers" failure UNSUPPORTED;
    need fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    need fn ibv_free_device_list(list: *mut *mut ibv_device);
    need fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    need fn ibv_close_device(context: *mut ibv_context) -> c_int;
    need fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    need fn ibv_ack_async_event(event: *mut ibv_async_event);
    need fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
    need fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    need fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    need fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    need fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    need fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    need fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    need fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    need fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    need fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void,
    ) -> c_int;
    need fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
    need fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    need fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
    need fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    need fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    need fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
    need fn ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    need fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    need fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    need fn ibv_init_ah_from_wc(
        context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr,
    ) -> c_int;
    need fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    need fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    need fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    need fn ibv_port_state_str(port_state: ibv_port_state::Type) -> *const c_char;
    may fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
    ) -> *mut ibv_mr;
    may fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    may fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    may fn _ibv_query_gid_ex(
        context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32,
        entry_size: usize,
    ) -> c_int;
    may fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize,
    ) -> isize;
}

/// The symbols whose C names are macros in the header.
pub(super) mod plain {
    use super::super::types_verbs::ibv_port_attr;
    use super::*;

    functions! {
        library "libibverbs.so.1" package "libibverbs1 ibverbs-providers" failure UNSUPPORTED;
        need fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr) -> c_int;
        need fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    }
}
