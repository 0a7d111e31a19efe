//! The client whose calls are moved by a task of the thread's own runtime.
//!
//! ```text
//!  LocalClient ─► current ─► one connection, one worker      its driver: a task
//!        ▲                                                   the keeper: a task
//!        └── swap ◄── dialled ◄── the connection is gone ◄────────┘
//! ```
//! Calls hold the connection that they were made on. So those in flight end there, and with the last of them the connection ends, and
//! its driver.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt,
    future::{Future, poll_fn},
    io,
    os::fd::AsFd,
    pin::Pin,
    rc::{Rc, Weak},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_rpc::{
    balance::{LocalTask, Member, Source, ask},
    channel::{Beside, Ticket},
    codec::Compose,
    engine::transport::sync::readable::Readable,
    local,
    memory::{Accessor, Handed},
    ready::{Attempt, Ready},
    response::Response,
    timer,
};
use tokio::task::{AbortHandle, spawn_local};

use super::runtime::AbortOnDrop;
use crate::{
    CallOptions, Channel, Client, ClientBuilder, Config, ConnectError, Loan, Reconnect, UserBytes,
    balance::{Balanced, BalancedBuilder, Resolver},
    error::StartError,
    info::Method,
};

/// Times that [`LocalClient::run_until`] polls its future before the runtime gets its turn.
const ROUNDS: usize = 64;

/// A client whose calls are moved by a task of the calling thread's runtime: no second thread, and a response wakes its caller where it
/// is decoded. It is not `Send`; clones share one connection.
///
/// It needs a runtime whose tasks may be `!Send`: a `LocalRuntime` or a `LocalSet`, with `enable_io`. It answers its peer while no call
/// is in flight, as long as the thread does not block. When the connection ends, or the server goes away, another one is made, as
/// [`ClientBuilder::reconnect`] says. Calls in flight then end on the old one.
///
/// ```
/// use gimmal::{Cx, tokio::LocalClient};
///
/// #[gimmal::service]
/// trait Hello {
///     async fn hello(&self, cx: &Cx, name: String) -> String;
/// }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::serve("mem://tokio-local", serve_hello(Greeter))?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build_local(Default::default())?;
/// # runtime.block_on(async {
///
/// let client = HelloClient::new(LocalClient::connect("mem://tokio-local").await?);
/// assert_eq!(client.hello("world".into()).await?, "Hello, world!");
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct LocalClient {
    shared: Rc<Shared>,
}

struct Shared {
    current: RefCell<local::LocalClient>,
    url: String,
    builder: ClientBuilder,
    /// Calls wait while there is no connection.
    is_lazy: bool,
    /// There is a connection that takes calls, as far as is known here.
    is_up: Cell<bool>,
    reconnects: Cell<u64>,
    /// The task that makes the next connection.
    keeper: RefCell<Option<AbortHandle>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.keeper.borrow().iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalClient({})", self.shared.url)
    }
}

impl LocalClient {
    /// Connects, without blocking the thread: names are looked up and the server is dialled on another thread.
    ///
    /// Cancel safe: dropping the future closes what there is of a connection. The attempt's thread ends within the connect and
    /// handshake time-outs.
    ///
    /// # Errors
    /// A variant of [`ConnectError`] for each cause: a malformed URL, no server, a refusal, no thread to dial by.
    ///
    /// # Panics
    /// In a runtime whose tasks must be `Send`, and in one without `enable_io`.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(Client::builder(), url).await
    }

    /// Connects with the configuration of `builder`, without blocking the thread: names are looked up and the server is dialled on
    /// another thread.
    ///
    /// Cancel safe: dropping the future closes what there is of a connection.
    ///
    /// # Errors
    /// A variant of [`ConnectError`] for each cause: a malformed URL, a setting outside its limits, no server, a refusal, no
    /// thread.
    ///
    /// # Panics
    /// In a runtime whose tasks must be `Send`, and in one without `enable_io`.
    pub async fn connect_with(builder: ClientBuilder, url: &str) -> Result<Self, ConnectError> {
        let current = open(&builder, url)?;
        current.dial(None).await?;
        Ok(Self::of(current, builder, url, true))
    }

    /// Makes a client that is connected later: returns at once, and a server is dialled again and again until one answers. Calls that
    /// start while there is no connection wait for one, within their deadlines; those with loans or streams fail, not run.
    ///
    /// # Errors
    /// A malformed URL, a setting outside its limits, no device or memory for the port. A missing server is no error.
    ///
    /// # Panics
    /// In a runtime whose tasks must be `Send`, and in one without `enable_io`.
    pub fn connect_lazy(builder: ClientBuilder, url: &str) -> Result<Self, ConnectError> {
        let current = open(&builder, url)?;
        Ok(Self::of(current, builder, url, false))
    }

    /// Connects to what `resolver` knows, with one client for each server; one that can be reached is enough, the others are tried
    /// again by a task. Each call goes to one of the servers that are there. `resolver` is asked on another thread.
    ///
    /// Cancel safe: dropping the future closes what was connected.
    ///
    /// # Errors
    /// The last server's, if none can be reached; [`ConnectError::NoServer`] if the resolver knows none.
    ///
    /// # Panics
    /// In a runtime whose tasks must be `Send`, and in one without `enable_io`.
    pub async fn balanced(
        builder: BalancedBuilder,
        resolver: impl Resolver,
    ) -> Result<Balanced<Self>, ConnectError> {
        builder.connect_on(Servers(Arc::new(resolver))).await
    }

    fn of(current: local::LocalClient, builder: ClientBuilder, url: &str, is_up: bool) -> Self {
        let reconnect = current.reconnect();
        let shared = Rc::new(Shared {
            current: RefCell::new(current),
            url: url.to_owned(),
            builder,
            is_lazy: !is_up,
            is_up: Cell::new(is_up),
            reconnects: Cell::new(0),
            keeper: RefCell::default(),
        });
        let keeper = spawn_local(keep(Rc::downgrade(&shared), reconnect, is_up));
        shared.keeper.replace(Some(keeper.abort_handle()));
        Self { shared }
    }

    /// Returns whether there is a connection that takes calls, as far as this side knows.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.is_up.get()
    }

    /// Returns how many bytes a request, or an item of a stream, may have on the connection as it is; 0 while there is none.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.shared.current.borrow().message_bytes_max()
    }

    /// Returns how often the connection ended, or was left, and another one was made.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.shared.reconnects.get()
    }

    /// Runs `main` to its end and moves the calls between its polls, as one task: the shortest way from a response to its caller,
    /// because the runtime is not involved. The runtime gets its turn after 64 rounds at the latest.
    ///
    /// Cancel safe but for `main`, which is dropped with the future: calls outside of it go on.
    pub fn run_until<F: Future>(&self, main: F) -> RunUntil<F> {
        RunUntil { client: self.clone(), main: Box::pin(main) }
    }
}

