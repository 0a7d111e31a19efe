//! The connection of a local client, and its calls.
//!
//! ```text
//!   start ─ encoded in the transmit ring ─►   turns of the thread that waits, or of the driver ─► the node's table
//!   LocalCall ◄───── taken by its key ──────  with a driver: its task is woken
//! ```

use std::{
    cell::{Cell, OnceCell, RefCell, RefMut},
    fmt,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::{
    Act, App as _, Inline, Io, Message, Pick,
    transport::{ConnId, Loan, LoanError, Negotiated, Port, UserBytes},
};

use crate::{
    calls::{CallKey, Reply},
    channel::{Beside, CallOptions, SLEEP, Ticket},
    codec::Compose,
    command::Command,
    config::{Config, Reconnect},
    copied,
    error::{ConnectError, TransportError},
    metadata::Noted,
    method::Method,
    node::{Fresh, Node, Source},
    provider::{Any, any_for},
    reconnect::NOWHERE,
    response::Response,
    route::{Opened, Route},
    service::Registry,
    stats::{Counters, Stats},
    stream::Streams,
    timeout::Timeout,
    workers,
};

/// A buffer above this is not kept.
const KEEP_BYTES: usize = 1 << 20;
/// The index of calls that are in no table.
const REFUSED: u32 = u32::MAX;

/// The worker.
pub(crate) type Turns = Inline<Any, Node>;

/// One connection, shared by its client, its calls and, weakly, its driver.
pub(crate) struct LocalConn {
    turns: RefCell<Turns>,
    /// [`NOWHERE`] until it is connected.
    conn: Cell<ConnId>,
    negotiated: OnceCell<Arc<Negotiated>>,
    route: Route,
    pub(super) reconnect: Option<Reconnect>,
    pub(super) deadline: Option<Duration>,
    counters: Arc<Counters>,
    timeout: Timeout,
    /// A driver runs the turns while calls are polled.
    is_driven: Cell<bool>,
    /// The driver's task, once it has run.
    driver: RefCell<Option<Waker>>,
    /// The driver waits for its descriptor, and the port is armed.
    asleep: Cell<bool>,
    /// What was dropped in the middle of a turn; cancelled before anything else happens.
    dropped: RefCell<Vec<Dropped>>,
    /// Something of the two above is so: one look for both on the way of every call.
    unready: Cell<bool>,
    /// Takes the place of an answer's bytes while they are read.
    spare: Cell<Vec<u8>>,
    /// Calls that were never started, and why; here, since a call is to be small.
    refused: RefCell<Vec<(CallKey, TransportError)>>,
    refusals: Cell<u32>,
    pipelines: RefCell<Numbers>,
}

/// Numbers of pipelines. One is used again when nothing is in flight that has it.
#[derive(Default)]
struct Numbers {
    made: u32,
    free: Vec<u32>,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.made = self.made.checked_add(1).expect("fewer pipelines at once than 2^32");
            self.made
        })
    }
}

/// Calls that nobody waits for any more.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    Call(CallKey),
    /// All of one.
    Pipeline(u32),
}

impl fmt::Debug for LocalConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?}", self.route.name(), self.conn())
    }
}

impl Drop for LocalConn {
    fn drop(&mut self) {
        let conn = self.conn();
        self.turns().with(|_, io| io.close(conn));
        self.wake_driver();
    }
}

impl LocalConn {
    /// Opens the worker, without a connection.
    pub(crate) fn open(config: Config, url: &str) -> Result<Self, ConnectError> {
        let route = Route::parse(url, &config.engine.connect.tls)?;
        let reconnect = config.reconnect;
        let (plan, limits) = config.validate()?;
        let (any, nothing) = (any_for(&route.kinds()), Arc::new(Registry::default()));
        let inline = workers::inline(&any, &plan, limits, nothing, Arc::default());
        let (inline, counters) = inline.map_err(|error| route.explain(error.into()))?;
        Ok(Self {
            turns: RefCell::new(inline),
            conn: Cell::new(NOWHERE),
            negotiated: OnceCell::new(),
            route,
            reconnect,
            deadline: limits.deadline,
            counters,
            timeout: limits.deadline.into(),
            is_driven: Cell::new(false),
            driver: RefCell::default(),
            asleep: Cell::new(false),
            dropped: RefCell::default(),
            unready: Cell::new(false),
            spare: Cell::default(),
            refused: RefCell::default(),
            refusals: Cell::new(0),
            pipelines: RefCell::default(),
        })
    }

