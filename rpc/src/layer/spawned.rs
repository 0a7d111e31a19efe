//! Handlers as tasks of a runtime.
//!
//! ```text
//!  worker: start ─► Running ─ spawn ─► a thread of the runtime: poll … poll
//!          Away ◄──── the handler with its answer, or its panic ◄────┘
//! ```

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use gimmal_engine::transport::{Bulk, Loan, sync::once::take_or_register};

use crate::{
    admission::Admitted,
    codec::EncodeError,
    cx::Cx,
    method::Method,
    response_writer::ResponseWriter,
    runtime::{HasEnded, Runtime},
    service::Service,
    status::Status,
    task::{BoxTask, Seat, Task},
    wake::rouse,
};

/// A service whose async handlers run on a runtime's own threads, each call as a task. It is for handlers that compute for long
/// between two awaits: they delay no other call, but each call takes two changes of threads.
///
/// When a call ends early its task is cancelled. Raw and inline methods run on the worker, and so do all of a local service.
pub struct Spawned<S> {
    service: S,
    runtime: Arc<dyn Runtime>,
    only: Option<&'static [&'static str]>,
}

impl<S> fmt::Debug for Spawned<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spawned(on {:?})", self.runtime)
    }
}

impl<S: Service> Spawned<S> {
    /// Runs all async handlers of `service` on `runtime`.
    pub fn new(service: S, runtime: impl Runtime) -> Self {
        Self { service, runtime: Arc::new(runtime), only: None }
    }

    /// Runs the handlers of these methods of `service` on `runtime`, and all others on the worker. Methods are named as in the
    /// trait.
    ///
    /// # Panics
    /// The service has no method of such a name.
    pub fn only(service: S, methods: &'static [&'static str], runtime: impl Runtime) -> Self {
        for name in methods {
            let is_there = service.methods().iter().any(|method| method.name == *name);
            assert!(is_there, "the service has no method {name}");
        }
        Self { only: Some(methods), ..Self::new(service, runtime) }
    }
}

impl<S: Service> Service for Spawned<S> {
    fn methods(&self) -> &'static [Method] {
        self.service.methods()
    }

    fn is_local(&self) -> Option<bool> {
        self.service.is_local()
    }

    fn admit(&self, method: usize, cx: &Cx) -> Result<Option<Admitted>, Status> {
        self.service.admit(method, cx)
    }

    fn call_raw(
        &self,
        method: usize,
        cx: &Cx,
        request: &[u8],
        answer: &mut ResponseWriter<'_>,
    ) -> Result<(), Status> {
        self.service.call_raw(method, cx, request, answer)
    }

    fn start(
        &self,
        method: usize,
        cx: Cx,
        arguments: &[u8],
        bulk: Option<Bulk>,
        seat: &mut Seat,
    ) -> Result<(), Status> {
        let name = cx.method().name;
        self.service.start(method, cx, arguments, bulk, seat)?;
        if self.only.is_none_or(|only| only.contains(&name))
            && self.is_local().is_none()
            && let Some(task) = seat.take()
        {
            let way = Arc::new(Way { outcome: ArrayQueue::new(1), waker: AtomicWaker::new() });
            let running = Running { task: Some(task), way: Arc::clone(&way) };
            let guard = Some(self.runtime.spawn(Box::pin(running)));
            seat.give(Box::pin(Away { way, _guard: guard, done: None }));
        }
        Ok(())
    }
}

/// How a task ended.
enum Outcome {
    Done(BoxTask),
    Panicked(Box<dyn Any + Send>),
    /// Its runtime dropped it.
    Dropped,
}

/// From a task to the worker.
struct Way {
    outcome: ArrayQueue<Outcome>,
    waker: AtomicWaker,
}

impl Way {
    fn end(&self, outcome: Outcome) {
        let _ = self.outcome.push(outcome);
        rouse(&self.waker);
    }
}

/// The handler, as the runtime has it.
struct Running {
    task: Option<BoxTask>,
    way: Arc<Way>,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(task) = &mut this.task else { return Poll::Ready(()) };
        match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => {
                this.task.take().into_iter().for_each(|task| this.way.end(Outcome::Done(task)))
            }
            Err(panic) => {
                this.way.end(Outcome::Panicked(panic));
                this.task = None;
            }
        }
        Poll::Ready(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.way.end(Outcome::Dropped);
        }
    }
}

/// The handler, as its worker has it.
struct Away {
    way: Arc<Way>,
    /// Cancels the task when it is dropped.
    _guard: Option<Box<dyn Any + Send + Sync>>,
    done: Option<BoxTask>,
}

impl Away {
    fn done(self: Pin<&mut Self>) -> Option<Pin<&mut dyn Task>> {
        self.get_mut().done.as_mut().map(|task| task.as_mut() as Pin<&mut dyn Task>)
    }
}

impl Task for Away {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let way = &this.way;
        match take_or_register(|| way.outcome.pop(), || way.waker.register(context.waker())) {
            None => return Poll::Pending,
            Some(Outcome::Done(task)) => this.done = Some(task),
            // The worker tells panics of its handlers apart.
            Some(Outcome::Panicked(panic)) => resume_unwind(panic),
            Some(Outcome::Dropped) => resume_unwind(Box::new(HasEnded)),
        }
        Poll::Ready(())
    }

    fn is_error(self: Pin<&mut Self>) -> bool {
        self.done().is_some_and(Task::is_error)
    }

    fn encode(self: Pin<&mut Self>, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.done().map_or(Ok(0), |task| task.encode(out))
    }

    fn encoded_bytes(self: Pin<&mut Self>) -> Option<usize> {
        self.done().and_then(Task::encoded_bytes)
    }

    fn take_loan(self: Pin<&mut Self>) -> Option<Loan> {
        self.done().and_then(Task::take_loan)
    }

    fn clear(self: Pin<&mut Self>) {
        self.get_mut().done = None;
    }

    fn refill(self: Pin<&mut Self>, _: &mut dyn Any) -> bool {
        // The next call is a task of its own.
        false
    }
}
