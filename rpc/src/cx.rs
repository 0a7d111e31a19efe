//! What a handler knows about its call.

use std::{
    fmt,
    future::poll_fn,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gimmal_engine::transport::{
    Certificate, ConnId, Credentials, Exposed, Instant, Loan, LoanError, Negotiated, Time, UserBytes,
};

use crate::{
    admission::{Admission, Admitted},
    channel::CallOptions,
    draining::Draining,
    error::TransportError,
    memory::RemoteMemory,
    metadata::{AnswerNotes, Metadata, Notes},
    method::Method,
    reach::Reach,
    stats::Counter,
    stream::Mover as _,
};

/// A connection as handlers see it; shared by all its calls.
pub(crate) struct Peer {
    pub(crate) conn: ConnId,
    pub(crate) negotiated: Arc<Negotiated>,
    pub(crate) reach: Arc<Reach>,
    /// The clock's reading at time 0 of the worker.
    pub(crate) epoch: Instant,
    /// Metadata of its calls.
    pub(crate) notes: Notes,
    /// Metadata of their answers.
    pub(crate) answer_notes: AnswerNotes,
    /// What was made of the call that begins next, before its bulk was brought.
    pub(crate) admission: Admission,
    /// What runs in each slot of the caller's window: its id plus one, or 0.
    pub(crate) running: Box<[AtomicU64]>,
    /// One-way requests of it, see [`Delivery`](crate::reflect::Delivery).
    pub(crate) one_way_started: Counter,
    pub(crate) one_way_refused: Counter,
}

impl Peer {
    /// The call in `slot` is over, though its handler may still run elsewhere: it learns so, and leaves nothing for the next call.
    #[cold]
    pub(crate) fn give_up(&self, slot: u32) {
        self.running[slot as usize].store(0, Ordering::Relaxed);
        self.answer_notes.settle();
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} on {:?})", self.negotiated.peer, self.conn)
    }
}

/// The context of one call, which its handler gets: who calls, how long it may take, where large answers come from. It stays good
/// as long as it is kept, also when the call is over: [`is_cancelled`](Cx::is_cancelled) tells.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// use gimmal::Cx;
///
/// #[gimmal::service(crate = gimmal_rpc)] // outside of this crate: #[gimmal::service]
/// trait Desk {
///     async fn greet(&self, cx: &Cx) -> String;
/// }
///
/// struct Clerk;
///
/// impl Desk for Clerk {
///     async fn greet(&self, cx: &Cx) -> String {
///         let tenant = cx.metadata().and_then(|metadata| Some(metadata.text("tenant")?.to_owned()));
///         format!("{} of {tenant:?} waits for {:?}", cx.peer(), cx.remaining())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::Server::builder().service(serve_desk(Clerk)).listen("mem://doc-cx")?;
/// let client = DeskClient::new(gimmal::Client::connect("mem://doc-cx")?);
/// assert!(client.greet().wait()?.contains("None waits for Some"));
/// # drop(server);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cx {
    pub(crate) peer: Arc<Peer>,
    pub(crate) method: &'static Method,
    pub(crate) slot: u32,
    pub(crate) mark: u64,
    pub(crate) deadline: Time,
}

