//! The client that is handed around: any thread, any runtime, the work on a worker.

mod builder;
mod connect;

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::{
    transport::{ConnId, Instant, Loan, LoanError, Negotiated, PortCounters, UserBytes, UserMemory},
    worker::duty::DutySnapshot,
};

pub(crate) use self::connect::spawn;
pub use self::{builder::ClientBuilder, connect::Connecting};
use crate::{
    cell::{CallCell, Responder},
    channel::{Beside, CallOptions, Channel, Ticket},
    codec::{Compose, EncodeError, compose_into},
    command::Command,
    error::TransportError,
    frame::Flags,
    here,
    large::{lend, no_reads, put_metadata},
    memory::{Accessor, Handed},
    metadata::Noted,
    method::Method,
    ready::{Attempt, Ready},
    reconnect::{self, Line, Lined},
    response::Response,
    stats::Stats,
    status::Fate,
    stream::Streams,
    workers::{WorkerSet, offer},
};

/// How long a worker may be late to end a call at its deadline before a waiting caller gives it up for lost.
const GRACE: Duration = Duration::from_secs(10);

/// A connection to a server, for any number of threads and of tasks on any runtime. Cheap to clone.
///
/// When the connection ends, the calls on it end with their fates, and a new one is made by itself (see
/// [`Reconnect`](crate::Reconnect)); calls that are made until then fail at once, and did not run.
///
/// The work is done by a worker thread: a call is encoded by its caller, copied once into the ring by the worker, and
/// its answer copied once out of it. [`LocalClient`](crate::LocalClient) saves the copies and the thread.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// # use gimmal::Cx;
/// # #[gimmal::service(crate = gimmal_rpc)]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// use gimmal::Client;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-client")?;
/// let client = HelloClient::new(Client::builder().connect("mem://doc-client")?);
/// let (one, other) = (client.hello("Ada".into()), client.hello("Bob".into())); // both are in flight
/// assert_eq!(one.wait()?, "Hello, Ada!");
/// assert_eq!(other.wait()?, "Hello, Bob!"); // or `.await`, in any runtime
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    line: Line,
    deadline: Option<Duration>,
    message_bytes_max: usize,
    /// Calls wait while there is no connection.
    is_lazy: bool,
    workers: Arc<WorkerSet>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} on {:?})", self.inner.line.name(), self.inner.line.conn())
    }
}

impl Lined for Inner {
    fn line(&self) -> &Line {
        &self.line
    }

    fn workers(&self) -> &WorkerSet {
        &self.workers
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.line.end(&self.workers);
    }
}

impl Client {
    /// Returns what the connection runs with, or the last one ran with; `None` before the first.
    #[must_use]
    pub fn negotiated(&self) -> Option<Arc<Negotiated>> {
        self.inner.line.negotiated()
    }

    /// Returns how many bytes a request, or an item of a stream, may have on the connection as it is; 0 before the first.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.inner.line.arguments_max()
    }

    /// Returns how often the connection ended, or was left, and another one was made.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.inner.line.reconnects()
    }

    /// Returns whether there is a connection that takes calls, as far as this side knows.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.line.is_up()
    }

    /// Refuses new calls (not run), waits for calls in flight, and says goodbye. Applies to all clones of the client. Returns
    /// whether every call had ended; `false`: those that had not are cut off.
    ///
    /// Blocks the thread for `timeout` at most. In a handler that runs on the connection's own worker it does not wait, and returns
    /// `false`.
    #[must_use]
    pub fn shutdown(self, timeout: Duration) -> bool {
        self.inner.line.leave(timeout, &self.inner.workers)
    }

    /// Returns what the port did for this connection: doorbells, frames, READs. `None` when the worker did not answer.
    ///
    /// Asks the worker and blocks for up to a second, so it is not for a hot path nor for a task.
    #[must_use]
    pub fn port_counters(&self) -> Option<PortCounters> {
        let (handle, conn) = self.inner.line.here();
        handle.port_counters(conn)
    }

    /// Returns the counters of this client's workers. Clients made by [`Client::connect`] share their worker, so they are counted
    /// together.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.workers.stats()
    }

    /// Returns what each worker of this client did: its turns and sleeps, its longest turn. `tuning.md` says what follows from
    /// them.
    #[must_use]
    pub fn duty(&self) -> Vec<DutySnapshot> {
        self.inner.workers.duty()
    }

    /// Returns what became of the user memory ([`Channel::lend`]) that the workers of this client lent.
    #[must_use]
    pub fn user_memory(&self) -> UserMemory {
        self.inner.workers.user_memory()
    }
}

