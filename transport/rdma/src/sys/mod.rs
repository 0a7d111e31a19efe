//! The C libraries under verbs: which backend declares them, and the two ways in which they report errors.
//!
//! - `bundled` (default): our own declarations; the libraries are opened when they are first needed;
//! - `rdma` (cargo feature `rdma-sys`): the crate of that name, made from the installed headers, linked.
//!
//! Both have the same names, those of the C headers. Errors:
//!
//! - verbs (`ibv_*`) *return* the errno, or NULL with errno set;
//! - the CM (`rdma_*`) returns -1 *and sets* errno (before librdmacm 1.0.17: a negative errno).
//!
//! Enums stay integers here: a device or a newer library may send values that no header of ours has.

use std::{io, net::SocketAddr, ptr::NonNull};

#[cfg(any(not(feature = "rdma-sys"), test))]
mod bundled;
#[cfg(feature = "rdma-sys")]
mod rdma;

#[cfg(not(feature = "rdma-sys"))]
pub(crate) use bundled::*;
#[cfg(feature = "rdma-sys")]
pub(crate) use rdma::*;

mod constants;
pub(crate) use constants::*;

/// errno values that decide something here; the same on every Linux architecture that has RDMA.
pub(crate) mod errno {
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const ENOSYS: i32 = 38;
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

pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
/// Addresses of the RDMA CM itself: a GID and a service id.
pub(crate) const AF_IB: u16 = 27;

/// A `sockaddr_in` or `sockaddr_in6`, in the layout of `netinet/in.h`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct RawAddress([u8; 28]);

impl RawAddress {
    pub(crate) fn bytes(&self) -> &[u8; 28] {
        &self.0
    }

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
