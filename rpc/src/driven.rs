//! The client of a current-thread runtime: its calls move by a future of that runtime, with no second thread.
//!
//! ```text
//!  a task of the runtime                       the driver, another task of it
//!   start ─ encoded in the transmit ring ─►     step, step, ... answer found ─► wakes the call's task
//!   await ◄──────────── its cell ◄───────────── nothing to do: waits for one descriptor
//! ```

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    rc::{Rc, Weak},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::{
    Alarm, App as _, Inline, Rest,
    transport::{Address, CloseReason, ConnId, Loan, Negotiated, UserBytes},
};

use crate::{
    calls::Reply,
    cell::{CallCell, Outcome, Pool, Responder},
    channel::{CallOptions, Channel, Ticket},
    codec::{Compose, EncodeError, compose_into},
    config::Config,
    error::{AllocateError, ConnectError, TransportError},
    frame::Form,
    metadata::Noted,
    method::Method,
    node::{Node, Source},
    provider::{Any, any_for},
    service::Registry,
    stats::{Counters, Stats},
    status::Fate,
    stream::Lanes,
    workers,
};

/// The longest sleep; deadlines wake earlier.
const SLEEP: Duration = Duration::from_secs(3600);
/// Steps that find nothing, before other tasks get their turn.
const STEPS: usize = 64;
/// Polls after one that found something which make one step only: a runtime may poll a task that wakes itself many times
/// before it polls the one whose call has ended (tokio's `LocalSet`: 61).
const QUICK: u32 = 64;
/// Times that [`Driver::run_until`] polls its future before the runtime gets its turn.
const ROUNDS: usize = 64;

/// A connection whose calls move by its [`Driver`], a task of the runtime that the calls are made on. Not `Send`;
/// clones share it. Any number of calls and streams may be under way.
///
/// A request is encoded where it leaves from; an answer is copied once, out of the ring.
#[derive(Clone)]
pub struct DrivenClient {
    core: Rc<Core>,
}

struct Core {
    inline: RefCell<Inline<Any, Node>>,
    conn: ConnId,
    negotiated: Arc<Negotiated>,
    counters: Arc<Counters>,
    deadline: Option<Duration>,
    pool: Pool,
    /// The driver waits for its descriptor; the port is armed.
    asleep: Cell<bool>,
    driver: RefCell<Option<Waker>>,
}

impl Core {
    /// Wakes the driver if it sleeps, before anything else is done with the port.
    #[inline]
    fn rouse(&self, inline: &mut Inline<Any, Node>) {
        if self.asleep.replace(false) {
            inline.woke();
            self.wake_driver();
        }
    }

    #[cold]
    fn wake_driver(&self) {
        let driver = self.driver.borrow();
        driver.iter().for_each(Waker::wake_by_ref);
    }

    fn set_driver(&self, waker: &Waker) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|driver| driver.will_wake(waker)) {
            *driver = Some(waker.clone());
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let conn = self.conn;
        let inline = self.inline.get_mut();
        if self.asleep.get() {
            inline.woke();
        }
        inline.with(|_, io| io.close(conn));
        self.wake_driver();
    }
}

impl fmt::Debug for DrivenClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrivenClient({} on {:?})", self.core.negotiated.peer, self.core.conn)
    }
}

impl DrivenClient {
    pub(crate) fn with(config: Config, url: &str) -> Result<(Self, Driver), ConnectError> {
        let address: Address = url.parse()?;
        let places = config.window + config.waiting_max.min(1024);
        let (plan, limits) = config.validate()?;
        let (mut inline, counters) = workers::inline(
            &any_for(std::slice::from_ref(&address)),
            &plan,
            limits,
            Arc::new(Registry::default()),
            Arc::default(),
        )?;
        let (conn, negotiated) = inline.connect(&address)?;
        let alarm = inline.alarm().map_err(|error| ConnectError::Alarm(error.to_string()))?;
        let core = Rc::new(Core {
            inline: RefCell::new(inline),
            conn,
            negotiated,
            counters,
            deadline: limits.deadline,
            pool: Pool::new(places),
            asleep: Cell::new(false),
            driver: RefCell::default(),
        });
        let driver = Driver { core: Rc::downgrade(&core), alarm, quick: 0 };
        Ok((Self { core }, driver))
    }

