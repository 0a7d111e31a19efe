//! The client that is handed around: any thread, any runtime, the work on a worker.

mod builder;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::transport::{
    Address, ConnId, Instant, Loan, LoanError, Negotiated, PortCounters, UserBytes, UserMemory,
};

pub use self::builder::ClientBuilder;
use crate::{
    cell::{CallCell, Pool, Responder, block},
    channel::{Beside, CallOptions, Channel, Ticket},
    codec::{Compose, EncodeError, compose_into},
    command::Command,
    config::Config,
    error::{ConnectError, TransportError},
    frame::Flags,
    here,
    large::{lend, no_reads},
    memory::{Accessor, Handed},
    metadata::Noted,
    method::Method,
    provider::{Any, any},
    ready::{Step, Waiting},
    reconnect::{self, Line, Lined},
    response::Response,
    route::Route,
    service::Registry,
    stats::Stats,
    status::Fate,
    workers::{Handle, WorkerSet},
};

/// How often a call is offered to a worker whose inbox is full, with a yield between.
const OFFERS: usize = 64;
/// How long a worker may be late to end a call at its deadline before a waiting caller gives it up for lost.
const GRACE: Duration = Duration::from_secs(10);

/// A connection to a server, for any number of threads and of tasks on any runtime. Cheap to clone.
///
/// When the connection ends, the calls on it end with their fates, and a new one is made by itself (see
/// [`Reconnect`](crate::Reconnect)); calls that are made until then fail at once, and did not run.
///
/// The work is done by a worker thread: a call is encoded by its caller, copied once into the ring by the worker, and
/// its answer copied once out of it. [`LocalClient`](crate::LocalClient) saves the copies and the thread.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    line: Line,
    pool: Pool,
    deadline: Option<Duration>,
    message_bytes_max: usize,
    workers: Arc<WorkerSet>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} on {:?})", self.inner.line.address(), self.inner.line.conn())
    }
}

impl Lined for Inner {
    fn line(&self) -> &Line {
        &self.line
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Said goodbye to as soon as the worker gets to it; when its inbox is full the peer sees us go with it.
        let (handle, conn) = self.line.here();
        let _ = handle.close(conn);
    }
}

/// Workers of all clients that were made without a configuration; they stop when the last of those goes.
static COMMON: Mutex<Weak<WorkerSet>> = Mutex::new(Weak::new());

fn common() -> Result<(Arc<WorkerSet>, Config), ConnectError> {
    let config = Config::default();
    let mut common = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(workers) = common.upgrade() {
        return Ok((workers, config));
    }
    let workers = Arc::new(spawn(&any(), config.clone())?);
    *common = Arc::downgrade(&workers);
    Ok((workers, config))
}

pub(crate) fn spawn(provider: &Any, config: Config) -> Result<WorkerSet, ConnectError> {
    let (plan, limits) = config.validate()?;
    Ok(WorkerSet::spawn(provider, &plan, limits, Arc::new(Registry::default()), Arc::default())?)
}

impl Client {
    /// Connects to `shm://name`, `rdma://host:port` or `mem://name`; blocks, at most for the connect and handshake
    /// time-outs. All clients of a process that are made this way share one worker thread.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        let route = Route::to(url)?;
        let (workers, config) = common()?;
        Self::by(&workers, &config, &route)
    }

    /// A client on workers that others share.
    pub(crate) fn on_url(workers: &Arc<WorkerSet>, config: &Config, url: &str) -> Result<Self, ConnectError> {
        Self::by(workers, config, &Route::to(url)?)
    }

    /// The first way that leads there.
    fn by(workers: &Arc<WorkerSet>, config: &Config, route: &Route) -> Result<Self, ConnectError> {
        let mut outcome = Err(ConnectError::NoServer { why: "no address".to_owned() });
        for address in &route.addresses {
            if here::is_alone_at(address) {
                return Err(ConnectError::OwnWorker { address: address.to_string() });
            }
            outcome = Self::on(Arc::clone(workers), config, address);
            if outcome.is_ok() {
                route.log(address);
                return outcome;
            }
        }
        outcome.map_err(|error| route.explain(error))
    }

    fn on(workers: Arc<WorkerSet>, config: &Config, address: &Address) -> Result<Self, ConnectError> {
        let place = workers.least();
        let handle = place.handle();
        let opened = handle.connect(address)?;
        let line = Line::new((place, handle), address.clone(), config.reconnect, opened);
        let pool = Pool::new(config.window + config.waiting_max.min(1024));
        let deadline = (!config.deadline.is_zero()).then_some(config.deadline);
        let inner =
            Arc::new(Inner { line, pool, deadline, message_bytes_max: config.message_bytes_max, workers });
        reconnect::watch(&inner);
        Ok(Self { inner })
    }

    /// What the connection runs with, or the last one ran with.
    #[must_use]
    pub fn negotiated(&self) -> Arc<Negotiated> {
        self.inner.line.negotiated()
    }

    /// How often the connection ended and was made again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.inner.line.reconnects()
    }

    /// Whether there is a connection that takes calls, as far as this side knows.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.line.is_up()
    }

    /// Refuses new calls (not run), waits at most `timeout` for calls in flight, and says goodbye. Applies to all
    /// clones of the client. Returns whether every call had ended.
    #[must_use]
    pub fn shutdown(self, timeout: Duration) -> bool {
        self.inner.line.leave(timeout)
    }

    /// What the port did for this connection: doorbells, frames, READs. Asks the worker, so not for a hot path;
    /// `None` when it did not answer within a second.
    #[must_use]
    pub fn port_counters(&self) -> Option<PortCounters> {
        let (handle, conn) = self.inner.line.here();
        handle.port_counters(conn)
    }

    /// Counters of this client's workers; clients made by [`Client::connect`] share theirs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.workers.stats()
    }

    /// What became of the user memory that these workers lent.
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
        if options.wait_for_ready
            && beside.is_nothing()
            && let Ok(waiting) = Waiting::new(method, options, self.inner.deadline, arguments)
        {
            let mut handed = self.hand(method, options, Beside::default(), waiting.arguments());
            handed.waiting = Some(Box::new(waiting));
            return handed;
        }
        self.hand(method, options, beside, arguments)
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
        let timeout = options.resolve(inner.deadline);
        let ((handle, conn), limit) = (inner.line.here(), inner.line.arguments_max());
        let mut handed =
            WorkerCall { inner: Arc::clone(inner), conn, cell: None, failed: None, timeout, waiting: None };
        let mut body = inner.pool.buffer();
        let mut flags = if A::IS_NOTED { Flags::METADATA } else { Flags::NONE };
        let composed = match compose_into(&mut body, limit, arguments) {
            Ok(()) => Ok(()),
            Err(EncodeError::Full) => {
                flags = flags.and(Flags::LARGE);
                self.enclose(method, limit, &mut beside, arguments).inspect(|()| body.clear())
            }
            Err(error) => Err(TransportError::Encode(error)),
        };
        if let Err(error) = composed {
            handed.failed = Some(error);
            return handed;
        }
        let Beside { loan, lanes } = beside;
        let cell = inner.pool.cell();
        let responder = Responder::new(&cell);
        match offer(&handle, Command::Call { conn, method, timeout, body, loan, flags, lanes, responder }) {
            Ok(()) => handed.cell = Some(cell),
            Err(Command::Call { responder, body, .. }) => {
                responder.defuse();
                inner.pool.put_buffer(body);
                inner.pool.put_cell(cell);
                handed.failed = Some(FULL);
            }
            Err(_) => handed.failed = Some(FULL),
        }
        handed
    }
}