impl Channel for Client {
    type Ticket = WorkerCall;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> WorkerCall {
        let inner = &self.inner;
        if (options.wait_for_ready || inner.is_lazy && !inner.line.is_up())
            && beside.is_nothing()
            && let Some(ready) = Ready::new(method, options, inner.deadline, arguments)
        {
            let mut call = WorkerCall::of(inner);
            call.ready = Some(Box::new(ready));
            return call;
        }
        self.hand(method, options, beside, arguments)
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.inner.deadline
    }

    fn drive(&self, _: Duration) -> bool {
        false
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        let (handle, conn) = self.inner.line.here();
        Ok(handle.allocate(conn, bytes.max(1))?.truncate(bytes))
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        let (handle, conn) = self.inner.line.here();
        handle.lend(conn, bytes)
    }
}

impl Client {
    fn hand<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> WorkerCall {
        match options.noted(method) {
            None => self.hand_with(method, options, beside, arguments),
            Some(metadata) => self.hand_with(method, options, beside, &Noted { metadata, arguments }),
        }
    }

    fn hand_with<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        mut beside: Beside,
        arguments: &A,
    ) -> WorkerCall {
        let inner = &self.inner;
        let timeout = match &beside.streams {
            None => options.resolve(inner.deadline),
            Some(_) => options.resolve_streams(),
        };
        let ((handle, conn), limit) = (inner.line.here(), inner.line.arguments_max());
        let mut handed = WorkerCall::of(inner);
        (handed.conn, handed.timeout) = (conn, timeout);
        let pool = inner.workers.pool();
        let mut body = pool.buffer();
        let mut flags = if A::IS_NOTED { Flags::METADATA } else { Flags::NONE };
        let composed = match compose_into(&mut body, limit, arguments) {
            Ok(()) => Ok(()),
            Err(EncodeError::Full) => {
                let noted = flags;
                flags = flags.and(Flags::LARGE);
                self.enclose(method, limit, &mut beside, arguments).inspect(|()| {
                    put_metadata(&mut body, noted, beside.loan.as_deref().unwrap_or_default(), limit);
                })
            }
            Err(error) => Err(TransportError::Encode(error)),
        };
        if let Err(error) = composed {
            handed.failed = Some(error);
            return handed;
        }
        let Beside { loan, streams } = beside;
        let (lanes, is_later) = Streams::apart(streams);
        let cell = pool.cell();
        let responder = Responder::new(&cell);
        let call = Command::Call { conn, method, timeout, body, loan, flags, lanes, is_later, responder };
        match offer(&handle, call) {
            Ok(()) => handed.cell = Some(cell),
            Err(Command::Call { responder, body, .. }) => {
                responder.defuse();
                pool.put_buffer(body);
                pool.put_cell(cell);
                handed.failed = Some(FULL);
            }
            Err(_) => handed.failed = Some(FULL),
        }
        handed
    }
}

const FULL: TransportError =
    TransportError::Worker { why: "its inbox is full: too many calls started at once", fate: Fate::NotRun };

impl Accessor for Client {
    fn hand_access(&self, handed: Handed) {
        let (handle, conn) = self.inner.line.here();
        if let Err(Command::Access(_, handed)) = offer(&handle, Command::Access(conn, Box::new(handed))) {
            handed.responder.complete(Err(FULL));
        }
    }
}

impl Client {
    /// Writes arguments that are above `limit`, what a message holds, into registered memory that goes with the call.
    #[cold]
    fn enclose<A: Compose + ?Sized>(
        &self,
        method: &Method,
        limit: usize,
        beside: &mut Beside,
        arguments: &A,
    ) -> Result<(), TransportError> {
        let Some(negotiated) = self.negotiated() else {
            let why = "there is no connection yet";
            return Err(TransportError::Worker { why, fate: Fate::NotRun });
        };
        let max = self.inner.message_bytes_max;
        let carries = beside.streams.is_some() || beside.loan.as_ref().is_some_and(|loan| !loan.is_empty());
        if carries || method.is_oneway || max <= limit {
            return Err(TransportError::TooLarge { limit });
        }
        if negotiated.responder_resources.granted == 0 {
            return Err(no_reads());
        }
        let compose = |out: &mut [u8]| arguments.compose(out);
        let loan = lend(arguments.composed_bytes(), (limit, max), compose, |bytes| self.loan(bytes));
        beside.loan = Some(loan.map_err(|error| error.of_request(max))?);
        Ok(())
    }
}

