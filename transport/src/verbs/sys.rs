//! The only file that names `rdma_sys`: what we use of it, and the two ways these libraries report errors.
//!
//! - verbs (`ibv_*`) *return* the errno, or NULL with errno set;
//! - the CM (`rdma_*`) returns -1 *and sets* errno (before librdmacm 1.0.17: a negative errno).
//!
//! Enums stay integers here: a device or a newer library may send values that no header of ours has.

use std::{io, net::SocketAddr, ptr::NonNull};

pub(crate) use rdma_sys::{
    ibv_access_flags, ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_async_event,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_dealloc_pd,
    ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_device_attr, ibv_event_type,
    ibv_get_async_event, ibv_get_cq_event, ibv_modify_qp, ibv_mr, ibv_pd, ibv_poll_cq, ibv_post_recv,
    ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_type, ibv_query_device,
    ibv_recv_wr, ibv_reg_mr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_transport_type,
    ibv_wc, ibv_wc_opcode, ibv_wr_opcode, imm_data_invalidated_rkey_union_t, rdma_accept, rdma_ack_cm_event,
    rdma_bind_addr, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_create_qp, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_destroy_qp, rdma_disconnect, rdma_event_channel, rdma_free_devices, rdma_get_cm_event,
    rdma_get_devices, rdma_listen, rdma_notify, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route, rdma_set_option, rdma_t, wr_t,
};

/// `RDMA_OPTION_ID` of `rdma_cma.h`; an anonymous enum there, which the binding leaves out.
pub(crate) const OPTION_ID: i32 = 0;
/// `RDMA_OPTION_ID_AFONLY`, an `int`, before bind.
pub(crate) const OPTION_ID_AFONLY: i32 = 2;
/// `RDMA_OPTION_ID_ACK_TIMEOUT`, a `u8`, before connect or accept.
pub(crate) const OPTION_ID_ACK_TIMEOUT: i32 = 3;

/// errno values that decide something here; the same on every Linux architecture that has RDMA.
pub(crate) mod errno {
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EADDRINUSE: i32 = 98;
    pub(crate) const EADDRNOTAVAIL: i32 = 99;
    pub(crate) const ECONNRESET: i32 = 104;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const ECONNREFUSED: i32 = 111;
}

/// errno of the last failed call of this thread; never 0, so that a failure is never taken for success.
pub(crate) fn last_errno() -> i32 {
    match io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno != 0 => errno,
        _ => errno::EINVAL,
    }
}

/// The verbs convention: the value *is* the errno.
pub(crate) fn verbs_result(returned: i32) -> Result<(), i32> {
    if returned == 0 { Ok(()) } else { Err(returned.abs()) }
}

/// The CM's convention: -1 and errno; other negative values were errno themselves once.
pub(crate) fn cm_result(returned: i32) -> Result<(), i32> {
    match returned {
        0.. => Ok(()),
        -1 => Err(last_errno()),
        other => Err(other.saturating_neg()),
    }
}

/// Both conventions agree on pointers: NULL and errno.
pub(crate) fn pointer_result<T>(pointer: *mut T) -> Result<NonNull<T>, i32> {
    NonNull::new(pointer).ok_or_else(last_errno)
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A `sockaddr_in` or `sockaddr_in6`, in the layout of `netinet/in.h`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct RawAddress([u8; 28]);

impl RawAddress {
    /// For the CM, which only reads through it.
    pub(crate) fn as_mut_ptr<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    /// Reads what the CM holds; `None` for other families (AF_IB).
    pub(crate) fn parse(bytes: &[u8; 28]) -> Option<SocketAddr> {
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match u16::from_ne_bytes([bytes[0], bytes[1]]) {
            AF_INET => Some(SocketAddr::from(([bytes[4], bytes[5], bytes[6], bytes[7]], port))),
            AF_INET6 => {
                let mut address = [0; 16];
                address.copy_from_slice(&bytes[8..24]);
                let scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
                Some(SocketAddr::V6(std::net::SocketAddrV6::new(address.into(), port, 0, scope)))
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut raw = [0; 28];
        raw[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                raw[0..2].copy_from_slice(&AF_INET.to_ne_bytes());
                raw[4..8].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                raw[0..2].copy_from_slice(&AF_INET6.to_ne_bytes());
                raw[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                raw[8..24].copy_from_slice(&v6.ip().octets());
                raw[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        Self(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_conventions() {
        assert_eq!(verbs_result(0), Ok(()));
        assert_eq!(verbs_result(errno::ENOMEM), Err(errno::ENOMEM));
        assert_eq!(cm_result(0), Ok(()));
        assert_eq!(cm_result(-errno::ENODEV), Err(errno::ENODEV));
        // SAFETY: a null place is refused before anything is read: the call fails and sets errno.
        let returned = unsafe { rdma_get_cm_event(std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(cm_result(returned).is_err());
    }

    #[test]
    fn addresses_round_trip() {
        for text in ["10.0.0.1:7471", "[fd77::1]:1", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::parse(&RawAddress::from(address).0), Some(address));
        }
        assert_eq!(RawAddress::parse(&[0; 28]), None);
    }
}
