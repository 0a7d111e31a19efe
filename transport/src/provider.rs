//! The provider contract: the beam everything rests on.
//!
//! Eight clauses hold for every provider. The conformance suite has named cases for each.
//!
//! 1. **Compose in your own memory.** [`Port::compose`] lends the payload of the next frame in the sender's own
//!    transmit ring to a closure. Nothing is reserved when it returns.
//! 2. **Stage.** The frame that the closure wrote is staged: verbs writes it to the same positions of the peer's
//!    receive ring with an immediate, or SENDs it where there is no such ring; shm stores its word last.
//! 3. **Flush.** [`Port::flush`] sees to it that the peer sees what was staged; one doorbell for all of it. Before that
//!    it sees nothing, unless it shares our memory and looks without being told.
//! 4. **Receive.** [`Port::next_run`] lends the frames of one connection where they landed, in order, until [`Port::end_run`]. A frame
//!    that is [kept](crate::Lent::keep) longer is handed back by [`Port::release`], in any order. [`Port::poll`] fills a fixed batch
//!    with events.
//! 5. **Credit** is two cumulative counters. The port enforces none: the engine's pure core decides whether a
//!    frame may be committed, from [`Port::credit`]: what our device is done with, and what the peer gave back.
//! 6. **Bulk**: [`Transfer::offer`] describes a loan in 24 bytes, which the engine carries; the peer's
//!    [`Transfer::pull`] brings it, with never more READs outstanding than the granted `initiator_depth`.
//! 7. **A refused post gives the buffer back.** Full is back-pressure, never an error and never an RNR retry.
//! 8. **One-sided**: [`Transfer::show`] describes memory that [`Gate::expose`] made in 24 bytes, which the application
//!    carries; the peer's [`Transfer::access`] reads, writes or changes it while nobody turns at our end, and ends once.
//!
//! A port emits [`Event::Closed`](crate::Event::Closed) exactly once for every adopted connection, as the last
//! event of it, with the first cause.

use std::{fmt::Debug, os::fd::BorrowedFd, sync::Arc, time::Duration};

use crate::{
    AcceptError, AccessError, Address, Batch, CloseReason, ConnId, ConnectError, ConnectOptions, Credit,
    Hello, Limit, ListenError, ListenOptions, LoanError, Look, PortConfig, PortCounters, PortError, Position,
    Pulled, Refusal, Refused, RejectReason, SharedState, Tag, Time, Violation,
    mem::{
        Exposed, Loan, MemoryNode, Offer, OneSided, PoolMemory, Remote, Run, RxFrame, UserBytes, UserMemory,
    },
    rejected::Rejected,
    sync::doorbell::Waker,
};

/// A way to connect and move bytes. Cheap to clone; all its threads end when the last clone and port are gone.
pub trait Provider: Clone + Debug + Send + Sync + 'static {
    /// The data side.
    type Port: Port<Link = Self::Link, Gate = Self::Gate>;
    /// How the control side reaches a port, from any thread.
    type Gate: Gate;
    /// An established connection that no port has adopted yet.
    type Link: Debug + Send + 'static;
    /// The passive side.
    type Listener: Listener<Link = Self::Link, Gate = Self::Gate>;
    /// An attempt of the active side.
    type Connecting: Connecting<Link = Self::Link>;

    /// Opens the data side for the calling thread.
    ///
    /// # Errors
    /// See [`PortError`].
    fn open_port(&self, config: &PortConfig) -> Result<Self::Port, PortError>;

    /// Listens on `address`.
    ///
    /// # Errors
    /// See [`ListenError`].
    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<Self::Listener, ListenError>;

    /// Starts to connect; the connection will belong to the port behind `gate`.
    ///
    /// # Errors
    /// What can be said at once; the rest comes from [`Connecting::poll`].
    fn connect(
        &self,
        address: &Address,
        gate: &Self::Gate,
        options: &ConnectOptions,
    ) -> Result<Self::Connecting, ConnectError>;
}

