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

use std::{io, mem::MaybeUninit, ptr::NonNull};

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
mod newer;
pub(crate) use newer::newer;

/// errno of the last failed call of this thread; never 0, so that a failure is never taken for success.
pub(crate) fn last_errno() -> i32 {
    match io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno != 0 => errno,
        _ => libc::EINVAL,
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

/// Structs of the C libraries for which zero is a value: integers, pointers, and unions of those.
///
/// # Safety
/// Every bit of such a struct may be zero.
pub(crate) unsafe trait Plain {}

macro_rules! plain {
    ($($name:ident)*) => {
        $(
            // SAFETY: integers, pointers and unions of those, in both backends.
            unsafe impl Plain for $name {}
        )*
    };
}
plain! {
    ibv_device_attr ibv_port_attr ibv_gid_entry ibv_ah_attr ibv_wc ibv_send_wr ibv_recv_wr ibv_qp_attr ibv_qp_init_attr
    ibv_qp_init_attr_ex     ibv_srq_attr ibv_srq_init_attr rdma_conn_param rdma_addrinfo
}

/// A struct of zeroes.
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: zero is a value, by the promise of `Plain`.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_conventions() {
        assert_eq!(verbs_result(0), Ok(()));
        assert_eq!(verbs_result(libc::ENOMEM), Err(libc::ENOMEM));
        assert_eq!(cm_result(0), Ok(()));
        assert_eq!(cm_result(-libc::ENODEV), Err(libc::ENODEV));
        // SAFETY: a null place is refused before anything is read: the call fails and sets errno.
        let returned = unsafe { rdma_get_cm_event(std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(cm_result(returned).is_err());
    }
}
