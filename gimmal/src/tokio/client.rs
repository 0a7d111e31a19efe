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
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    io,
    os::fd::AsFd,
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use gimmal_rpc::{channel::Beside, codec::Compose, engine::transport::sync::readable::Readable, local};
use tokio::task::{AbortHandle, spawn_local};

use crate::{
    CallOptions, Channel, Client, ClientBuilder, ConnectError, Loan, Reconnect, UserBytes, error::StartError,
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
    /// See [`ConnectError`].
    ///
    /// # Panics
    /// In a runtime whose tasks must be `Send`, and in one without `enable_io`.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(Client::builder(), url).await
    }

    /// Connects with a configuration; otherwise like [`LocalClient::connect`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    ///
    /// # Panics
    /// See [`LocalClient::connect`].
    pub async fn connect_with(builder: ClientBuilder, url: &str) -> Result<Self, ConnectError> {
        let current = open(&builder, url)?;
        current.dial(None).await?;
        let shared = Rc::new(Shared {
            current: RefCell::new(current),
            url: url.to_owned(),
            builder,
            reconnects: Cell::new(0),
            keeper: RefCell::default(),
        });
        if let Some(reconnect) = shared.current.borrow().reconnect() {
            let keeper = spawn_local(keep(Rc::downgrade(&shared), reconnect));
            shared.keeper.replace(Some(keeper.abort_handle()));
        }
        Ok(Self { shared })
    }

    /// How often the connection ended, or was left, and another one was made.
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

/// Makes the next connection whenever one is gone.
async fn keep(shared: Weak<Shared>, reconnect: Reconnect) {
    while let Some(gone) = shared.upgrade().map(|shared| shared.current.borrow().gone()) {
        gone.await;
        while let Err(error) = move_on(&shared, reconnect).await {
            tracing::warn!(%error, "no other connection yet");
            // Too few threads, descriptors or memory: not soon.
            let _ = tokio::task::spawn_blocking(move || std::thread::sleep(reconnect.max)).await;
        }
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
        shared.reconnects.set(shared.reconnects.get() + 1);
    }
    Ok(())
}

impl Channel for LocalClient {
    type Ticket = local::LocalCall;

    #[inline]
    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Self::Ticket {
        self.shared.current.borrow().start(method, options, beside, arguments)
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

/// See [`LocalClient::run_until`].
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