    /// What the connection runs with.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.core.negotiated
    }

    /// Counters of this client.
    #[must_use]
    pub fn stats(&self) -> Stats {
        workers::sum(std::slice::from_ref(&self.core.counters))
    }

    fn begin<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: (Option<Loan>, Option<Box<Lanes>>),
        arguments: &A,
    ) -> DrivenTicket {
        match options.noted(method) {
            None => self.begin_with(method, options, beside, arguments),
            Some(metadata) => self.begin_with(method, options, beside, &Noted { metadata, arguments }),
        }
    }

    fn begin_with<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: (Option<Loan>, Option<Box<Lanes>>),
        arguments: &A,
    ) -> DrivenTicket {
        let core = &self.core;
        let timeout = options.resolve(core.deadline);
        let cell = core.pool.cell();
        let source = Spare { arguments, buffer: core.pool.buffer() };
        let reply = Reply::Cell(Responder::new(&cell));
        let mut inline = core.inline.borrow_mut();
        core.rouse(&mut inline);
        // Other tasks may have kept the thread for long: a deadline counts from here.
        inline.now();
        // The cell has heard if it failed.
        let _ = workers::start(&mut inline, |node, io| {
            node.start(io, core.conn, method, timeout, source, beside, reply)
        });
        drop(inline);
        DrivenTicket { core: Rc::clone(core), cell: Some(cell) }
    }
}

/// Arguments that are written in place, and a buffer for the answer.
struct Spare<'a, A: ?Sized> {
    arguments: &'a A,
    buffer: Vec<u8>,
}

impl<A: Compose + ?Sized> Source for Spare<'_, A> {
    #[inline]
    fn form(&self) -> Form {
        Form { is_large: false, is_noted: A::IS_NOTED }
    }

    #[inline]
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.arguments.compose(out)
    }

    fn composed_bytes(&self) -> Option<usize> {
        self.arguments.composed_bytes()
    }

    fn keep(&mut self, body: &mut Vec<u8>, limit: usize) -> Result<(), EncodeError> {
        compose_into(&mut self.buffer, limit, self.arguments)?;
        *body = std::mem::take(&mut self.buffer);
        Ok(())
    }

    #[inline]
    fn left(self, body: &mut Vec<u8>) {
        *body = self.buffer;
    }
}

impl Channel for DrivenClient {
    type Ticket = DrivenTicket;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        loan: Option<Loan>,
        arguments: &A,
    ) -> DrivenTicket {
        self.begin(method, options, (loan, None), arguments)
    }

    fn start_streams<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        lanes: Lanes,
        arguments: &A,
    ) -> DrivenTicket {
        self.begin(method, options, (None, Some(Box::new(lanes))), arguments)
    }

    /// Only for who blocks: else the driver moves the calls, and wakes.
    fn drive(&self, may_idle: bool) -> bool {
        if may_idle {
            let mut inline = self.core.inline.borrow_mut();
            self.core.rouse(&mut inline);
            inline.idle(SLEEP);
        }
        may_idle
    }

    fn loan(&self, bytes: usize) -> Result<Loan, AllocateError> {
        let handle = self.core.inline.borrow().handle();
        Ok(handle.allocate(self.core.conn, bytes.max(1))?.truncate(bytes))
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, AllocateError> {
        Ok(self.core.inline.borrow().handle().lend(self.core.conn, bytes)?)
    }
}

/// A call of a driven client.
pub struct DrivenTicket {
    core: Rc<Core>,
    /// Until the outcome was taken.
    cell: Option<Arc<CallCell>>,
}

impl fmt::Debug for DrivenTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenTicket").field("open", &self.cell.is_some()).finish_non_exhaustive()
    }
}

impl DrivenTicket {
    fn taken() -> Outcome {
        let why = "the outcome was taken already";
        Outcome::Failed(TransportError::Worker { why, fate: Fate::MaybeRan })
    }

    fn ended(&mut self, outcome: Outcome) -> Outcome {
        if let Some(cell) = self.cell.take() {
            self.core.pool.put_cell(cell);
        }
        outcome
    }
}

impl Ticket for DrivenTicket {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(cell) = &self.cell else { return Poll::Ready(Self::taken()) };
        cell.poll(context).map(|outcome| self.ended(outcome))
    }

    fn wait(&mut self) -> Outcome {
        loop {
            let Some(cell) = &self.cell else { return Self::taken() };
            if let Some(outcome) = cell.try_take() {
                return self.ended(outcome);
            }
            let mut inline = self.core.inline.borrow_mut();
            self.core.rouse(&mut inline);
            inline.idle(SLEEP);
        }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        self.core.pool.put_buffer(buffer);
    }
}

impl Drop for DrivenTicket {
    fn drop(&mut self) {
        let Some(cell) = self.cell.take() else { return };
        if let Ok(mut inline) = self.core.inline.try_borrow_mut() {
            self.core.rouse(&mut inline);
            let conn = self.core.conn;
            inline.with(|node, io| node.cancel_cell(io, conn, &cell));
        }
    }
}

