//! Values of anonymous enums, which the binding generator leaves out.
#![allow(dead_code, reason = "the interface of a C library, as a whole")]

/// `RDMA_OPTION_ID` of `rdma_cma.h`: the level of an id's own options.
pub(crate) const OPTION_ID: i32 = 0;
/// `RDMA_OPTION_IB`: the level of InfiniBand's options.
pub(crate) const OPTION_IB: i32 = 1;
/// `RDMA_OPTION_ID_TOS`, a `u8`, before the address is resolved.
pub(crate) const OPTION_ID_TOS: i32 = 0;
/// `RDMA_OPTION_ID_REUSEADDR`, an `int`, before bind.
pub(crate) const OPTION_ID_REUSEADDR: i32 = 1;
/// `RDMA_OPTION_ID_AFONLY`, an `int`, before bind.
pub(crate) const OPTION_ID_AFONLY: i32 = 2;
/// `RDMA_OPTION_ID_ACK_TIMEOUT`, a `u8`, before connect or accept.
pub(crate) const OPTION_ID_ACK_TIMEOUT: i32 = 3;
/// `RDMA_OPTION_IB_PATH`, `ibv_path_data[]`, in place of `rdma_resolve_route`.
pub(crate) const OPTION_IB_PATH: i32 = 1;

/// `RDMA_MAX_RESP_RES`: as many as the device has.
pub(crate) const MAX_RESP_RES: u8 = 0xff;
/// `RDMA_MAX_INIT_DEPTH`: as many as the device has.
pub(crate) const MAX_INIT_DEPTH: u8 = 0xff;

/// `link_layer` of `ibv_port_attr`.
pub(crate) const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// InfiniBand.
pub(crate) const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// Ethernet: RoCE and iWARP.
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// `flags` of `ibv_path_data`.
pub(crate) const IBV_PATH_FLAG_GMP: u32 = 1;
/// The path to use.
pub(crate) const IBV_PATH_FLAG_PRIMARY: u32 = 1 << 1;
/// The path to migrate to.
pub(crate) const IBV_PATH_FLAG_ALTERNATE: u32 = 1 << 2;
/// From us to the peer.
pub(crate) const IBV_PATH_FLAG_OUTBOUND: u32 = 1 << 3;
/// From the peer to us.
pub(crate) const IBV_PATH_FLAG_INBOUND: u32 = 1 << 4;
/// From the peer to us, written as the way there.
pub(crate) const IBV_PATH_FLAG_INBOUND_REVERSE: u32 = 1 << 5;
/// Both ways.
pub(crate) const IBV_PATH_FLAG_BIDIRECTIONAL: u32 = IBV_PATH_FLAG_OUTBOUND | IBV_PATH_FLAG_INBOUND_REVERSE;

/// Flags of `rdma_getaddrinfo(3)`, in the type of `ai_flags`.
pub(crate) mod rai {
    /// For listening.
    pub(crate) const PASSIVE: i32 = 0x1;
    /// No look-up of names.
    pub(crate) const NUMERICHOST: i32 = 0x2;
    /// No resolution of routes.
    pub(crate) const NOROUTE: i32 = 0x4;
    /// `ai_family` says how to read the node.
    pub(crate) const FAMILY: i32 = 0x8;
    /// Ask the subnet's administrator; since librdmacm 1.4 (2025).
    pub(crate) const SA: i32 = 0x10;
}
