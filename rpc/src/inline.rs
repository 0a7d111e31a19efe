//! The client whose calling thread is the worker: the lowest latency, no second thread, no copy of the request.

use std::{
    cell::{Cell, RefCell},
    fmt,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::{
    Inline,
    transport::{Address, ConnId, Loan, Negotiated, UserBytes},
};

use crate::{
    calls::{CallKey, Reply, Taken},
    cell::{AnswerBytes, Outcome},
    channel::{CallOptions, Channel, Ticket, show},
    codec::Compose,
    config::Config,
    copied,
    error::{AllocateError, ConnectError, TransportError},
    metadata::Noted,
    method::Method,
    node::{Fresh, Node},
    provider::{Any, any_for},
    service::Registry,
    stats::{Counters, Stats},
    status::Fate,
    stream::Lanes,
    timeout::Timeout,
    workers,
};

/// The longest sleep of a thread that waits for an answer; its deadline wakes it earlier.
const SLEEP: Duration = Duration::from_secs(1);
/// A buffer above this is not kept.
const KEEP_BYTES: usize = 1 << 20;

/// A connection whose worker is the calling thread. Not `Send`; clones share it.
///
/// Its calls move only while one of them is [waited](crate::Call::wait) for or polled, or by
/// [`turn`](InlineClient::turn). The first leaves at once; one that starts while others are under way leaves with the
/// next turn, so that a window of them costs one doorbell. As a future, a call that has not ended runs one turn each time it
/// is polled, and asks to be polled again.
#[derive(Clone)]
pub struct InlineClient {
    core: Rc<Core>,
}

struct Core {
    inline: RefCell<Inline<Any, Node>>,
    conn: ConnId,
    negotiated: Arc<Negotiated>,
    counters: Arc<Counters>,
    timeout: Timeout,
    /// Takes the place of an answer's bytes while they are read.
    spare: Cell<Vec<u8>>,
    /// The answer that is being read, where that may use the client.
    copied: RefCell<Vec<u8>>,
    /// Calls that were never started, and why; here, since a call is to be small.
    refused: RefCell<Vec<(CallKey, TransportError)>>,
    refusals: Cell<u32>,
}

/// The index of calls that are in no table.
const REFUSED: u32 = u32::MAX;

impl Core {
    #[cold]
    fn refuse(&self, error: TransportError) -> CallKey {
        self.refusals.set(self.refusals.get().wrapping_add(1));
        let key = CallKey::new(REFUSED, self.refusals.get());
        self.refused.borrow_mut().push((key, error));
        key
    }

    fn copy(&self, payload: &[u8], buffer: &mut Vec<u8>) {
        copied::into_buffer(buffer, payload, &self.counters.copied_answers);
    }

    /// Why it was refused, once.
    #[cold]
    fn take_refused(&self, key: CallKey) -> Option<TransportError> {
        let mut refused = self.refused.borrow_mut();
        let index = refused.iter().position(|(other, _)| *other == key)?;
        Some(refused.swap_remove(index).1)
    }
}

impl fmt::Debug for InlineClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InlineClient({} on {:?})", self.core.negotiated.peer, self.core.conn)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let conn = self.conn;
        self.inline.get_mut().with(|_, io| io.close(conn));
    }
}