/// What moves the calls of a [`DrivenClient`]: to be made a future by [`Driver::run`], and given to the runtime. Dropping
/// either ends the connection.
pub struct Driver {
    core: Weak<Core>,
    alarm: Alarm,
    /// Polls that make one step only.
    quick: u32,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("alarm", &self.alarm).finish_non_exhaustive()
    }
}

/// Without it no call would end: the connection goes with it, and what is under way ends with its fate.
impl Drop for Driver {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let Ok(mut inline) = core.inline.try_borrow_mut() else { return };
        core.rouse(&mut inline);
        let conn = core.conn;
        // The device may take a while to let go of it; the calls need not wait for that.
        inline.with(|node, io| {
            io.abort(conn, CloseReason::Local);
            node.closed(io, conn, &CloseReason::Local);
        });
    }
}

/// The descriptor that the runtime waits for, to be read: it is never to be read from, only waited for.
impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}

impl Driver {
    /// A future that moves the calls, and ends when the last clone of the client and its calls are gone. `readable` is
    /// asked before it sleeps whether the descriptor ([`AsFd`]) is readable, and wakes the task when it is.
    pub fn run<R>(self, readable: R) -> Running<R>
    where
        R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
    {
        Running { driver: self, readable }
    }

    /// Runs `main` to its end and moves the calls between its polls, as one task: the shortest way from an answer to who
    /// waits for it, as the runtime is not asked in between. It is asked after 64 of them at the latest, so its timers and
    /// other tasks go on. `readable` as for [`Driver::run`]; afterwards either can be called again.
    ///
    /// # Errors
    /// What the runtime says of the descriptor.
    pub fn run_until<R, F>(&mut self, readable: R, main: F) -> RunningUntil<'_, R, F>
    where
        R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
        F: Future,
    {
        RunningUntil { driver: self, readable, main: Box::pin(main) }
    }
}

/// See [`Driver::run`].
#[must_use = "calls move only while this is polled"]
pub struct Running<R> {
    driver: Driver,
    readable: R,
}

impl<R> fmt::Debug for Running<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.driver)
    }
}

impl<R> Future for Running<R>
where
    R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
{
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(core) = this.driver.core.upgrade() else { return Poll::Ready(Ok(())) };
        let steps = if this.driver.quick > 0 { 1 } else { STEPS };
        this.driver.quick = this.driver.quick.saturating_sub(1);
        match this.driver.advance(&core, steps, &mut this.readable, context) {
            Ok(true) => {
                this.driver.quick = QUICK;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// See [`Driver::run_until`].
#[must_use = "nothing happens until this is polled"]
pub struct RunningUntil<'a, R, F> {
    driver: &'a Driver,
    readable: R,
    main: Pin<Box<F>>,
}

impl<R, F> fmt::Debug for RunningUntil<'_, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningUntil({:?})", self.driver)
    }
}

impl<R, F> Future for RunningUntil<'_, R, F>
where
    R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
    F: Future,
{
    type Output = io::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<F::Output>> {
        let this = &mut *self;
        for _ in 0..ROUNDS {
            if let Poll::Ready(output) = this.main.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            // Without a client there is nothing to move.
            let Some(core) = this.driver.core.upgrade() else { return Poll::Pending };
            match this.driver.advance(&core, STEPS, &mut this.readable, context) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Driver {
    /// Turns, until something was done (`true`: calls may have ended) or the thread is better given to others: the task is
    /// woken again when it is its turn, or sleeps with the port armed.
    fn advance(
        &self,
        core: &Core,
        steps: usize,
        readable: &mut impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        core.set_driver(context.waker());
        match round(core, steps) {
            Rest::Worked => return Ok(true),
            Rest::Spin | Rest::Yield => {}
            Rest::Sleep(limit) => {
                self.alarm.set(limit)?;
                core.asleep.set(true);
                match readable(context) {
                    Poll::Pending => return Ok(false),
                    // It rang, now or before: a turn tells.
                    Poll::Ready(rang) => rang?,
                }
            }
        }
        context.waker().wake_by_ref();
        Ok(false)
    }
}

/// Steps, until one found something or wants more than another; what the last one wants. Before a sleep the port is armed.
fn round(core: &Core, steps: usize) -> Rest {
    let mut inline = core.inline.borrow_mut();
    if core.asleep.replace(false) {
        inline.woke();
    }
    for _ in 0..steps {
        match inline.step(SLEEP) {
            Rest::Spin => std::hint::spin_loop(),
            rest => return rest,
        }
    }
    Rest::Spin
}
