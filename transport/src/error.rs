//! One error per operation, by blame. Each says the step, the limit and its value, the errno, and what to do.

mod live;
mod setup;

pub use live::{AccessError, BulkError, CloseReason, LoanError, Refused, Violation};
pub use setup::{AcceptError, AddressError, ConnectError, ListenError, PortError, RejectReason};

/// An errno in words, with its number; too many open files, with this process's limit of them.
#[must_use]
pub fn errno_text(errno: i32) -> String {
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
