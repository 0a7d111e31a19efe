//! A tokio runtime as a server's [`Runtime`].

use std::{
    any::Any,
    cell::Cell,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use ::tokio::{
    runtime::{Handle, TryCurrentError},
    task::{
        JoinHandle, LocalSet,
        coop::{RestoreOnPending, poll_proceed},
    },
};
use gimmal_rpc::{Runtime, runtime::BoxFuture};

/// A tokio runtime for the handlers of a server: give it to [`ServerBuilder::runtime`](crate::ServerBuilder::runtime). Handlers may
/// then use its timers, sockets and tasks, while a worker of gimmal still polls them.
///
/// A clone is the same runtime. A `Tokio` does not keep it alive.
///
/// ```
/// use std::time::Duration;
///
/// use gimmal::{Cx, Server, tokio::Tokio};
///
/// # #[gimmal::service]
/// # trait Nap { async fn nap(&self, cx: &Cx) -> String; }
/// # struct Napper;
/// # impl Nap for Napper {
/// // A handler, which may use all of tokio:
/// async fn nap(&self, _: &Cx) -> String {
///     tokio::time::sleep(Duration::from_millis(1)).await;
///     "rested".to_owned()
/// }
/// # }
/// # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// let server = Server::builder().service(serve_nap(Napper)).runtime(Tokio::current()?).listen("mem://doc-tokio")?;
/// let client = NapClient::new(gimmal::connect("mem://doc-tokio")?);
/// assert_eq!(client.nap().await?, "rested");
/// # drop(server);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tokio(Handle);

impl Tokio {
    /// Returns the runtime that the calling thread is in.
    ///
    /// # Errors
    /// The thread is in no runtime.
    pub fn current() -> Result<Self, TryCurrentError> {
        Handle::try_current().map(Self)
    }
}

impl From<Handle> for Tokio {
    fn from(handle: Handle) -> Self {
        Self(handle)
    }
}

impl Runtime for Tokio {
    fn enter(&self, run: &mut dyn FnMut()) {
        let _entered = self.0.enter();
        run();
    }

    fn before_poll(&self) {
        renew_budget();
    }

    fn spawn(&self, task: BoxFuture) -> Box<dyn Any + Send + Sync> {
        Box::new(AbortOnDrop(self.0.spawn(task)))
    }
}

pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

thread_local! {
    /// A whole budget of tokio's cooperative scheduling. Dropping it makes it the thread's budget.
    static WHOLE: Cell<Option<RestoreOnPending>> = Cell::new(whole_budget());
}

/// Gives the thread the budget that tokio gives a task for one poll, so that a handler for which something is always ready
/// yields.
fn renew_budget() {
    // A thread at its end has no budget any more.
    let _ = WHOLE.try_with(|whole| {
        drop(whole.take());
        let again = poll_proceed(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(again) = again {
            whole.set(Some(again));
        }
    });
}

/// Takes the budget out of a task: tokio has no other way to it.
fn whole_budget() -> Option<RestoreOnPending> {
    let (set, found) = (LocalSet::new(), Rc::new(Cell::new(None)));
    let budget = Rc::clone(&found);
    set.spawn_local(async move {
        if let Poll::Ready(whole) = poll_proceed(&mut Context::from_waker(Waker::noop())) {
            budget.set(Some(whole));
        }
    });
    // The task is ready at once, and so is the set.
    let _ = pin!(set).poll(&mut Context::from_waker(Waker::noop()));
    found.take()
}

#[cfg(test)]
mod tests {
    use ::tokio::task::coop::has_budget_remaining;

    use super::*;

    /// How often something that is always ready lets a task go on.
    fn spend() -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let proceed = |_: &usize| match poll_proceed(&mut context) {
            Poll::Ready(proceeded) => {
                proceeded.made_progress();
                true
            }
            Poll::Pending => false,
        };
        (0..1000).take_while(proceed).count()
    }

    #[test]
    fn every_poll_has_a_whole_budget() {
        assert_eq!(spend(), 1000, "a thread of no runtime has no limit");
        for _ in 0..3 {
            renew_budget();
            assert_eq!(spend(), 127);
            assert!(!has_budget_remaining());
        }
    }

    #[test]
    fn a_budget_is_taken_inside_a_runtime_too() {
        let runtime = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            spend();
            for _ in 0..3 {
                renew_budget();
                assert_eq!(spend(), 127);
            }
        });
    }
}
