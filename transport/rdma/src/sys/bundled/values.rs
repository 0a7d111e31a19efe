//! The enums of `verbs.h` and `rdma_cma.h`. C enums are open: each is an integer, never a Rust enum, because a device
//! or a newer library may send values that no header has.

/// Enums of one value each: a module with the values, and `Type`.
macro_rules! choices {
    ($($name:ident: $type:ident { $($value:ident = $number:expr),* $(,)? })*) => {
        $(pub(crate) mod $name {
            pub(crate) type Type = $type;
            $(pub(crate) const $value: Type = $number;)*
        })*

        /// Values that differ from the other backend's.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(super) fn choice_differences() -> (usize, Vec<String>) {
            use crate::sys::rdma;
            let (mut count, mut differences) = (0, Vec::new());
            $($(
                count += 1;
                let (ours, theirs) = (i64::from($name::$value), i64::from(rdma::$name::$value));
                if ours != theirs {
                    differences.push(format!("{} is {ours} here and {theirs} there", stringify!($value)));
                }
            )*)*
            (count, differences)
        }
    };
}

/// Enums whose values are or-ed: a newtype, with the values as constants of it.
macro_rules! flags {
    ($($name:ident { $($value:ident = $number:expr),* $(,)? })*) => {
        $(
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub(crate) struct $name(pub(crate) u32);

            impl $name {
                $(pub(crate) const $value: Self = Self($number);)*
            }

            impl std::ops::BitOr for $name {
                type Output = Self;

                fn bitor(self, other: Self) -> Self {
                    Self(self.0 | other.0)
                }
            }
        )*

        /// Flags that differ from the other backend's.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(super) fn flag_differences() -> (usize, Vec<String>) {
            use crate::sys::rdma;
            let (mut count, mut differences) = (0, Vec::new());
            $($(
                count += 1;
                let (ours, theirs) = ($name::$value.0, rdma::$name::$value.0);
                if ours != theirs {
                    differences.push(format!("{} is {ours} here and {theirs} there", stringify!($value)));
                }
            )*)*
            (count, differences)
        }
    };
}