/// A client without a connection, and its driver on this runtime.
fn open(builder: &ClientBuilder, url: &str) -> Result<local::LocalClient, ConnectError> {
    let client = builder.clone().open_local(url)?;
    let started = client.driver().and_then(|driver| {
        let readable = Readable::new(driver.as_fd().try_clone_to_owned()?)?;
        Ok(driver.run(move |context: &mut Context<'_>| readable.poll(context)))
    });
    let driver = started.map_err(|error: io::Error| StartError::Thread(error.to_string()))?;
    // It ends with the client, or with its runtime.
    drop(spawn_local(driver));
    Ok(client)
}

/// Makes the first connection unless it `is_up`, and the next one whenever one is gone.
async fn keep(shared: Weak<Shared>, reconnect: Option<Reconnect>, is_up: bool) {
    let redial = reconnect.unwrap_or_default();
    if !is_up {
        let first = shared.upgrade().map(|shared| shared.current.borrow().clone());
        let Some(first) = first else { return };
        if first.dial(None).await.is_err() {
            while let Err(error) = first.dial(Some(redial)).await {
                fall_short(&error, redial).await;
            }
        }
        shared.upgrade().iter().for_each(|shared| shared.is_up.set(true));
    }
    if reconnect.is_none() {
        return;
    }
    while let Some(gone) = shared.upgrade().map(|shared| shared.current.borrow().gone()) {
        gone.await;
        shared.upgrade().iter().for_each(|shared| shared.is_up.set(false));
        while let Err(error) = move_on(&shared, redial).await {
            fall_short(&error, redial).await;
        }
    }
}

/// Waits for what is short to dial with: threads, descriptors or memory.
async fn fall_short(error: &ConnectError, reconnect: Reconnect) {
    tracing::warn!(%error, "no connection yet");
    pause(reconnect.max).await;
}

/// Waits by a descriptor of the runtime's, which may have no clock. Where there is none left it takes a thread: with neither, each of
/// the runtime's rounds looks at the time.
async fn pause(time: Duration) {
    match Readable::after(time) {
        // An error: the runtime ends.
        Ok(timer) => drop(poll_fn(|context| timer.poll(context)).await),
        Err(_) => timer::pause(time).await,
    }
}

/// Makes the next connection, to which calls go from then on.
async fn move_on(shared: &Weak<Shared>, reconnect: Reconnect) -> Result<(), ConnectError> {
    let next = match shared.upgrade() {
        Some(shared) => open(&shared.builder, &shared.url)?,
        None => return Ok(()),
    };
    next.dial(Some(reconnect)).await?;
    if let Some(shared) = shared.upgrade() {
        // The calls of the last one hold it until they have ended.
        drop(shared.current.replace(next));
        shared.is_up.set(true);
        shared.reconnects.set(shared.reconnects.get() + 1);
    }
    Ok(())
}

impl Shared {
    /// Starts a call, which fails at once where there is no connection.
    fn attempt(&self, attempt: &Attempt<'_>) -> local::LocalCall {
        self.current.borrow().start(attempt.method, attempt.options, Beside::default(), attempt.arguments)
    }

    #[cold]
    fn when_ready<A: Compose + ?Sized>(
        self: &Rc<Self>,
        method: &'static Method,
        options: &CallOptions,
        arguments: &A,
    ) -> Option<LocalCall> {
        let ready = Ready::new(method, options, self.current.borrow().deadline(), arguments)?;
        Some(LocalCall(Stage::Waiting(Box::new((Rc::clone(self), ready)))))
    }
}

/// The ticket of a call on a [`LocalClient`], of which a [`Call`](crate::Call) is made. Dropping it cancels the call.
pub struct LocalCall(Stage);

enum Stage {
    Started(local::LocalCall),
    Waiting(Box<(Rc<Shared>, Ready<local::LocalCall>)>),
}

const _: () = assert!(size_of::<LocalCall>() == 2 * size_of::<usize>());

impl fmt::Debug for LocalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Stage::Started(call) => write!(f, "{call:?}"),
            Stage::Waiting(_) => f.write_str("LocalCall(waits for a connection)"),
        }
    }
}

