//! One error per operation, by blame. Each says the step, the limit and its value, the errno, and what to do.

mod live;
mod setup;

pub use live::{AccessError, BulkError, CloseReason, LoanError, Refused, Violation};
pub use setup::{AcceptError, AddressError, ConnectError, ListenError, PortError, RejectReason};

/// An errno in words, with its number.
#[must_use]
pub fn errno_text(errno: i32) -> String {
    if errno == 0 { "no errno".to_owned() } else { std::io::Error::from_raw_os_error(errno).to_string() }
}