/// Offers a command to a worker, whose inbox may be full for a while.
#[inline]
fn offer(handle: &Handle, mut command: Command) -> Result<(), Command> {
    for _ in 0..OFFERS {
        match handle.submit(command) {
            Ok(()) => return Ok(()),
            Err(back) => command = back,
        }
        std::thread::yield_now();
    }
    Err(command)
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
        let max = self.inner.message_bytes_max;
        let carries = beside.lanes.is_some() || beside.loan.as_ref().is_some_and(|loan| !loan.is_empty());
        if carries || method.is_oneway || max <= limit {
            return Err(TransportError::TooLarge { limit });
        }
        if self.negotiated().responder_resources.granted == 0 {
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
    /// It waits for a connection if there is none.
    waiting: Option<Box<Waiting>>,
}

impl fmt::Debug for WorkerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerCall").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl WorkerCall {
    fn ended(&mut self, response: Response) -> Response {
        if let Some(cell) = self.cell.take() {
            self.inner.pool.put_cell(cell);
        }
        response
    }

    fn without_cell(&mut self) -> Response {
        self.failed.take().map_or_else(Response::taken, Response::from)
    }
}

impl WorkerCall {
    /// Polls a call that waits for a connection, and makes it again on each that there may be.
    #[cold]
    fn poll_ready(&mut self, context: &Context<'_>) -> Poll<Response> {
        loop {
            let Some(mut waiting) = self.waiting.take() else { return self.poll_once(context) };
            match waiting.step(context, |context| self.poll_once(context)) {
                Step::Ended(response) => return Poll::Ready(response),
                Step::Pending => {
                    self.waiting = Some(waiting);
                    return Poll::Pending;
                }
                Step::Again(options) => {
                    let client = Client { inner: Arc::clone(&self.inner) };
                    *self = client.hand(waiting.method(), &options, Beside::default(), waiting.arguments());
                    self.waiting = Some(waiting);
                }
            }
        }
    }

    /// What a wait comes to on the thread that has the other end of the connection, or this one.
    #[cold]
    fn refused_here(&mut self) -> Option<Response> {
        if !here::has_end_of(&self.inner.line.negotiated()) {
            return None;
        }
        // It may have failed already.
        if let Poll::Ready(response) = self.poll_once(&Context::from_waker(Waker::noop())) {
            return Some(response);
        }
        self.waiting = None;
        self.cancel();
        Some(TransportError::OwnWorker { fate: Fate::MaybeRan }.into())
    }

    fn cancel(&mut self) {
        if let Some(cell) = self.cell.take() {
            // Lost when the inbox is full: the call then goes on to its answer or its deadline. On another worker than it was
            // made on, there is nothing to cancel.
            let _ = self.inner.line.here().0.submit(Command::Cancel(self.conn, cell));
        }
    }

    fn poll_once(&mut self, context: &Context<'_>) -> Poll<Response> {
        let Some(cell) = &self.cell else {
            return Poll::Ready(self.without_cell());
        };
        match cell.poll(context) {
            Poll::Ready(response) => Poll::Ready(self.ended(response)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Ticket for WorkerCall {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        if self.waiting.is_some() {
            return self.poll_ready(context);
        }
        self.poll_once(context)
    }

    fn wait(&mut self) -> Response {
        if here::is_serving()
            && let Some(response) = self.refused_here()
        {
            return response;
        }
        if self.waiting.is_some() {
            return block(|context| self.poll_ready(context));
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
        self.inner.pool.put_buffer(buffer);
    }
}

impl Drop for WorkerCall {
    fn drop(&mut self) {
        self.cancel();
    }
}
