//! Foreign async runtimes, as a server uses them for its handlers.
//!
//! ```text
//!  worker ─ enter ─┬─ before_poll, poll ─┬─►  handler ─► timers, sockets and tasks of the runtime
//!   for its life   └─ drop ──────────────┘       ▲──────── wake ◄──┘ from the runtime's threads
//! ```

use std::{any::Any, fmt, future::Future, pin::Pin};

/// A task that a [`Runtime`] spawns.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An async runtime whose timers, sockets and tasks a server's handlers use; see
/// [`ServerBuilder::runtime`](crate::ServerBuilder::runtime).
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Calls `run` once, on the calling thread and inside the runtime. Everything that `run` polls and drops may use the
    /// runtime. For a worker's thread this lasts as long as the thread.
    fn enter(&self, run: &mut dyn FnMut());

    /// Called inside the runtime before each poll of a handler. A runtime that limits what a task may do in one poll starts
    /// counting again here.
    fn before_poll(&self) {}

    /// Runs `task` on the runtime's own threads. Dropping the returned guard cancels the task. A runtime that has ended, or
    /// ends, drops the task.
    fn spawn(&self, task: BoxFuture) -> Box<dyn Any + Send + Sync>;
}

/// What a handler panics with when its runtime has dropped it.
pub(crate) struct HasEnded;

/// Calls `run` once, inside `runtime` if there is one.
pub(crate) fn enter(runtime: Option<&dyn Runtime>, run: &mut dyn FnMut()) {
    match runtime {
        Some(runtime) => runtime.enter(run),
        None => run(),
    }
}

/// What `act` returns, which runs inside `runtime` if there is one.
pub(crate) fn within<R>(runtime: Option<&dyn Runtime>, act: impl FnOnce() -> R) -> R {
    let (mut act, mut outcome) = (Some(act), None);
    enter(runtime, &mut || outcome = act.take().map(|act| act()));
    outcome.expect("a runtime calls the function that it is to enter for")
}
