//! One-sided access: a server exposes memory to a caller, which reads and changes it while no handler runs.
//!
//! ```text
//!  handler: Cx::expose ─► Exposed ─ Cx::show ─► RemoteMemory ─ in an answer ─► the caller: read, write, compare_swap, fetch_add
//! ```

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::transport::{Accessed, Instant, Loan, Negotiated, OneSided, REMOTE_BYTES, Remote};
use gimmal_macros::Shape;
use serde::{Deserialize, Serialize};

use crate::{
    cell::{CallCell, Responder},
    channel::Channel,
    error::TransportError,
    here,
    status::Fate,
};

/// How long a thread waits: a connection that is lost has ended long before.
const LIMIT: Duration = Duration::from_secs(60);

/// What a handler that shows memory gets.
pub(crate) type Shown = Result<RemoteMemory, TransportError>;

/// How an access ended, in its cell.
pub(crate) type Ended = Result<Accessed, TransportError>;

/// Memory that a server has exposed to its caller, as a value that travels in an answer.
///
/// The memory can be used through the connection that it was shown on, until its owner drops the
/// [`Exposed`](crate::engine::transport::Exposed). After a
/// reconnect the client asks for it again. Any other access is refused, not run. Several accesses may be in flight, as
/// many as `window`, in no order among themselves or with calls. Wait for one before the next that depends on it.
/// Offsets are bytes.
///
/// ```
/// # use std::sync::{Arc, OnceLock};
/// # use gimmal_rpc::{self as gimmal, Client, Cx, Server, engine::transport::Exposed};
/// use gimmal::{Channel as _, memory::RemoteMemory};
///
/// # #[gimmal_rpc::service(crate = gimmal_rpc)]
/// # trait Counters { async fn open(&self, cx: &Cx) -> Result<RemoteMemory, String>; }
/// # #[derive(Default)]
/// # struct Shared(OnceLock<Arc<Exposed>>);
/// # impl Counters for Shared {
/// // A handler, which keeps what it exposed in `self`:
/// async fn open(&self, cx: &Cx) -> Result<RemoteMemory, String> {
///     let exposed = self.0.get_or_init(|| cx.expose(4096).expect("4 KiB of memory"));
///     cx.show(exposed).await.map_err(|error| error.to_string())
/// }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let _server = Server::builder().service(serve_counters(Shared::default())).listen("mem://doc-memory")?;
/// # let client = CountersClient::new(Client::connect("mem://doc-memory")?);
///
/// // Its caller:
/// let (memory, channel) = (client.open().wait()?, client.channel());
/// assert_eq!(memory.fetch_add(channel, 8, 5).wait()?, 0); // or `.await`; returns the word as it was
/// let loan = memory.read(channel, 8, channel.loan(8)?).wait()?;
/// assert_eq!(loan[0], 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct RemoteMemory {
    place: [u8; REMOTE_BYTES],
    /// Of its connection.
    nonce: u128,
}

impl RemoteMemory {
    pub(crate) fn new(remote: &Remote, connection: &Negotiated) -> Self {
        Self { place: remote.encode(), nonce: connection.nonce }
    }

    /// What the port knows it by, if it was shown on `connection`.
    pub(crate) fn on(&self, connection: &Negotiated) -> Option<Remote> {
        Remote::decode(&self.place).ok().filter(|_| self.nonce == connection.nonce)
    }