    /// Connects; blocks, at most for the connect and handshake time-outs.
    pub(crate) fn connect(&self) -> Result<(), ConnectError> {
        let options = self.turns().handle().connect_options().clone();
        let connect = |address: &_, options: &_| self.turns().connect_with(address, options);
        self.connected(self.route.open(&options, connect)?);
        Ok(())
    }

    /// Takes a connection that was made, unless there is one.
    pub(super) fn connected(&self, (conn, negotiated): Opened) {
        if self.negotiated.set(negotiated).is_ok() {
            self.conn.set(conn);
        }
    }

    #[inline]
    pub(crate) fn conn(&self) -> ConnId {
        self.conn.get()
    }

    /// Has the worker do something between two turns.
    pub(super) fn tell(&self, command: Command) {
        self.turns().with(|node, io| node.command(io, command));
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    pub(crate) fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.get().map(|negotiated| &**negotiated)
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats::sum(std::slice::from_ref(&self.counters))
    }

    pub(crate) fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        let handle = self.turns.borrow().handle();
        Ok(handle.allocate(self.conn(), bytes.max(1))?.truncate(bytes))
    }

    pub(crate) fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.turns.borrow().handle().lend(self.conn(), bytes)
    }

    /// Returns the worker, for all but its driver. Wakes the driver if it sleeps.
    #[inline]
    pub(crate) fn turns(&self) -> RefMut<'_, Turns> {
        let mut turns = self.turns.borrow_mut();
        if self.unready.get() && self.make_ready(&mut turns) {
            self.wake_driver();
        }
        turns
    }

    /// Returns the worker, for its driver.
    pub(crate) fn driven_turns(&self) -> RefMut<'_, Turns> {
        let mut turns = self.turns.borrow_mut();
        if self.unready.get() {
            self.make_ready(&mut turns);
        }
        turns
    }

    /// Whether this is in the middle of a turn: what a woken task's waker drops is dropped there.
    pub(crate) fn is_turning(&self) -> bool {
        self.turns.try_borrow_mut().is_err()
    }

    /// Does what has to be done before anything else. Returns whether the driver sleeps.
    #[cold]
    fn make_ready(&self, turns: &mut Turns) -> bool {
        self.unready.set(false);
        let slept = self.asleep.replace(false);
        if slept {
            turns.woke();
        }
        for dropped in self.dropped.take() {
            self.cancel_now(turns, dropped);
        }
        slept
    }

    /// The driver goes to sleep.
    pub(super) fn sleeps(&self) {
        self.asleep.set(true);
        self.unready.set(true);
    }

    /// Whether it has done so, and nobody has used the worker since.
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.get()
    }

    #[cold]
    pub(super) fn wake_driver(&self) {
        self.driver.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Takes a driver in: from now on it runs the turns while calls are polled. Returns whether there was none before.
    pub(crate) fn take_driver(&self) -> bool {
        !self.is_driven.replace(true)
    }

    pub(crate) fn is_driven(&self) -> bool {
        self.is_driven.get()
    }

    /// The driver runs as this task.
    pub(crate) fn driven_by(&self, waker: &Waker) {
        if !self.driver.borrow().as_ref().is_some_and(|task| task.will_wake(waker)) {
            self.driver.replace(Some(waker.clone()));
        }
    }

    /// Starts a call that may have something beside its arguments.
    #[inline(never)]
    pub(crate) fn start_beside<A: Compose + ?Sized>(
        self: &Rc<Self>,
        method: &'static Method,
        options: &CallOptions,
        Beside { mut loan, streams }: Beside,
        arguments: &A,
    ) -> LocalCall {
        let beside = (&mut loan, streams);
        match options.noted(method) {
            None => self.begin(method, options, beside, Fresh::<_, Accompanied>::on(arguments)),
            Some(metadata) => {
                let arguments = &Noted { metadata, arguments };
                self.begin(method, options, beside, Fresh::<_, Accompanied>::on(arguments))
            }
        }
    }

    /// Starts a call. Its way is compiled for each kind of `source`.
    #[inline(always)]
    pub(crate) fn begin(
        self: &Rc<Self>,
        method: &'static Method,
        options: &CallOptions,
        beside: (&mut Option<Loan>, Option<Streams>),
        source: impl Source,
    ) -> LocalCall {
        let timeout = match &beside.1 {
            None => self.timeout(options),
            Some(_) => options.resolve_streams(),
        };
        let begin = Begin { conn: self.conn(), method, timeout, source, beside };
        let mut turns = self.turns();
        let started = turns.with_later(begin);
        // A call that is alone on its connection leaves at once, another one with the next turn, together with others.
        if turns.app().is_alone() {
            turns.flush();
        }
        drop(turns);
        let key = started.unwrap_or_else(|error| self.refuse(*error));
        LocalCall { local: Rc::clone(self), key: Some(key) }
    }

    /// How long a call may take.
    #[inline]
    pub(crate) fn timeout(&self, options: &CallOptions) -> Timeout {
        options.resolve(self.timeout)
    }

    /// The time-out of a call whose options say nothing.
    pub(crate) fn default_timeout(&self) -> Option<Duration> {
        self.timeout.duration()
    }

    /// The number of one more pipeline.
    pub(crate) fn next_pipeline(&self) -> u32 {
        self.pipelines.borrow_mut().take()
    }

    #[cold]
    fn refuse(&self, error: TransportError) -> CallKey {
        self.refusals.set(self.refusals.get().wrapping_add(1));
        let key = CallKey::new(REFUSED, self.refusals.get());
        self.refused.borrow_mut().push((key, error));
        key
    }

    /// Why it was refused, once.
    #[cold]
    fn take_refused(&self, key: CallKey) -> Option<TransportError> {
        let mut refused = self.refused.borrow_mut();
        let index = refused.iter().position(|(other, _)| *other == key)?;
        Some(refused.swap_remove(index).1)
    }

    /// Returns how a call ended, once.
    #[inline]
    fn take(&self, turns: &mut Turns, key: CallKey) -> Option<Response> {
        turns.app_mut().take(self.conn(), key, &self.spare)
    }

    fn copy(&self, payload: &[u8], buffer: &mut Vec<u8>) {
        copied::into_buffer(buffer, payload, &self.counters.copied_answers);
    }

    #[cold]
    fn cancel(&self, key: CallKey) {
        if key.index() == REFUSED {
            let _ = self.take_refused(key);
        } else {
            self.dropped(Dropped::Call(key));
        }
    }

    /// Nobody waits for the calls of a pipeline any more, of which some are in flight. Its number is free when they
    /// are cancelled.
    pub(crate) fn cancel_pipeline(&self, pipeline: u32) {
        self.dropped(Dropped::Pipeline(pipeline));
    }

    /// No call of a pipeline is in flight, and none will be.
    pub(crate) fn end_pipeline(&self, pipeline: u32) {
        self.pipelines.borrow_mut().free.push(pipeline);
    }

    fn dropped(&self, dropped: Dropped) {
        if self.is_turning() {
            self.dropped.borrow_mut().push(dropped);
            self.unready.set(true);
        } else {
            self.cancel_now(&mut self.turns(), dropped);
        }
    }

    fn cancel_now(&self, turns: &mut Turns, dropped: Dropped) {
        turns.with(|node, io| match dropped {
            Dropped::Call(key) => node.cancel(io, self.conn(), key),
            Dropped::Pipeline(pipeline) => {
                node.cancel_tagged(io, self.conn(), pipeline);
                self.end_pipeline(pipeline);
            }
        });
    }
}

