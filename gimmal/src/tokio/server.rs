//! Servers whose turns are a task of a tokio runtime.

use std::{future::Future, io, os::fd::AsFd, task::Context, time::Duration};

use ::tokio::task::coop::unconstrained;
use gimmal_rpc::engine::transport::sync::readable::Readable;

use crate::local::LocalServer;

/// Serves on the calling thread, as a part of the current task: the server's turns and its handlers run between other tasks of
/// the thread's runtime. Returns when `signal` is ready and the server has shut down, within `timeout` and about a second:
/// `true` if everything had ended, as [`Server::shutdown`](crate::Server::shutdown) says.
///
/// It is for a current-thread runtime with `enable_io`, and for a server that was given that runtime
/// ([`Tokio::current`](crate::tokio::Tokio::current)).
///
/// Not cancel safe: dropping the future drops the server, whose connections end.
///
/// # Errors
/// The system's, when there are no more descriptors, and the runtime's while it shuts down.
///
/// # Panics
/// Outside of a tokio runtime, and in one without `enable_io`.
pub async fn serve_until(server: LocalServer, signal: impl Future, timeout: Duration) -> io::Result<bool> {
    let alarm = server.alarm()?;
    let readable = Readable::new(alarm.as_fd().try_clone_to_owned()?)?;
    let readable = |context: &mut Context<'_>| readable.poll(context);
    // Handlers have budgets of their own.
    unconstrained(server.serve_until(alarm, readable, signal, timeout)).await
}