choices! {
    ibv_node_type: i32 {
        IBV_NODE_UNKNOWN = -1, IBV_NODE_CA = 1, IBV_NODE_SWITCH = 2, IBV_NODE_ROUTER = 3, IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5, IBV_NODE_USNIC_UDP = 6, IBV_NODE_UNSPECIFIED = 7,
    }
    ibv_transport_type: i32 {
        IBV_TRANSPORT_UNKNOWN = -1, IBV_TRANSPORT_IB = 0, IBV_TRANSPORT_IWARP = 1, IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3, IBV_TRANSPORT_UNSPECIFIED = 4,
    }
    ibv_atomic_cap: u32 { IBV_ATOMIC_NONE = 0, IBV_ATOMIC_HCA = 1, IBV_ATOMIC_GLOB = 2 }
    ibv_mtu: u32 { IBV_MTU_256 = 1, IBV_MTU_512 = 2, IBV_MTU_1024 = 3, IBV_MTU_2048 = 4, IBV_MTU_4096 = 5 }
    ibv_port_state: u32 {
        IBV_PORT_NOP = 0, IBV_PORT_DOWN = 1, IBV_PORT_INIT = 2, IBV_PORT_ARMED = 3, IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
    ibv_event_type: u32 {
        IBV_EVENT_CQ_ERR = 0, IBV_EVENT_QP_FATAL = 1, IBV_EVENT_QP_REQ_ERR = 2, IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4, IBV_EVENT_SQ_DRAINED = 5, IBV_EVENT_PATH_MIG = 6, IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8, IBV_EVENT_PORT_ACTIVE = 9, IBV_EVENT_PORT_ERR = 10, IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12, IBV_EVENT_SM_CHANGE = 13, IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15, IBV_EVENT_QP_LAST_WQE_REACHED = 16, IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18, IBV_EVENT_WQ_FATAL = 19,
    }
    ibv_wc_status: u32 {
        IBV_WC_SUCCESS = 0, IBV_WC_LOC_LEN_ERR = 1, IBV_WC_LOC_QP_OP_ERR = 2, IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4, IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_MW_BIND_ERR = 6, IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8, IBV_WC_REM_INV_REQ_ERR = 9, IBV_WC_REM_ACCESS_ERR = 10, IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12, IBV_WC_RNR_RETRY_EXC_ERR = 13, IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15, IBV_WC_REM_ABORT_ERR = 16, IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18, IBV_WC_FATAL_ERR = 19, IBV_WC_RESP_TIMEOUT_ERR = 20, IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22, IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
    ibv_wc_opcode: u32 {
        IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RDMA_READ = 2, IBV_WC_COMP_SWAP = 3, IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5, IBV_WC_LOCAL_INV = 6, IBV_WC_TSO = 7, IBV_WC_ATOMIC_WRITE = 9, IBV_WC_RECV = 128,
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
    }
    ibv_mw_type: u32 { IBV_MW_TYPE_1 = 1, IBV_MW_TYPE_2 = 2 }
    ibv_srq_type: u32 { IBV_SRQT_BASIC = 0, IBV_SRQT_XRC = 1, IBV_SRQT_TM = 2 }
    ibv_qp_type: u32 {
        IBV_QPT_RC = 2, IBV_QPT_UC = 3, IBV_QPT_UD = 4, IBV_QPT_RAW_PACKET = 8, IBV_QPT_XRC_SEND = 9,
        IBV_QPT_XRC_RECV = 10, IBV_QPT_DRIVER = 255,
    }
    ibv_qp_state: u32 {
        IBV_QPS_RESET = 0, IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_SQD = 4, IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6, IBV_QPS_UNKNOWN = 7,
    }
    ibv_mig_state: u32 { IBV_MIG_MIGRATED = 0, IBV_MIG_REARM = 1, IBV_MIG_ARMED = 2 }
    ibv_wr_opcode: u32 {
        IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_SEND = 2, IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4, IBV_WR_ATOMIC_CMP_AND_SWP = 5, IBV_WR_ATOMIC_FETCH_AND_ADD = 6, IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8, IBV_WR_SEND_WITH_INV = 9, IBV_WR_TSO = 10, IBV_WR_DRIVER1 = 11, IBV_WR_ATOMIC_WRITE = 15,
    }
    rdma_cm_event_type: u32 {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0, RDMA_CM_EVENT_ADDR_ERROR = 1, RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3, RDMA_CM_EVENT_CONNECT_REQUEST = 4, RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6, RDMA_CM_EVENT_UNREACHABLE = 7, RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9, RDMA_CM_EVENT_DISCONNECTED = 10, RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12, RDMA_CM_EVENT_MULTICAST_ERROR = 13, RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15, RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16, RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
        RDMA_CM_EVENT_USER = 18, RDMA_CM_EVENT_INTERNAL = 19,
    }
    rdma_port_space: u32 {
        RDMA_PS_IPOIB = 0x0002, RDMA_PS_TCP = 0x0106, RDMA_PS_UDP = 0x0111, RDMA_PS_IB = 0x013f,
    }
}

flags! {
    ibv_wc_flags { IBV_WC_GRH = 1, IBV_WC_WITH_IMM = 1 << 1 }
    ibv_access_flags {
        IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 1 << 1, IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3, IBV_ACCESS_MW_BIND = 1 << 4, IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_ON_DEMAND = 1 << 6, IBV_ACCESS_HUGETLB = 1 << 7, IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    }
    ibv_srq_attr_mask { IBV_SRQ_MAX_WR = 1, IBV_SRQ_LIMIT = 1 << 1 }
    ibv_qp_attr_mask {
        IBV_QP_STATE = 1, IBV_QP_CUR_STATE = 1 << 1, IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        IBV_QP_ACCESS_FLAGS = 1 << 3, IBV_QP_PKEY_INDEX = 1 << 4, IBV_QP_PORT = 1 << 5, IBV_QP_QKEY = 1 << 6,
        IBV_QP_AV = 1 << 7, IBV_QP_PATH_MTU = 1 << 8, IBV_QP_TIMEOUT = 1 << 9, IBV_QP_RETRY_CNT = 1 << 10,
        IBV_QP_RNR_RETRY = 1 << 11, IBV_QP_RQ_PSN = 1 << 12, IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        IBV_QP_ALT_PATH = 1 << 14, IBV_QP_MIN_RNR_TIMER = 1 << 15, IBV_QP_SQ_PSN = 1 << 16,
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17, IBV_QP_PATH_MIG_STATE = 1 << 18, IBV_QP_CAP = 1 << 19,
        IBV_QP_DEST_QPN = 1 << 20, IBV_QP_RATE_LIMIT = 1 << 25,
    }
    ibv_send_flags {
        IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 1 << 1, IBV_SEND_SOLICITED = 1 << 2, IBV_SEND_INLINE = 1 << 3,
        IBV_SEND_IP_CSUM = 1 << 4,
    }
    rdma_cm_join_mc_attr_mask {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
        RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
    }
    rdma_cm_mc_join_flags {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1, RDMA_MC_JOIN_FLAG_RESERVED = 2,
    }
}

pub(crate) type ibv_gid_type = u32;
pub(crate) const IBV_GID_TYPE_IB: ibv_gid_type = 0;
pub(crate) const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = 1;
pub(crate) const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = 2;
