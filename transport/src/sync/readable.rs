//! A descriptor that tokio waits for.

use std::{
    io,
    os::fd::OwnedFd,
    task::{Context, Poll},
    time::Duration,
};

use tokio::io::{Interest, unix::AsyncFd};

use super::timer;

/// A descriptor whose readiness a tokio runtime reports. It is only waited for, never read from.
#[derive(Debug)]
pub struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Registers `fd` with the runtime of the calling thread.
    ///
    /// # Errors
    /// The system's, when it waits for no more descriptors.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and in one without `enable_io`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an OwnedFd is open until it is dropped and always returns its own number; the AsyncFd owns it, and this type
        // gives no access to it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(fd?))
    }

    /// Registers a descriptor that is readable after `time`.
    ///
    /// # Errors
    /// The system's, when there is no descriptor, or it waits for no more.
    ///
    /// # Panics
    /// Where [`Readable::new`] does.
    pub fn after(time: Duration) -> io::Result<Self> {
        let timer = timer::timer()?;
        timer::set(&timer, time)?;
        Self::new(timer)
    }

    /// Waits until the descriptor is readable, and forgets that it was.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready())
    }
}