/// The way of a call that has nothing beside its arguments, see [`Fresh`].
pub(super) struct Alone;

/// The way of one that may have.
pub(super) struct Accompanied;

/// Starts a call.
struct Begin<'a, S> {
    conn: ConnId,
    method: &'static Method,
    timeout: Timeout,
    source: S,
    beside: (&'a mut Option<Loan>, Option<Streams>),
}

impl<S: Source> Act<Node> for Begin<'_, S> {
    type Outcome = Result<CallKey, Box<TransportError>>;

    #[inline(always)]
    fn act<P: Port>(self, node: &mut Node, io: &mut Io<'_, P>) -> Self::Outcome {
        let Self { conn, method, timeout, source, beside } = self;
        node.begin(io, conn, method, timeout, source, beside, Reply::Local)
    }
}

/// Waits for the answer of one call.
pub(crate) struct Wanted<F> {
    pub(crate) conn: ConnId,
    pub(crate) key: CallKey,
    /// Shown the answer where it landed.
    pub(crate) read: F,
}

impl<F: FnMut(&[u8])> Pick<Node> for Wanted<F> {
    #[inline(always)]
    fn pick<P: Port>(
        &mut self,
        node: &mut Node,
        io: &mut Io<'_, P>,
        conn: ConnId,
        message: &Message<'_>,
    ) -> bool {
        let Self { key, read, .. } = self;
        conn == self.conn && node.read_answer(io, conn, *key, message, read)
    }
}

