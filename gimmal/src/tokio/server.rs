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
/// The system's, when there are no more descriptors, and the runtime's while it shuts down. Where `signal` was not what ended it, after
/// the shutdown: why the server did not listen any more.
///
/// # Panics
/// Outside of a tokio runtime, and in one without `enable_io`.
///
/// ```
/// use std::time::Duration;
///
/// use gimmal::{Cx, Server, tokio::{Tokio, serve_until}};
///
/// # #[gimmal::service]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
///
/// let builder = Server::builder().service(serve_hello(Greeter)).runtime(Tokio::current()?);
/// let server = builder.listen_local("mem://doc-serve-until")?;
/// let signal = tokio::time::sleep(Duration::from_millis(10)); // or tokio::signal::ctrl_c()
/// assert!(serve_until(server, signal, Duration::from_secs(60)).await?, "every handler has ended");
/// # Ok(())
/// # })
/// # }
/// ```
pub async fn serve_until(server: LocalServer, signal: impl Future, timeout: Duration) -> io::Result<bool> {
    let alarm = server.alarm()?;
    let readable = Readable::new(alarm.as_fd().try_clone_to_owned()?)?;
    let readable = |context: &mut Context<'_>| readable.poll(context);
    // Handlers have budgets of their own.
    unconstrained(server.serve_until(alarm, readable, signal, timeout)).await
}