    /// Returns the size in bytes, as the server says.
    #[must_use]
    pub fn len(&self) -> u64 {
        Remote::decode(&self.place).map_or(0, |remote| remote.len())
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the bytes from `at` on into a [loan](Channel::loan) of `client`, as many as it has, and returns the loan.
    /// Words of 8 bytes are never torn; several words may be of different moments.
    pub fn read<C: Accessor>(&self, client: &C, at: u64, into: Loan) -> Access<C, Loan> {
        Access::start(client, *self, OneSided::Read { at, into }, loan)
    }

    /// Writes the bytes of a [loan](Channel::loan) of `client` to `at`, and returns the loan. The bytes are in place when
    /// a read or an atomic operation that was started afterwards has ended.
    pub fn write<C: Accessor>(&self, client: &C, at: u64, from: Loan) -> Access<C, Loan> {
        Access::start(client, *self, OneSided::Write { at, from }, loan)
    }

    /// Sets the word at `at`, a multiple of 8, to `new` if it is `expected`, and returns what it was before. Atomic, where
    /// the device can: see [`Negotiated::atomics`].
    pub fn compare_swap<C: Accessor>(&self, client: &C, at: u64, expected: u64, new: u64) -> Access<C, u64> {
        Access::start(client, *self, OneSided::CompareSwap { at, expected, new }, word)
    }

    /// Adds to the word at `at`, a multiple of 8, and returns what it was before. The sum wraps. Atomic, where the device
    /// can: see [`Negotiated::atomics`].
    pub fn fetch_add<C: Accessor>(&self, client: &C, at: u64, add: u64) -> Access<C, u64> {
        Access::start(client, *self, OneSided::FetchAdd { at, add }, word)
    }
}

fn loan(accessed: Accessed) -> Option<Loan> {
    match accessed {
        Accessed::Loan(loan) => Some(loan),
        Accessed::Word(_) => None,
    }
}

fn word(accessed: Accessed) -> Option<u64> {
    match accessed {
        Accessed::Word(word) => Some(word),
        Accessed::Loan(_) => None,
    }
}

/// A client that accesses remote memory: [`Client`](crate::Client) and [`LocalClient`](crate::LocalClient), which have a
/// connection of their own, and layers around them. An access is no call: it is neither repeated nor seen by a layer.
pub trait Accessor: Channel {
    /// Hands the access to the worker.
    #[doc(hidden)]
    fn hand_access(&self, handed: Handed);
}

/// An access on its way to the worker.
#[doc(hidden)]
#[derive(Debug)]
pub struct Handed {
    pub(crate) memory: RemoteMemory,
    pub(crate) op: OneSided,
    pub(crate) responder: Responder<Ended>,
}

/// An access in flight: a future, and a handle to wait with.
///
/// It ends when the memory was accessed, and at the latest when the connection ends. Dropping it does not undo the
/// access. Cancel safe: polled by reference, it loses nothing.
#[must_use = "the access may fail"]
#[derive(Debug)]
pub struct Access<C, T> {
    client: C,
    cell: Arc<CallCell<Ended>>,
    value: fn(Accessed) -> Option<T>,
}

impl<C: Accessor, T> Access<C, T> {
    fn start(client: &C, memory: RemoteMemory, op: OneSided, value: fn(Accessed) -> Option<T>) -> Self {
        let cell = Arc::new(CallCell::new());
        client.hand_access(Handed { memory, op, responder: Responder::new(&cell) });
        Self { client: client.clone(), cell, value }
    }

    /// Blocks the thread until the access has ended: for 60 s at most where a worker's thread makes it, and until the connection
    /// ends on a local client, whose turns it runs.
    ///
    /// # Errors
    /// [`TransportError::Access`] if the memory cannot be used, [`TransportError::Closed`] if there is no connection,
    /// [`TransportError::OwnWorker`] on a worker's thread, [`TransportError::Worker`] after the 60 s. The
    /// [fate](TransportError::fate) says whether it may have been made.
    pub fn wait(self) -> Result<T, TransportError> {
        loop {
            if let Poll::Ready(ended) = self.look(&Context::from_waker(Waker::noop())) {
                return ended;
            }
            if !self.client.drive(Duration::from_secs(1)) {
                break;
            }
        }
        if here::is_worker() {
            return Err(TransportError::OwnWorker { fate: Fate::MaybeRan });
        }
        let ended = self.cell.wait(Instant::now() + LIMIT);
        self.value(ended.unwrap_or(Err(lost("it did not end the access"))))
    }

    fn look(&self, context: &Context<'_>) -> Poll<Result<T, TransportError>> {
        self.cell.poll(context).map(|ended| self.value(ended))
    }

    fn value(&self, ended: Ended) -> Result<T, TransportError> {
        (self.value)(ended?).ok_or(lost("it ended another access"))
    }
}

const fn lost(why: &'static str) -> TransportError {
    TransportError::Worker { why, fate: Fate::MaybeRan }
}

/// Cancel safe: polled by reference, it loses nothing.
impl<C: Accessor, T> Future for Access<C, T> {
    type Output = Result<T, TransportError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let looked = self.look(context);
        // Where the caller's turns move it, it asks to be polled again.
        if looked.is_pending() && self.client.drive(Duration::ZERO) {
            context.waker().wake_by_ref();
        }
        looked
    }
}