/// The ticket of a call on a [`LocalClient`](crate::LocalClient), of which a [`Call`](crate::Call) is made. Dropping it cancels the
/// call.
pub struct LocalCall {
    local: Rc<LocalConn>,
    /// Until its response was taken.
    key: Option<CallKey>,
}

const _: () = assert!(size_of::<LocalCall>() == 2 * size_of::<usize>());

impl fmt::Debug for LocalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalCall({:?})", self.key)
    }
}

impl LocalCall {
    /// Waits until the call ended. A value that is only bytes is shown to `read` where it landed; nothing is returned then.
    #[inline(always)]
    fn wait_reading(&mut self, mut read: impl FnMut(&LocalConn, &[u8])) -> Option<Response> {
        let Some(key) = self.key() else {
            return Some(self.unanswerable());
        };
        let local = &*self.local;
        let mut turns = local.turns();
        let response = loop {
            if let Some(response) = local.take(&mut turns, key) {
                break response;
            }
            let was_read = turns
                .seek(SLEEP, Wanted { conn: local.conn(), key, read: |payload: &[u8]| read(local, payload) });
            if was_read {
                self.key = None;
                return None;
            }
        };
        self.key = None;
        Some(response)
    }

    /// There is no answer to wait for: it was never started, or was taken before.
    #[cold]
    fn unanswerable(&mut self) -> Response {
        let refused = self.key.take().and_then(|key| self.local.take_refused(key));
        refused.map_or_else(Response::taken, Response::from)
    }

    /// Its key, while an answer may come.
    #[inline]
    fn key(&self) -> Option<CallKey> {
        self.key.filter(|key| key.index() != REFUSED)
    }
}

impl Ticket for LocalCall {
    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Some(key) = self.key() else {
            return Poll::Ready(self.unanswerable());
        };
        let local = &*self.local;
        let mut turns = local.turns.borrow_mut();
        let mut taken = local.take(&mut turns, key);
        if taken.is_none() {
            if local.is_driven() {
                turns.app_mut().watch(local.conn(), key, context.waker());
                return Poll::Pending;
            }
            turns.turn();
            taken = local.take(&mut turns, key);
        }
        drop(turns);
        match taken {
            Some(response) => {
                self.key = None;
                Poll::Ready(response)
            }
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    #[inline]
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let local = &*self.local;
        if let Some(key) = self.key()
            && let Some(begun) = local.turns.borrow_mut().app_mut().take_begun(local.conn(), key)
        {
            return Poll::Ready(begun.into());
        }
        self.poll(context)
    }

    #[inline(always)]
    fn wait(&mut self) -> Response {
        let mut body = Vec::new();
        let waited = self.wait_reading(|local, payload| {
            body = local.spare.take();
            local.copy(payload, &mut body); // counted
        });
        match waited {
            None => Response::owned(false, body),
            Some(response) => response,
        }
    }

    #[inline]
    fn wait_in_place(&mut self, visit: &mut dyn FnMut(&[u8])) -> Option<Response> {
        self.wait_reading(|_, payload| visit(payload))
    }

    #[inline(always)]
    fn recycle(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEEP_BYTES {
            self.local.spare.set(buffer);
        }
    }

    /// It moves by its caller's turns: nobody would turn for it.
    fn detach(&mut self) {}
}

impl Drop for LocalCall {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.local.cancel(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_pipelines_are_those_of_no_other() {
        let mut numbers = Numbers::default();
        let kept = numbers.take();
        let first = numbers.take();
        for _ in 0..100_000 {
            numbers.free.push(first);
            assert_eq!(numbers.take(), first, "numbers run out");
        }
        assert!(kept != first && numbers.take() != kept && numbers.made == 3);
    }
}