/// The control side's handle on a port: where a queue pair is made, where loans come from.
pub trait Gate: Clone + Debug + Send + Sync + 'static {
    /// Registered memory of `bytes` that can be offered on `conn`. May take a lock; for bulk only.
    ///
    /// # Errors
    /// See [`LoanError`].
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError>;

    /// `bytes`, which somebody else owns, as a loan that [is read only](Loan::is_read_only): over a device registered as they
    /// lie and kept so for the next loan of them, elsewhere copied once into memory that can be offered. As
    /// [`Gate::allocate`] else; the first loan of them registers, which takes long for large ones (`ibv_reg_mr(3)`).
    ///
    /// What is kept registered can be read by every peer that it was ever offered to, until it is
    /// [forgotten](UserBytes::forget) or makes room for others.
    ///
    /// # Errors
    /// See [`LoanError`]: [`PortError::Memlock`] at the limit of locked memory; EFAULT of `ibv_reg_mr` for a mapped file that
    /// the kernel does not let a device read.
    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError>;

    /// What became of user memory so far: registrations, or copies.
    fn user_memory(&self) -> UserMemory;

    /// Zeroed memory of `bytes` that the peer of `conn` may use by itself once it was shown it (clause 8). Maps and
    /// registers, so for set-up only.
    ///
    /// # Errors
    /// See [`LoanError`].
    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError>;

    /// The receives that connections share, for each device; empty where there are none.
    fn shared_receives(&self) -> Vec<SharedState> {
        Vec::new()
    }

    /// What loans are cut from now, piece by piece, and on what pages it lies. Empty where nothing is kept for them.
    fn memory(&self) -> Vec<PoolMemory> {
        Vec::new()
    }

    /// Where the memory of this port lies: rings, slots, pools and what is exposed. That of the thread that opened the port,
    /// where it is pinned on a machine of several nodes.
    fn memory_node(&self) -> MemoryNode;
}

/// The passive side: hands out requests whose hello was good. Others it rejects by itself, and counts.
pub trait Listener: Debug + Send + 'static {
    /// See [`Provider::Gate`].
    type Gate: Gate;
    /// See [`Provider::Link`].
    type Link;
    /// One request.
    type Incoming: Incoming<Link = Self::Link, Gate = Self::Gate>;

    /// Where it listens: with the port that was chosen, when 0 was asked.
    fn address(&self) -> Address;

    /// The next request, waiting at most `timeout` (zero: do not wait).
    ///
    /// # Errors
    /// The listener itself is broken; drop it.
    fn accept(&mut self, timeout: Duration) -> Result<Option<Self::Incoming>, ListenError>;

    /// Counts the requests that were rejected without being handed out, by cause: foreign clients, other versions, bad
    /// hellos, no place. An acceptor adds those that it refuses.
    fn rejections(&self) -> &Arc<Rejected>;
}

/// A request to connect. Dropping it rejects with [`RejectReason::Overloaded`].
pub trait Incoming: Debug + Send {
    /// See [`Provider::Gate`].
    type Gate: Gate;
    /// See [`Provider::Link`].
    type Link;

    /// What the peer said.
    fn hello(&self) -> &Hello;
    /// The peer's name, for people.
    fn peer(&self) -> String;
    /// Accepts onto the port behind `gate`: receives are posted before the answer leaves.
    ///
    /// # Errors
    /// See [`AcceptError`].
    fn accept(self, gate: &Self::Gate) -> Result<Self::Link, AcceptError>;
    /// Accepts, and hands the outcome to `then`: at once, or later from the provider's own thread, which `then` must not
    /// hold up. The caller need not wait for one accept before it begins the next.
    fn accept_then(
        self,
        gate: &Self::Gate,
        then: impl FnOnce(Result<Self::Link, AcceptError>) + Send + 'static,
    ) where
        Self: Sized,
    {
        then(self.accept(gate));
    }
    /// Refuses, with a reason the peer reads, and bytes of the application's own beside it.
    fn refuse(self, refusal: Refusal);
    /// Refuses, with a reason the peer reads.
    fn reject(self, reason: RejectReason)
    where
        Self: Sized,
    {
        self.refuse(reason.into());
    }
}

/// An attempt to connect. Dropping it gives it up and leaves nothing.
pub trait Connecting: Debug + Send {
    /// See [`Provider::Link`].
    type Link;

    /// The outcome, waiting at most `timeout` (zero: do not wait). `None`: not yet. After an outcome, `None`.
    /// The attempt's own deadline is [`ConnectOptions::connect_timeout`].
    fn poll(&mut self, timeout: Duration) -> Option<Result<Self::Link, ConnectError>>;
}