impl InlineClient {
    /// Connects; blocks, at most for the connect and handshake time-outs.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::with(Config::default(), url)
    }

    pub(crate) fn with(config: Config, url: &str) -> Result<Self, ConnectError> {
        let address: Address = url.parse()?;
        // Its thread turns only while somebody waits for a call: silence between calls is no sign of death.
        let mut config = config;
        config.engine.port.attended = false;
        let (plan, limits) = config.validate()?;
        let (mut inline, counters) = workers::inline(
            &any_for(std::slice::from_ref(&address)),
            &plan,
            limits,
            Arc::new(Registry::default()),
            Arc::default(),
        )?;
        let (conn, negotiated) = inline.connect(&address)?;
        let core = Core {
            inline: RefCell::new(inline),
            conn,
            negotiated,
            counters,
            timeout: limits.deadline.into(),
            spare: Cell::default(),
            copied: RefCell::default(),
            refused: RefCell::default(),
            refusals: Cell::new(0),
        };
        Ok(Self { core: Rc::new(core) })
    }

    /// What the connection runs with.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.core.negotiated
    }

    /// One bounded turn of the worker; returns how much it did.
    pub fn turn(&self) -> usize {
        self.core.inline.borrow_mut().turn()
    }

    /// A turn; when it found nothing, idles by the configured strategy, at most for `limit`: where that is to spin, a few
    /// turns more.
    pub fn idle(&self, limit: Duration) -> usize {
        self.core.inline.borrow_mut().idle(limit)
    }

    /// Counters of this client.
    #[must_use]
    pub fn stats(&self) -> Stats {
        workers::sum(std::slice::from_ref(&self.core.counters))
    }

    /// Says goodbye and waits for the answer, at most `timeout`. Returns whether it came; `false` too while clones
    /// are left.
    #[must_use]
    pub fn close(self, timeout: Duration) -> bool {
        let conn = self.core.conn;
        let mut inline = self.core.inline.borrow_mut();
        inline.with(|_, io| io.close(conn));
        let until = inline.now().plus(timeout);
        while inline.now() < until {
            inline.idle(Duration::from_millis(1));
            if inline.with(|_, io| io.negotiated(conn).is_none()) {
                return true;
            }
        }
        false
    }
}

impl Channel for InlineClient {
    type Ticket = Local;

    #[inline]
    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        loan: Option<Loan>,
        arguments: &A,
    ) -> Local {
        // Most calls have nothing beside their arguments: theirs is a way of its own, on which nothing else is looked at.
        if loan.is_none() && options.metadata.is_none() {
            self.begin(method, options, (&mut None, None), arguments)
        } else {
            self.begin_beside(method, options, loan, None, arguments)
        }
    }

    fn start_streams<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        lanes: Lanes,
        arguments: &A,
    ) -> Local {
        self.begin_beside(method, options, None, Some(Box::new(lanes)), arguments)
    }

    fn drive(&self, may_idle: bool) -> bool {
        let mut inline = self.core.inline.borrow_mut();
        if may_idle {
            inline.idle(SLEEP);
        } else {
            inline.turn();
        }
        true
    }

    fn loan(&self, bytes: usize) -> Result<Loan, AllocateError> {
        let handle = self.core.inline.borrow().handle();
        Ok(handle.allocate(self.core.conn, bytes.max(1))?.truncate(bytes))
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, AllocateError> {
        Ok(self.core.inline.borrow().handle().lend(self.core.conn, bytes)?)
    }
}

impl InlineClient {
    #[inline(never)]
    fn begin_beside<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        mut loan: Option<Loan>,
        lanes: Option<Box<Lanes>>,
        arguments: &A,
    ) -> Local {
        let beside = (&mut loan, lanes);
        match options.noted(method) {
            None => self.begin(method, options, beside, arguments),
            Some(metadata) => self.begin(method, options, beside, &Noted { metadata, arguments }),
        }
    }

    #[inline(always)]
    fn begin<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: (&mut Option<Loan>, Option<Box<Lanes>>),
        arguments: &A,
    ) -> Local {
        let core = &*self.core;
        let timeout = options.resolve(core.timeout);
        let mut inline = core.inline.borrow_mut();
        let started = workers::start(&mut inline, |node, io| {
            node.begin(io, core.conn, method, timeout, Fresh(arguments), beside, Reply::Local)
        });
        drop(inline);
        let key = started.unwrap_or_else(|error| core.refuse(*error));
        Local { core: Rc::clone(&self.core), key: Some(key) }
    }
}

/// A call of an inline client: two words, which are returned in registers.
pub struct Local {
    core: Rc<Core>,
    /// Until its outcome was taken.
    key: Option<CallKey>,
}

const _: () = assert!(size_of::<Local>() == 2 * size_of::<usize>());

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local({:?})", self.key)
    }
}