impl Ticket for LocalCall {
    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.0 {
            Stage::Started(call) => call.poll(context),
            Stage::Waiting(waiting) => {
                let (shared, ready) = &mut **waiting;
                ready.poll(context, |attempt| shared.attempt(attempt))
            }
        }
    }

    #[inline]
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.0 {
            Stage::Started(call) => call.poll_first(context),
            Stage::Waiting(_) => self.poll(context),
        }
    }

    #[inline]
    fn wait(&mut self) -> Response {
        match &mut self.0 {
            Stage::Started(call) => call.wait(),
            Stage::Waiting(waiting) => {
                let (shared, ready) = &mut **waiting;
                ready.wait(|attempt| shared.attempt(attempt))
            }
        }
    }

    #[inline]
    fn wait_in_place(&mut self, visit: &mut dyn FnMut(&[u8])) -> Option<Response> {
        match &mut self.0 {
            Stage::Started(call) => call.wait_in_place(visit),
            Stage::Waiting(_) => Some(self.wait()),
        }
    }

    #[inline]
    fn recycle(&mut self, buffer: Vec<u8>) {
        if let Stage::Started(call) = &mut self.0 {
            call.recycle(buffer);
        }
    }

    fn detach(&mut self) {
        if let Stage::Started(call) = &mut self.0 {
            call.detach();
        }
    }
}

impl Channel for LocalClient {
    type Ticket = LocalCall;

    #[inline]
    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Self::Ticket {
        let shared = &self.shared;
        if (options.wait_for_ready || shared.is_lazy && !shared.is_up.get())
            && beside.is_nothing()
            && let Some(waiting) = shared.when_ready(method, options, arguments)
        {
            return waiting;
        }
        LocalCall(Stage::Started(shared.current.borrow().start(method, options, beside, arguments)))
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.shared.current.borrow().default_timeout()
    }

    fn drive(&self, idle: Duration) -> bool {
        self.shared.current.borrow().drive(idle)
    }

    fn loan(&self, bytes: usize) -> Result<Loan, crate::error::LoanError> {
        self.shared.current.borrow().loan(bytes)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, crate::error::LoanError> {
        self.shared.current.borrow().lend(bytes)
    }
}

impl Accessor for LocalClient {
    fn hand_access(&self, handed: Handed) {
        self.shared.current.borrow().hand_access(handed);
    }
}

impl Member for LocalClient {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }
}

/// The servers of a [`Balanced`] over clients of this runtime.
struct Servers<R>(Arc<R>);

impl<R: Resolver> Source for Servers<R> {
    type Client = LocalClient;

    async fn resolve(&self) -> Result<Vec<String>, String> {
        // A thread of the runtime's would end this task where none can be had, and keep the runtime from its end.
        let resolver = Arc::clone(&self.0);
        ask(move || resolver.resolve()).await
    }

    async fn connect(&self, config: &Config, url: &str) -> Result<LocalClient, ConnectError> {
        LocalClient::connect_with(Client::builder().config(config.clone()), url).await
    }

    fn pause(&self, time: Duration) -> impl Future<Output = ()> {
        pause(time)
    }

    fn spawn(&self, task: LocalTask) -> Box<dyn Any + Send + Sync> {
        Box::new(AbortOnDrop(spawn_local(task)))
    }
}

/// The future of [`LocalClient::run_until`]: it runs a future of the user's to its end, and moves the client's calls between its
/// polls.
#[must_use = "nothing happens until this is polled"]
pub struct RunUntil<F> {
    client: LocalClient,
    main: Pin<Box<F>>,
}

impl<F> fmt::Debug for RunUntil<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunUntil({:?})", self.client)
    }
}

impl<F: Future> Future for RunUntil<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        for _ in 0..ROUNDS {
            if let Poll::Ready(output) = this.main.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            let current = this.client.shared.current.borrow();
            if current.poll_turns(context).is_pending() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
