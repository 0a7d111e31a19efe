//! The structs of `infiniband/verbs.h`. Those that the library hands out are read; their hidden parts are never touched.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::values::{
    ibv_atomic_cap, ibv_event_type, ibv_mig_state, ibv_mtu, ibv_mw_type, ibv_node_type, ibv_port_state,
    ibv_qp_state, ibv_qp_type, ibv_srq_type, ibv_transport_type, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

/// Integers in network byte order.
pub(crate) type __be16 = u16;
pub(crate) type __be32 = u32;
pub(crate) type __be64 = u64;

/// A function of the table that nobody outside the library calls.
type Hidden = *mut c_void;

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

structs! {
    struct ibv_gid_global_t { subnet_prefix: __be64, interface_id: __be64 }
    union ibv_gid { raw: [u8; 16], global: ibv_gid_global_t }
    struct ibv_gid_entry { gid: ibv_gid, gid_index: u32, port_num: u32, gid_type: u32, ndev_ifindex: u32 }
    struct ibv_device_attr {
        fw_ver: [c_char; 64], node_guid: __be64, sys_image_guid: __be64, max_mr_size: u64, page_size_cap: u64,
        vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: c_int, max_qp_wr: c_int,
        device_cap_flags: c_uint, max_sge: c_int, max_sge_rd: c_int, max_cq: c_int, max_cqe: c_int, max_mr: c_int,
        max_pd: c_int, max_qp_rd_atom: c_int, max_ee_rd_atom: c_int, max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int, max_ee_init_rd_atom: c_int, atomic_cap: ibv_atomic_cap::Type, max_ee: c_int,
        max_rdd: c_int, max_mw: c_int, max_raw_ipv6_qp: c_int, max_raw_ethy_qp: c_int, max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int, max_total_mcast_qp_attach: c_int, max_ah: c_int, max_fmr: c_int,
        max_map_per_fmr: c_int, max_srq: c_int, max_srq_wr: c_int, max_srq_sge: c_int, max_pkeys: u16,
        local_ca_ack_delay: u8, phys_port_cnt: u8,
    }
    struct ibv_port_attr {
        state: ibv_port_state::Type, max_mtu: ibv_mtu::Type, active_mtu: ibv_mtu::Type, gid_tbl_len: c_int,
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32, pkey_tbl_len: u16, lid: u16,
        sm_lid: u16, lmc: u8, max_vl_num: u8, sm_sl: u8, subnet_timeout: u8, init_type_reply: u8, active_width: u8,
        active_speed: u8, phys_state: u8, link_layer: u8, flags: u8, port_cap_flags2: u16,
    }
    union ibv_async_event_element_t {
        cq: *mut ibv_cq, qp: *mut ibv_qp, srq: *mut ibv_srq, wq: *mut ibv_wq, port_num: c_int,
    }
    struct ibv_async_event { element: ibv_async_event_element_t, event_type: ibv_event_type::Type }
    union imm_data_invalidated_rkey_union_t { imm_data: __be32, invalidated_rkey: u32 }
    struct ibv_wc {
        wr_id: u64, status: ibv_wc_status::Type, opcode: ibv_wc_opcode::Type, vendor_err: u32, byte_len: u32,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t, qp_num: u32, src_qp: u32,
        wc_flags: c_uint, pkey_index: u16, slid: u16, sl: u8, dlid_path_bits: u8,
    }
    struct ibv_mw_bind_info { mr: *mut ibv_mr, addr: u64, length: u64, mw_access_flags: c_uint }
    struct ibv_pd { context: *mut ibv_context, handle: u32 }
    struct ibv_mr {
        context: *mut ibv_context, pd: *mut ibv_pd, addr: *mut c_void, length: usize, handle: u32, lkey: u32, rkey: u32,
    }
    struct ibv_mw {
        context: *mut ibv_context, pd: *mut ibv_pd, rkey: u32, handle: u32, type_: ibv_mw_type::Type,
    }
    struct ibv_global_route { dgid: ibv_gid, flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8 }
    struct ibv_grh {
        version_tclass_flow: __be32, paylen: __be16, next_hdr: u8, hop_limit: u8, sgid: ibv_gid, dgid: ibv_gid,
    }
    struct ibv_ah_attr {
        grh: ibv_global_route, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    struct ibv_srq_attr { max_wr: u32, max_sge: u32, srq_limit: u32 }
    struct ibv_srq_init_attr { srq_context: *mut c_void, attr: ibv_srq_attr }
    struct ibv_tm_cap { max_num_tags: u32, max_ops: u32 }
    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void, attr: ibv_srq_attr, comp_mask: u32, srq_type: ibv_srq_type::Type, pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd, cq: *mut ibv_cq, tm_cap: ibv_tm_cap,
    }
    struct ibv_qp_cap {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
    }
    struct ibv_qp_init_attr {
        qp_context: *mut c_void, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut ibv_srq, cap: ibv_qp_cap,
        qp_type: ibv_qp_type::Type, sq_sig_all: c_int,
    }
    struct ibv_rx_hash_conf {
        rx_hash_function: u8, rx_hash_key_len: u8, rx_hash_key: *mut u8, rx_hash_fields_mask: u64,
    }
    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut ibv_srq, cap: ibv_qp_cap,
        qp_type: ibv_qp_type::Type, sq_sig_all: c_int, comp_mask: u32, pd: *mut ibv_pd, xrcd: *mut ibv_xrcd,
        create_flags: u32, max_tso_header: u16, rwq_ind_tbl: *mut ibv_rwq_ind_table, rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32, send_ops_flags: u64,
    }
    struct ibv_qp_attr {
        qp_state: ibv_qp_state::Type, cur_qp_state: ibv_qp_state::Type, path_mtu: ibv_mtu::Type,
        path_mig_state: ibv_mig_state::Type, qkey: u32, rq_psn: u32, sq_psn: u32, dest_qp_num: u32,
        qp_access_flags: c_uint, cap: ibv_qp_cap, ah_attr: ibv_ah_attr, alt_ah_attr: ibv_ah_attr, pkey_index: u16,
        alt_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8,
        min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8,
        alt_timeout: u8, rate_limit: u32,
    }
    struct ibv_sge { addr: u64, length: u32, lkey: u32 }
    struct rdma_t { remote_addr: u64, rkey: u32 }
    struct atomic_t { remote_addr: u64, compare_add: u64, swap: u64, rkey: u32 }
    struct ud_t { ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32 }
    union wr_t { rdma: rdma_t, atomic: atomic_t, ud: ud_t }
    struct xrc_t { remote_srqn: u32 }
    union qp_type_t { xrc: xrc_t }
    struct bind_mw_t { mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info }
    struct tso_t { hdr: *mut c_void, hdr_sz: u16, mss: u16 }
    union bind_mw_tso_union_t { bind_mw: bind_mw_t, tso: tso_t }
    struct ibv_send_wr {
        wr_id: u64, next: *mut ibv_send_wr, sg_list: *mut ibv_sge, num_sge: c_int, opcode: ibv_wr_opcode::Type,
        send_flags: c_uint, imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t, wr: wr_t,
        qp_type: qp_type_t, bind_mw_tso_union: bind_mw_tso_union_t,
    }
    struct ibv_recv_wr { wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int }
    struct ibv_srq {
        context: *mut ibv_context, srq_context: *mut c_void, pd: *mut ibv_pd, handle: u32, mutex: pthread_mutex_t,
        cond: pthread_cond_t, events_completed: u32,
    }
    struct ibv_qp {
        context: *mut ibv_context, qp_context: *mut c_void, pd: *mut ibv_pd, send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq, srq: *mut ibv_srq, handle: u32, qp_num: u32, state: ibv_qp_state::Type,
        qp_type: ibv_qp_type::Type, mutex: pthread_mutex_t, cond: pthread_cond_t, events_completed: u32,
    }
    struct ibv_ece { vendor_id: u32, options: u32, comp_mask: u32 }
    struct ibv_comp_channel { context: *mut ibv_context, fd: c_int, refcnt: c_int }
    struct ibv_cq {
        context: *mut ibv_context, channel: *mut ibv_comp_channel, cq_context: *mut c_void, handle: u32, cqe: c_int,
        mutex: pthread_mutex_t, cond: pthread_cond_t, comp_events_completed: u32, async_events_completed: u32,
    }
    struct ibv_ah { context: *mut ibv_context, pd: *mut ibv_pd, handle: u32 }
    struct _ibv_device_ops { _dummy1: Hidden, _dummy2: Hidden }
    struct ibv_device {
        _ops: _ibv_device_ops, node_type: ibv_node_type::Type, transport_type: ibv_transport_type::Type,
        name: [c_char; 64], dev_name: [c_char; 64], dev_path: [c_char; 256], ibdev_path: [c_char; 256],
    }
    struct ibv_context_ops {
        _compat_query_device: Hidden, _compat_query_port: Hidden, _compat_alloc_pd: Hidden,
        _compat_dealloc_pd: Hidden, _compat_reg_mr: Hidden, _compat_rereg_mr: Hidden, _compat_dereg_mr: Hidden,
        alloc_mw: Hidden, bind_mw: Hidden, dealloc_mw: Hidden,
        _compat_create_cq: Hidden, poll_cq: Option<PollCq>, req_notify_cq: Option<ReqNotifyCq>,
        _compat_cq_event: Hidden, _compat_resize_cq: Hidden, _compat_destroy_cq: Hidden,
        _compat_create_srq: Hidden, _compat_modify_srq: Hidden, _compat_query_srq: Hidden,
        _compat_destroy_srq: Hidden, post_srq_recv: Option<PostSrqRecv>, _compat_create_qp: Hidden,
        _compat_query_qp: Hidden, _compat_modify_qp: Hidden, _compat_destroy_qp: Hidden,
        post_send: Option<PostSend>, post_recv: Option<PostRecv>, _compat_create_ah: Hidden,
        _compat_destroy_ah: Hidden, _compat_attach_mcast: Hidden, _compat_detach_mcast: Hidden,
        _compat_async_event: Hidden,
    }
    struct ibv_context {
        device: *mut ibv_device, ops: ibv_context_ops, cmd_fd: c_int, async_fd: c_int, num_comp_vectors: c_int,
        mutex: pthread_mutex_t, abi_compat: *mut c_void,
    }
    // Lies around an `ibv_context` and grows at its front: a field is there when `sz` reaches to it.
    struct verbs_context {
        query_port: Option<QueryPort>, advise_mr: Hidden, alloc_null_mr: Hidden, read_counters: Hidden,
        attach_counters_point_flow: Hidden, create_counters: Hidden, destroy_counters: Hidden, reg_dm_mr: Hidden,
        alloc_dm: Hidden, free_dm: Hidden, modify_flow_action_esp: Hidden, destroy_flow_action: Hidden,
        create_flow_action_esp: Hidden, modify_qp_rate_limit: Hidden, alloc_parent_domain: Hidden,
        dealloc_td: Hidden, alloc_td: Hidden, modify_cq: Hidden, post_srq_ops: Hidden,
        destroy_rwq_ind_table: Hidden, create_rwq_ind_table: Hidden, destroy_wq: Hidden, modify_wq: Hidden,
        create_wq: Hidden, query_rt_values: Hidden, create_cq_ex: Hidden, priv_: Hidden, query_device_ex: Hidden,
        ibv_destroy_flow: Hidden, ABI_placeholder2: Hidden, ibv_create_flow: Hidden, ABI_placeholder1: Hidden,
        open_qp: Hidden, create_qp_ex: Hidden, get_srq_num: Hidden, create_srq_ex: Hidden, open_xrcd: Hidden,
        close_xrcd: Hidden, _ABI_placeholder3: u64, sz: usize, context: ibv_context,
    }
}

/// What is only ever pointed to.
macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )* };
}

opaque! { ibv_wq ibv_xrcd ibv_rwq_ind_table }