/// A call that was handed to a worker.
pub struct WorkerCall {
    inner: Arc<Inner>,
    /// On which it was made.
    conn: ConnId,
    /// Until the response was taken.
    cell: Option<Arc<CallCell>>,
    failed: Option<TransportError>,
    timeout: Option<Duration>,
    /// It waits for a connection if there is none: then its attempts are in here.
    ready: Option<Box<Ready<Self>>>,
}

impl fmt::Debug for WorkerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerCall").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl WorkerCall {
    fn ended(&mut self, response: Response) -> Response {
        // Something comes yet where that was the beginning, and nobody asked for it.
        if let Some(cell) = self.cell.take().filter(|_| !response.has_begun()) {
            self.inner.workers.pool().put_cell(cell);
        }
        response
    }

    /// As [`WorkerCall::ended`], where a task was woken.
    fn came(&mut self, response: Response) -> Response {
        self.inner.workers.woken.wake_all();
        self.ended(response)
    }

    fn without_cell(&mut self) -> Response {
        self.failed.take().map_or_else(Response::taken, Response::from)
    }
}

impl WorkerCall {
    fn of(inner: &Arc<Inner>) -> Self {
        let inner = Arc::clone(inner);
        Self { inner, conn: reconnect::NOWHERE, cell: None, failed: None, timeout: None, ready: None }
    }

    /// Makes an attempt of a call that waits for a connection.
    fn attempt(inner: &Arc<Inner>, attempt: &Attempt<'_>) -> Self {
        let client = Client { inner: Arc::clone(inner) };
        client.hand(attempt.method, attempt.options, Beside::default(), attempt.arguments)
    }

    /// What a wait comes to on the thread that has the other end of the connection, or this one.
    #[cold]
    fn refused_here(&mut self) -> Option<Response> {
        if !self.inner.line.is_here() {
            return None;
        }
        // It may have failed already.
        if let Poll::Ready(response) = self.poll(&mut Context::from_waker(Waker::noop())) {
            return Some(response);
        }
        self.ready = None;
        self.cancel();
        Some(TransportError::OwnWorker { fate: Fate::MaybeRan }.into())
    }

    fn cancel(&mut self) {
        if let Some(cell) = self.cell.take() {
            // On another worker than it was made on, there is nothing to cancel.
            let handle = self.inner.line.here().0;
            if let Err(Command::Cancel(conn, cell)) = offer(&handle, Command::Cancel(self.conn, cell)) {
                self.inner.workers.ask_late(&handle, |asked| asked.cancels.push((conn, cell)));
            }
        }
    }

    fn poll_once(&mut self, context: &Context<'_>) -> Poll<Response> {
        let Some(cell) = &self.cell else {
            return Poll::Ready(self.without_cell());
        };
        match cell.poll(context) {
            Poll::Ready(response) => Poll::Ready(self.came(response)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Ticket for WorkerCall {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Self { inner, ready: Some(ready), .. } = self else { return self.poll_once(context) };
        ready.poll(context, |attempt| Self::attempt(inner, attempt))
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Some(cell) = &self.cell else { return self.poll(context) };
        match cell.poll(context) {
            // The answer comes into the same cell.
            Poll::Ready(response) if !response.has_begun() => Poll::Ready(self.came(response)),
            polled => polled,
        }
    }

    fn wait(&mut self) -> Response {
        if here::is_serving()
            && let Some(response) = self.refused_here()
        {
            return response;
        }
        if let Self { inner, ready: Some(ready), .. } = self {
            return ready.wait(|attempt| Self::attempt(inner, attempt));
        }
        let Some(cell) = &self.cell else {
            return self.without_cell();
        };
        let deadline = Instant::now() + self.timeout.unwrap_or(Duration::MAX);
        // The grace begins when this thread sees the deadline pass: if the whole process was stopped meanwhile, its worker
        // gets the time to end the call.
        match cell.wait(deadline).or_else(|| cell.wait(Instant::now() + GRACE)) {
            Some(response) => self.ended(response),
            None => {
                let why = "it did not end the call at its deadline";
                TransportError::Worker { why, fate: Fate::MaybeRan }.into()
            }
        }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        self.inner.workers.pool().put_buffer(buffer);
    }

    fn detach(&mut self) {
        self.cell = None;
    }
}

impl Drop for WorkerCall {
    fn drop(&mut self) {
        self.cancel();
    }
}
