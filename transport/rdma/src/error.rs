//! What a device, a library or the operating system refuses, whichever call it was.

use thiserror::Error;

use crate::sys;

/// A step on a device failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no device.
    #[error(
        "no RDMA device: {detail}; `rdma link` lists devices, `rdma link add rxe0 type rxe netdev eth0` makes one"
    )]
    NoDevice {
        /// What was looked for.
        detail: String,
    },
    /// libibverbs or librdmacm is missing.
    #[error("the RDMA libraries are not available: {why}")]
    Unavailable {
        /// What is missing, and the command that installs it.
        why: String,
    },
    /// The device cannot give that much, or a value is out of range.
    #[error("{field} is {value}, the limit is {limit}")]
    Limit {
        /// Which value.
        field: &'static str,
        /// What was asked.
        value: u64,
        /// What can be had.
        limit: u64,
    },
    /// Memory could not be locked for the device.
    #[error(
        "cannot register {bytes} bytes: the limit of locked memory is {limit_bytes} bytes; raise it with `ulimit -l unlimited` or LimitMEMLOCK=infinity"
    )]
    Memlock {
        /// What was asked.
        bytes: u64,
        /// RLIMIT_MEMLOCK, soft.
        limit_bytes: u64,
    },
    /// A call failed.
    #[error("{step} failed: {}", errno_text(*.errno))]
    System {
        /// Which one.
        step: &'static str,
        /// Its errno.
        errno: i32,
    },
}

/// Whether the libraries can be opened; the error says what to install.
pub(crate) fn require_libraries() -> Result<(), DeviceError> {
    sys::available().map_err(|why| DeviceError::Unavailable { why })
}

/// Turns an errno into the failure of `step`.
pub(crate) fn system(step: &'static str) -> impl Fn(i32) -> DeviceError {
    move |errno| DeviceError::System { step, errno }
}

/// An errno in words, with its number; for too many open files, with this process's limit.
pub(crate) fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    match errno {
        0 => "no errno".to_owned(),
        libc::EMFILE => match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            Some(limit) => format!("{text}: RLIMIT_NOFILE is {limit}; raise it with `ulimit -n`"),
            None => text,
        },
        _ => text,
    }
}