impl Local {
    /// Waits for the outcome, and shows an answer that is only bytes to `read` where it landed.
    #[inline(always)]
    fn wait_reading(&mut self, mut read: impl FnMut(&Core, &[u8])) -> Result<(), AnswerBytes> {
        let Some(key) = self.key() else {
            return Err(Err(self.unanswerable()));
        };
        let core = &*self.core;
        let mut inline = core.inline.borrow_mut();
        let taken = loop {
            if let Some(taken) = inline.app_mut().take(core.conn, key, &core.spare) {
                break taken;
            }
            let was_read = inline.seek(SLEEP, |node, io, conn, message| {
                conn == core.conn && node.read_answer(io, conn, key, message, |payload| read(core, payload))
            });
            if was_read {
                self.key = None;
                return Ok(());
            }
        };
        drop(inline);
        Err(self.ended(key, taken))
    }

    /// There is no answer to wait for: it was never started, or was taken before.
    #[cold]
    fn unanswerable(&mut self) -> Box<Outcome> {
        let refused = self.key.take().and_then(|key| self.core.take_refused(key));
        let taken = TransportError::Worker { why: "the outcome was taken already", fate: Fate::MaybeRan };
        Box::new(Outcome::Failed(refused.unwrap_or(taken)))
    }

    /// Its key, while an answer may come.
    #[inline]
    fn key(&self) -> Option<CallKey> {
        self.key.filter(|key| key.index() != REFUSED)
    }

    #[inline]
    fn ended(&mut self, key: CallKey, taken: Taken) -> AnswerBytes {
        match taken {
            Taken::Bytes(is_error, body) => {
                self.key = None;
                Ok((is_error, body))
            }
            Taken::Other => Err(self.ended_otherwise(key)),
        }
    }

    #[cold]
    fn ended_otherwise(&mut self, key: CallKey) -> Box<Outcome> {
        self.key = None;
        let outcome = self.core.inline.borrow_mut().app_mut().take_outcome(self.core.conn, key);
        outcome.map_or_else(|| self.unanswerable(), Box::new)
    }
}

impl Ticket for Local {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        self.poll_bytes(context).map(Outcome::of)
    }

    fn wait(&mut self) -> Outcome {
        Outcome::of(self.wait_bytes())
    }

    #[inline]
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<AnswerBytes> {
        let Some(key) = self.key() else {
            return Poll::Ready(Err(self.unanswerable()));
        };
        let mut inline = self.core.inline.borrow_mut();
        let mut taken = inline.app_mut().take(self.core.conn, key, &self.core.spare);
        if taken.is_none() {
            inline.turn();
            taken = inline.app_mut().take(self.core.conn, key, &self.core.spare);
        }
        drop(inline);
        match taken {
            Some(taken) => Poll::Ready(self.ended(key, taken)),
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn wait_bytes(&mut self) -> AnswerBytes {
        let mut body = Vec::new();
        let waited = self.wait_reading(|core, payload| {
            body = core.spare.take();
            core.copy(payload, &mut body);
        });
        waited.map_or_else(|kept| kept, |()| Ok((false, body)))
    }

    fn wait_in_place(&mut self, read: &mut dyn FnMut(&[u8])) -> Result<(), AnswerBytes> {
        match self.wait_reading(|_, payload| read(payload)) {
            Err(kept) => show(self, kept, read),
            read => read,
        }
    }

    fn wait_copied(&mut self, read: &mut dyn FnMut(&[u8])) -> Result<(), AnswerBytes> {
        let core = Rc::clone(&self.core);
        // A read within a read has one of its own.
        let (mut own, mut shared) = (Vec::new(), core.copied.try_borrow_mut());
        let buffer = shared.as_deref_mut().unwrap_or(&mut own);
        match self.wait_reading(|core, payload| core.copy(payload, buffer)) {
            Err(kept) => show(self, kept, read),
            Ok(()) => {
                read(buffer);
                Ok(())
            }
        }
    }

    #[inline]
    fn recycle(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEEP_BYTES {
            self.core.spare.set(buffer);
        }
    }
}

impl Drop for Local {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.cancel(key);
        }
    }
}

impl Local {
    #[cold]
    fn cancel(&self, key: CallKey) {
        let conn = self.core.conn;
        if key.index() == REFUSED {
            let _ = self.core.take_refused(key);
        } else if let Ok(mut inline) = self.core.inline.try_borrow_mut() {
            inline.with(|node, io| node.cancel(io, conn, key));
        }
    }
}
