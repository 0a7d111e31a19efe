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

/// InfiniBand.
pub(crate) const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// Ethernet: RoCE and iWARP.
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

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
    /// Ask the domain name system, which is the default; since the same version.
    pub(crate) const DNS: i32 = 0x20;
}
