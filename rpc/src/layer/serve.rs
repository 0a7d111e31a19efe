//! A look at every call of a service before its handler begins and after it ended: server layers.
//!
//! ```text
//!  Server ─► Guarded<Guarded<XServer, Metrics>, Limit>: before, before ─► handler ─► after, after
//! ```

use std::{
    any::Any,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use gimmal_engine::transport::{Bulk, Loan};

use crate::{
    admission::Admitted,
    codec::EncodeError,
    cx::Cx,
    method::Method,
    response_writer::ResponseWriter,
    service::Service,
    status::Status,
    task::{BoxTask, Seat, Task},
};

/// How a handler ended, for [`ServerLayer::after`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// With its answer.
    Answered,
    /// With its method's own error.
    Error,
    /// With a status in place of an answer.
    Failed,
    /// It was dropped, because nobody waits for it any more, or it panicked.
    Dropped,
}

/// What is done before a handler begins and after it ended, for services: [`Guarded`] puts it around one. Both run on the server's
/// worker, so they must not block. Of several layers the outermost is first before a handler, and last after it.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
///
/// use gimmal::{Client, Code, Fate, Method, Status, layer::{Guarded, ServerLayer}}; // `gimmal::info::Method`
///
/// /// Refuses calls while it is closed.
/// #[derive(Clone, Default)]
/// struct Door(Arc<AtomicBool>);
///
/// impl ServerLayer for Door {
///     type Seen = ();
///
///     fn before(&self, _: &Cx, _: &'static Method) -> Result<(), Status> {
///         match self.0.load(Ordering::Relaxed) {
///             true => Err(Status::refused(Code::Unavailable, "closed")),
///             false => Ok(()),
///         }
///     }
/// }
///
/// let door = Door::default();
/// let service = Guarded::new(serve_hello(Greeter), door.clone());
/// let server = gimmal::Server::builder().service(service).listen("mem://doc-server-layer")?;
/// let client = HelloClient::new(Client::connect("mem://doc-server-layer")?);
/// assert!(client.hello("Ada".into()).wait().is_ok());
/// door.0.store(true, Ordering::Relaxed);
/// assert_eq!(client.hello("Ada".into()).wait().unwrap_err().fate(), Fate::NotRun);
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub trait ServerLayer: Send + Sync + 'static {
    /// What is kept while the handler runs.
    type Seen: Send + 'static;

    /// Runs before the arguments are decoded, and before bulk and large arguments are brought: a call that is refused costs no more
    /// than its message.
    ///
    /// # Errors
    /// The caller gets this status, and the handler does not begin; make it with [`Status::refused`], so that the
    /// caller knows that.
    fn before(&self, cx: &Cx, method: &'static Method) -> Result<Self::Seen, Status>;

    /// Runs after the handler has ended, in whatever way. By default does nothing.
    fn after(&self, method: &'static Method, seen: Self::Seen, ended: Ended) {
        let _ = (method, seen, ended);
    }
}

/// A service with a [`ServerLayer`] around it, which is a service. Costs two allocations for a call of an async method.
#[derive(Debug)]
pub struct Guarded<S, L> {
    service: S,
    layer: Arc<L>,
}

impl<S: Service, L: ServerLayer> Guarded<S, L> {
    /// Puts `layer` around `service`.
    pub fn new(service: S, layer: L) -> Self {
        Self { service, layer: Arc::new(layer) }
    }
}

/// Tells the layer how it ended, once.
struct Watch<L: ServerLayer> {
    layer: Arc<L>,
    method: &'static Method,
    seen: Option<L::Seen>,
}

impl<L: ServerLayer> Watch<L> {
    fn end(&mut self, ended: Ended) {
        if let Some(seen) = self.seen.take() {
            self.layer.after(self.method, seen, ended);
        }
    }
}

impl<L: ServerLayer> Drop for Watch<L> {
    fn drop(&mut self) {
        self.end(Ended::Dropped);
    }
}

/// What a layer made of a call before its bulk was brought, and what those inside made of it.
struct Judged<L: ServerLayer> {
    watch: Watch<L>,
    inner: Option<Admitted>,
}

impl<S: Service, L: ServerLayer> Guarded<S, L> {
    /// The watch of a call: from the time before its bulk was brought, where that was needed.
    fn watch(&self, cx: &Cx) -> Result<Watch<L>, Status> {
        let Some(Judged { watch, inner }) = cx.take_admitted().and_then(Admitted::into_inner) else {
            return self.begin(cx);
        };
        if let Some(inner) = inner {
            cx.put_admitted(inner);
        }
        Ok(watch)
    }

    fn begin(&self, cx: &Cx) -> Result<Watch<L>, Status> {
        let method = cx.method();
        let seen = Some(self.layer.before(cx, method)?);
        Ok(Watch { layer: Arc::clone(&self.layer), method, seen })
    }
}

impl<S: Service, L: ServerLayer> Service for Guarded<S, L> {
    fn methods(&self) -> &'static [Method] {
        self.service.methods()
    }

    fn is_local(&self) -> Option<bool> {
        self.service.is_local()
    }

    fn admit(&self, method: usize, cx: &Cx) -> Result<Option<Admitted>, Status> {
        let watch = self.begin(cx)?;
        let inner = self.service.admit(method, cx)?;
        Ok(Some(Admitted::new(Judged { watch, inner })))
    }

    fn call_raw(
        &self,
        method: usize,
        cx: &Cx,
        request: &[u8],
        answer: &mut ResponseWriter<'_>,
    ) -> Result<(), Status> {
        let mut watch = self.watch(cx)?;
        let ended = self.service.call_raw(method, cx, request, answer);
        watch.end(if ended.is_ok() { Ended::Answered } else { Ended::Failed });
        ended
    }

    fn start(
        &self,
        method: usize,
        cx: Cx,
        arguments: &[u8],
        bulk: Option<Bulk>,
        seat: &mut Seat,
    ) -> Result<(), Status> {
        let watch = self.watch(&cx)?;
        self.service.start(method, cx, arguments, bulk, seat)?;
        if let Some(task) = seat.take() {
            seat.give(Box::pin(Watched { task, watch }));
        }
        Ok(())
    }
}

/// A handler under a layer.
struct Watched<L: ServerLayer> {
    task: BoxTask,
    watch: Watch<L>,
}

// What must not move lies in a box of its own.
impl<L: ServerLayer> Unpin for Watched<L> {}

impl<L: ServerLayer> Task for Watched<L> {
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let polled = this.task.as_mut().poll(context);
        if polled.is_ready() {
            let ended = if this.task.as_mut().is_error() { Ended::Error } else { Ended::Answered };
            this.watch.end(ended);
        }
        polled
    }

    fn is_error(self: Pin<&mut Self>) -> bool {
        self.get_mut().task.as_mut().is_error()
    }

    fn encode(self: Pin<&mut Self>, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.get_mut().task.as_mut().encode(out)
    }

    fn encoded_bytes(self: Pin<&mut Self>) -> Option<usize> {
        self.get_mut().task.as_mut().encoded_bytes()
    }

    fn take_loan(self: Pin<&mut Self>) -> Option<Loan> {
        self.get_mut().task.as_mut().take_loan()
    }

    fn clear(self: Pin<&mut Self>) {
        self.get_mut().task.as_mut().clear();
    }

    fn refill(self: Pin<&mut Self>, _: &mut dyn Any) -> bool {
        // The next call has a watch of its own.
        false
    }
}