impl Cx {
    /// Returns the caller: the other end of the connection, as far as kernel and device know it.
    #[must_use]
    pub fn peer(&self) -> Identity<'_> {
        Identity::of(&self.peer.negotiated)
    }

    /// Returns what the connection runs with: provider, sizes, limits, and who clamped them.
    #[must_use]
    pub fn negotiated(&self) -> &Arc<Negotiated> {
        &self.peer.negotiated
    }

    /// Returns the metadata that the caller sent beside the arguments, if any. May take a lock.
    #[must_use]
    pub fn metadata(&self) -> Option<Arc<Metadata>> {
        self.peer.notes.get(self.slot, self.mark)
    }

    /// Takes what [`Service::admit`](crate::Service::admit) made of this call; `None` when it was not asked, or made nothing of it.
    #[must_use]
    pub fn take_admitted(&self) -> Option<Admitted> {
        self.peer.admission.take(self.mark)
    }

    /// Hands `admitted` on to the next service, for its [`Cx::take_admitted`].
    pub fn put_admitted(&self, admitted: Admitted) {
        self.peer.admission.put(self.mark, admitted);
    }

    /// Sends `metadata` with the answer, whatever that will be, in place of what was said before. The caller gets it by
    /// [`Call::response`](crate::Call::response). One-way requests have no answer.
    pub fn answer_metadata(&self, metadata: Metadata) {
        if self.slot != crate::id::CallId::NONE.slot {
            // Of a call that is over, it would go with the answer of the next one.
            self.peer.answer_notes.put(self.slot, metadata, || !self.is_cancelled());
        }
    }

    /// Returns the method that was called.
    #[must_use]
    pub const fn method(&self) -> &'static Method {
        self.method
    }

    /// Returns when the caller stops waiting; `None`: never, or more than 71 minutes after the call began, which a request
    /// cannot say.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        (self.deadline != Time::NEVER).then(|| self.peer.epoch + self.deadline.since(Time(0)))
    }

    /// Returns how long the caller still waits; `None` where [`deadline`](Cx::deadline) is.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.remaining())
    }

    /// Returns whether nobody waits for the answer any more. The handler's own future is dropped then; this is for work that it
    /// gave to other threads.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled().is_cancelled()
    }

    /// Returns a token that other threads can ask whether the call still has a caller.
    #[must_use]
    pub fn cancelled(&self) -> CancelToken {
        CancelToken { peer: Arc::clone(&self.peer), slot: self.slot, mark: self.mark }
    }

    /// Returns a future that is ready when the server begins to shut down. A handler that would run for long, such as a
    /// subscription, ends then: the shutdown waits for it.
    ///
    /// Cancel safe.
    pub fn draining(&self) -> Draining {
        self.peer.reach.draining().wait()
    }

    /// Returns registered memory of `bytes` that can go with the answer of this call, in a [`WithLoan`](crate::WithLoan). It may
    /// hold bytes of an earlier loan, also of another client: write all of it. Takes locks, and may map and register memory.
    ///
    /// A loan has at most `bulk_bytes_max` (1 GiB). The loans of a connection, and what was pulled for it, have at most
    /// `loan_bytes_max` (4 GiB). A loan counts until the client is done with it.
    ///
    /// # Errors
    /// [`LoanError::TooLarge`] above the first limit, [`LoanError::Port`] above the second or when there is no memory,
    /// [`LoanError::Closed`] when the connection is gone.
    pub fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        self.peer.reach.allocate(self.peer.conn, bytes)
    }

    /// Lends memory of the user's, to go with the answer of this call. Over RDMA it is registered as it lies, and stays so for the
    /// next time. Elsewhere it is copied once. Blocks for that: a large piece is better lent on a thread of its own the first time.
    ///
    /// # Errors
    /// Those of [`Cx::loan`]; [`LoanError::Port`] also when the memory cannot be registered.
    pub fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.peer.reach.lend(self.peer.conn, bytes)
    }

    /// Exposes `bytes` of new memory, zeroed, that callers read and change by themselves once it was [shown](Cx::show) to them.
    /// Keep it as long as they may use it: dropping it withdraws it. It takes system calls, so do it once for each piece of memory
    /// and not for each call.
    ///
    /// # Errors
    /// [`LoanError::TooLarge`] above `bulk_bytes_max` (1 GiB), [`LoanError::Port`] when there is no memory or descriptor for it,
    /// [`LoanError::Closed`] when the connection is gone.
    pub fn expose(&self, bytes: usize) -> Result<Arc<Exposed>, LoanError> {
        self.peer.reach.expose(self.peer.conn, bytes).map(Arc::new)
    }

    /// Shows exposed memory to the caller, and returns what the caller needs to use it: send it with the answer. The
    /// caller may then read and change all of it. Memory that was exposed in a call of another connection can be shown
    /// too, if that connection has the same worker and device.
    ///
    /// Cancel safe: dropped before it is ready, it may have shown the memory.
    ///
    /// # Errors
    /// [`TransportError::Access`]: with [`NotExposed`](crate::engine::transport::AccessError::NotExposed) for memory of
    /// another worker or device, with [`Full`](crate::engine::transport::AccessError::Full) when the caller already has
    /// 256 pieces, or does not take them.
    pub async fn show(&self, exposed: &Arc<Exposed>) -> Result<RemoteMemory, TransportError> {
        let cell = self.peer.reach.show(self.peer.conn, exposed)?;
        poll_fn(|context| cell.poll(context)).await
    }
}

impl CallOptions {
    /// Makes the call end when the caller of the handler that has `cx` stops waiting, at the latest, and hands its trace context
    /// on. A trace context of the call's own stays.
    #[must_use]
    pub fn within(self, cx: &Cx) -> Self {
        self.inherit(cx.metadata().as_deref(), cx.remaining())
    }
}

/// The other end of a connection. It is printed as people name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Identity<'a> {
    /// Its address or process, for people.
    pub name: &'a str,
    /// The peer's origin, for programs.
    pub origin: Origin,
    /// Whether it proved that it has one of this side's shared keys.
    pub is_authenticated: bool,
    /// The names in its certificate, which was verified; `None` without TLS, and of a client that was asked for none.
    pub certificate: Option<&'a Certificate>,
}

/// Where a peer is: on this host or elsewhere, for programs that decide by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// A process of this host, as the kernel says (`shm://`, and `mem://`: this process).
    Process(Credentials),
    /// Another end of a network, as the socket or the RDMA CM says. An address alone proves nothing.
    Address(SocketAddr),
    /// Nobody knows.
    Unnamed,
}

impl<'a> Identity<'a> {
    fn of(negotiated: &'a Negotiated) -> Self {
        let address = || negotiated.peer.parse().map_or(Origin::Unnamed, Origin::Address);
        Self {
            name: &negotiated.peer,
            origin: negotiated.credentials.map_or_else(address, Origin::Process),
            is_authenticated: negotiated.authenticated,
            certificate: negotiated.secured.as_ref().and_then(|secured| secured.peer.as_ref()),
        }
    }
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Whether a call still has a caller. Cheap to ask from any thread.
#[derive(Clone, Debug)]
pub struct CancelToken {
    peer: Arc<Peer>,
    slot: u32,
    mark: u64,
}

impl CancelToken {
    /// Returns whether the call is over: its caller cancelled, its deadline passed, its connection closed, or it was answered.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        if self.slot == crate::id::CallId::NONE.slot {
            // One way: nobody waits, and nobody can take it back.
            return false;
        }
        let running = self.peer.running.get(self.slot as usize);
        running.is_none_or(|running| running.load(Ordering::Relaxed) != self.mark)
    }
}