/// What was seen of a peer's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulse {
    /// Moves on while the process runs, whatever its port's thread does.
    pub beat: u64,
    /// When that was looked at, or before.
    pub at: Time,
}

/// Whether a committed frame begins a chain or rides on the one before it.
///
/// The engine decides, because a chain costs one of the peer's receives. `Extend` is legal only after a commit on
/// the same connection since the last flush, with the sum of spans at most
/// [`Negotiated::chain_bytes_max`](crate::Negotiated::chain_bytes_max).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chain {
    /// A work request of its own.
    Begin,
    /// Part of the previous one.
    Extend,
}

/// A frame as its composer leaves it in the payload it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staged {
    /// Bytes of it, from the first.
    pub payload_bytes: usize,
    /// The engine's bits of the frame word.
    pub tag: Tag,
    /// Whether it begins a chain.
    pub chain: Chain,
}

/// What a port knows of one connection's credit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CreditView {
    /// Up to where our own transmit ring may be written over, as far as our device is concerned. When the connection
    /// opens: where positions begin, in both directions.
    pub completed: Position,
    /// The peer's credit, where it lies in shared words; `None` where it comes in frames. Read once and as it is:
    /// the engine checks it.
    pub peer: Option<Credit>,
    /// Receives posted for the connection since it opened, those before the accept included.
    pub arrivals: u64,
}

/// The data side: every connection of one poll thread. Nothing here blocks, locks or allocates per message.
pub trait Port: Debug + Transfer + Wait {
    /// See [`Provider::Link`].
    type Link: Debug + Send + 'static;
    /// See [`Provider::Gate`].
    type Gate: Gate;
    /// See [`Port::direct`].
    type Direct: Port;
    /// Whether all connections are in shared memory. Then peers see a staged frame at once, or when the [run](Port::next_run) ends
    /// that it answers, and [`Port::flush`] only wakes those that sleep; chains cost no receives; and a look takes nanoseconds.
    /// `false` where a device may have to be asked.
    const IN_MEMORY: bool = false;

    /// If this port multiplexes several and only one is in use, returns that one, with the same ids. `None` means
    /// `self`.
    #[inline]
    fn direct(&mut self) -> Option<&mut Self::Direct> {
        None
    }

    /// The control side's handle on this port.
    fn gate(&self) -> Self::Gate;

    /// Takes over a connection. Its [`Event::Opened`](crate::Event::Opened) comes when the peer's grant has.
    ///
    /// # Errors
    /// [`PortError::Limit`] above `connections`; the link is closed then.
    fn adopt(&mut self, link: Self::Link, now: Time) -> Result<ConnId, PortError>;

    /// Composes a frame of `conn` where it leaves from, and stages it (clauses 1 and 2). `fill` gets `payload_bytes` bytes, which
    /// may hold old ones, and says how much of them is the frame; `None`, or more than it got, stages nothing. The caller has made
    /// sure that credit allows the frame. Returns the position behind it, or the position as it was.
    ///
    /// # Errors
    /// [`Refused::TooLarge`], [`Refused::Closed`]; [`Refused::Full`] when a queue of the device is full, or when there was no room
    /// as far as was known: [`Port::credit`] looks again.
    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused>;

    /// Shows the peers what was staged (clause 3). A failure closes the connection and comes by [`Port::poll`].
    fn flush(&mut self);

    /// What is known of the credit of `conn`, after a look at what the peer gave back in shared words.
    fn credit(&mut self, conn: ConnId) -> CreditView;

    /// Publishes our credit in shared words; does nothing where there are none, and nothing for bytes that may still be read: those
    /// of a run that has not ended, and of a frame that is kept or held.
    fn return_credit(&mut self, conn: ConnId, credit: Credit);

    /// The peer of `conn` will not use `receives`, of all that it was granted since it opened: they are for the other connections that
    /// share them.
    ///
    /// # Errors
    /// [`Violation::Malformed`]: they are not shared, or it was never granted as many beyond its guarantee.
    fn take_back(&mut self, conn: ConnId, receives: u64) -> Result<(), Violation> {
        let _ = (conn, receives);
        Err(Violation::NOT_SHARED)
    }

    /// Gives a frame back (clause 4). The engine counts ring bytes; the port posts receives again. One that did not land on this
    /// connection, or is held, frees nothing.
    fn release(&mut self, conn: ConnId, frame: RxFrame);

    /// Moves events into `batch`, as far as there is room; advances pulls, handshakes and closings. An event of a connection comes
    /// after the frames that arrived before it, so somebody has to take these.
    fn poll(&mut self, now: Time, batch: &mut Batch);

    /// Lends the next frames of one connection that lie one behind the other. Each connection is looked at once before the
    /// look finds no run. The run goes back by [`Port::end_run`] before the next look; what is staged on its
    /// connection until then may be shown only by that, or by a flush.
    fn next_run(&mut self, limit: Limit) -> Look;

    /// Releases the frames that were taken from `run`, but for those that were kept. What the peer did wrong in it closes
    /// the connection. No frame can be taken from it afterwards. A run of another port stays as it is.
    ///
    /// With `may_leave`, what is staged on its connection leaves now if a doorbell is needed for it, nothing else is to be sent and
    /// nothing else has come. Returns whether all of it left; [`Port::flush`] does the rest.
    fn end_run(&mut self, run: &mut Run, may_leave: bool) -> bool;

    /// Ends `conn`; its [`Event::Closed`](crate::Event::Closed) carries the first cause, which is `reason` if
    /// none came before. Frames that were staged but not flushed are lost, unless the peer has seen them. Those that were flushed still
    /// leave for a bounded time after an orderly close, and `Closed` may come only then.
    fn close(&mut self, conn: ConnId, reason: CloseReason, now: Time);

    /// What was seen last of the peer's process. `None` where nothing tells. Asked only while the peer owes a sign, and then
    /// again and again: where a look takes a round trip, this begins the next one, and the first answers are of beat 0.
    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        let _ = (conn, now);
        None
    }

    /// What was done for `conn`; kept until its slot is used again.
    fn counters(&self, conn: ConnId) -> PortCounters;
}

/// Bulk and one-sided operations: what moves outside of frames (clauses 6 and 8).
pub trait Transfer {
    /// Describes `loan` so that the peer can pull it (clause 6). The loan must come from this port's gate for
    /// this connection, and be kept unchanged until the peer said that it is done.
    ///
    /// # Errors
    /// [`Refused::Foreign`] of a loan that the peer of `conn` cannot reach: another port's, or one that was made for a connection
    /// of another device. Otherwise see [`Refused`]. The loan is the caller's still.
    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused>;

    /// Starts to bring what the peer offered, and returns `None`: it ends with [`Event::Pulled`](crate::Event::Pulled). Of
    /// several, any may end first. A pull that needs no device may be over at once: its result is returned, and no event
    /// follows.
    ///
    /// # Errors
    /// [`Refused`]; the offer is the caller's still.
    fn pull(&mut self, conn: ConnId, offer: Offer, token: u64) -> Result<Option<Pulled>, Refused>;

    /// What the peer of `conn` needs to use `exposed`, which came from this port's gate for this connection (clause 8).
    ///
    /// # Errors
    /// [`AccessError::Full`], [`AccessError::Closed`], [`AccessError::NotExposed`] of another port's.
    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError>;

    /// Starts a one-sided operation on what the peer of `conn` has shown; ends with
    /// [`Event::Accessed`](crate::Event::Accessed), in any order. A write has ended when its loan may be used again; that it is
    /// in place is known when a read or an atomic operation that was started after it has ended. Loans come from this port's gate for this connection.
    /// Over a device they are as many at once as the granted `initiator_depth`, pulls included; the others wait. In shared memory the
    /// peer may have taken pages of it away: they come back zeroed, and are charged to this process.
    ///
    /// # Errors
    /// Why it was not made, with it.
    fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)>;
}

/// How the owner of a port sleeps.
pub trait Wait {
    /// Prepares to sleep. `false`: something is there already, poll first. After `true`, [`Wait::wait_fd`]
    /// becomes readable when anything happens or the waker rings.
    fn arm(&mut self) -> bool;

    /// After waking, or after a change of mind.
    fn disarm(&mut self);

    /// One descriptor for any event loop; meaningful between `arm` and `disarm`.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// For other threads.
    fn waker(&self) -> Waker;

    /// When the port wants to be polled although nothing arrives: handshakes, closings, simulated delays. Polls at that time or
    /// later that bring nothing more leave a deadline that is later, or none: until then the owner does not sleep.
    fn deadline(&self) -> Time {
        Time::NEVER
    }
}
