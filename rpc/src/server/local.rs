//! Services on the calling thread, by turns that the thread runs or as a future of its event loop.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::{
    Alarm, Inline, Io, Rest,
    transport::{Address, Instant, Provider, thread},
    worker::duty::DutySnapshot,
};

use super::{acceptors::Acceptors, watch::Watch};
use crate::{
    draining::{SetOnDrop, Signal},
    node::Node,
    provider::Any,
    runtime::within,
    shared::Shared,
    stats::{Counters, Stats},
};

/// The longest sleep of a server that is a future; deadlines wake it earlier.
const SLEEP: Duration = Duration::from_secs(3600);
/// The longest sleep while it shuts down.
const LOOK: Duration = Duration::from_millis(1);
/// Steps that find nothing, before other tasks get their turn.
const STEPS: usize = 64;

/// Services on the calling thread: the lowest latency. Not `Send`.
///
/// Nothing is served between calls of [`turn`](Self::turn), [`idle`](Self::idle) and [`run_until`](Self::run_until), so clients wait.
/// As a future of an event loop it is [`serve_until`](Self::serve_until). Dropping it ends its connections.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let mut server = gimmal::Server::builder().service(serve_hello(Greeter)).listen_local("mem://doc-local-server")?;
/// let client = std::thread::spawn(|| {
///     let client = HelloClient::new(gimmal::Client::connect("mem://doc-local-server").unwrap());
///     client.hello("Ada".into()).wait().unwrap()
/// });
/// server.run_until(Duration::from_millis(10), || client.is_finished());
/// assert_eq!(client.join().unwrap(), "Hello, Ada!");
/// assert!(server.shutdown(Duration::from_secs(5)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalServer {
    address: Address,
    /// None once it shuts down.
    acceptors: Option<Acceptors>,
    inline: Inline<Any, Node>,
    counters: Arc<Counters>,
    shared: Arc<Shared>,
    /// Set when there is nothing to serve for any more.
    ended: Arc<Signal>,
    _watch: Watch,
}

/// A shutdown that has begun.
struct Ending {
    /// Whether nothing was left to do; `None` while there may be.
    drained: Option<bool>,
    /// When it is given up, or its goodbyes.
    until: Instant,
    /// Set when nothing is listened at.
    is_deaf: Arc<Signal>,
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.enter(|inline| inline.app_mut().forget_handlers());
    }
}

impl LocalServer {
    pub(super) fn new(
        acceptors: Acceptors,
        (inline, counters): (Inline<Any, Node>, Arc<Counters>),
        (shared, ended, watch): (Arc<Shared>, Arc<Signal>, Watch),
    ) -> Self {
        let (address, acceptors) = (acceptors.address().clone(), Some(acceptors));
        Self { address, acceptors, inline, counters, shared, ended, _watch: watch }
    }

    /// Returns where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns why it does not listen any more at one of its addresses, though nobody stopped it; `None` while it does.
    #[must_use]
    pub fn not_listening(&self) -> Option<String> {
        self.acceptors.as_ref()?.not_listening()
    }

    /// Returns what was counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::sum(std::slice::from_ref(&self.counters))
    }

    /// Returns what this thread did as the worker: its turns and sleeps, its longest turn. `tuning.md` says what follows from them.
    #[must_use]
    pub fn duty(&self) -> DutySnapshot {
        self.inline.handle().duty()
    }

    /// Runs one bounded turn, handlers included, and returns how many events and commands it handled. Does not block, unless a
    /// handler does.
    pub fn turn(&mut self) -> usize {
        self.enter(Inline::turn)
    }

    /// Runs a turn. When that found nothing, idles by the configured strategy: it blocks until something comes, for at most
    /// `limit`, or makes a few turns more where it is to spin. Returns how many events and commands the turns handled.
    pub fn idle(&mut self, limit: Duration) -> usize {
        self.enter(|inline| inline.idle(limit))
    }

    /// Blocks the thread and serves until `stop` says so; it is asked after every turn, and at least every `limit`.
    pub fn run_until(&mut self, limit: Duration, mut stop: impl FnMut() -> bool) {
        while !stop() {
            self.idle(limit);
        }
    }

    /// Stops accepting, refuses new calls (not run), waits for those that run and for their answers to leave, and says goodbye.
    /// Serves meanwhile on the calling thread, which it blocks for `timeout` and about a second at most. Returns whether everything
    /// had ended.
    #[must_use]
    pub fn shutdown(mut self, timeout: Duration) -> bool {
        let mut ending = self.begin_to_end(timeout);
        loop {
            if let Some(has_ended_well) = self.end(&mut ending) {
                return has_ended_well;
            }
            self.idle(LOOK);
        }
    }

    /// Returns what an event loop waits for while [`LocalServer::serve_until`] sleeps.
    ///
    /// # Errors
    /// The system's: no more descriptors, as a rule.
    pub fn alarm(&self) -> io::Result<Alarm> {
        self.inline.alarm()
    }

    /// Serves, as a future of the calling thread's event loop, until `signal` is ready, or until the server listens at no address
    /// any more. Then it stops accepting, refuses new calls, and waits for handlers and answers, for `timeout` and about a second
    /// at most. Never blocks the thread. Returns whether everything had ended.
    ///
    /// `alarm` is this server's, from [`LocalServer::alarm`]. `readable` is asked before each sleep and after it whether the
    /// alarm's descriptor can be read. `Ready(Ok(()))` means that it can, or could since the last answer. After `Pending` it wakes
    /// the task once it can.
    ///
    /// Not cancel safe: dropping the future drops the server, whose connections end.
    ///
    /// # Errors
    /// What the event loop says of the descriptor. Where nobody asked for the end, after the shutdown: why the server did not listen any
    /// more, as [`LocalServer::not_listening`] says it.
    pub async fn serve_until(
        mut self,
        alarm: Alarm,
        mut readable: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
        signal: impl Future,
        timeout: Duration,
    ) -> io::Result<bool> {
        let (mut signal, mut ended) = (pin!(signal), self.ended.wait());
        let (mut ending, mut is_asleep, mut lost) = (None, false, None);
        poll_fn(move |context| {
            if std::mem::take(&mut is_asleep) {
                self.inline.woke();
                // Before the turn that looks: it need not be followed by another.
                if let Poll::Ready(rang) = readable(context) {
                    rang?;
                }
            }
            if ending.is_none() {
                let is_asked = signal.as_mut().poll(context).is_ready();
                if is_asked || Pin::new(&mut ended).poll(context).is_ready() {
                    lost = if is_asked { None } else { self.not_listening() };
                    ending = Some(self.begin_to_end(timeout));
                }
            }
            let limit = if ending.is_some() { LOOK } else { SLEEP };
            let rest = self.enter(|inline| round(inline, limit, context));
            if let Rest::Sleep(limit) = rest {
                is_asleep = true;
                alarm.set(limit)?;
            }
            if let Some(has_ended_well) = ending.as_mut().and_then(|ending| self.end(ending)) {
                let lost = lost.take().map(|why| io::Error::other(format!("no longer listening: {why}")));
                return Poll::Ready(lost.map_or(Ok(has_ended_well), Err));
            }
            if is_asleep && readable(context)?.is_pending() {
                return Poll::Pending;
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Lets `act` have the worker, inside the runtime of its handlers.
    fn enter<R>(&mut self, act: impl FnOnce(&mut Inline<Any, Node>) -> R) -> R {
        within(self.shared.runtime.as_deref(), || act(&mut self.inline))
    }

    fn act(&mut self, act: impl FnOnce(&mut Node, &mut Io<'_, <Any as Provider>::Port>) -> bool) -> bool {
        self.enter(|inline| inline.with(act))
    }

    fn begin_to_end(&mut self, timeout: Duration) -> Ending {
        let is_deaf = Arc::<Signal>::default();
        let (acceptors, deaf) = (self.acceptors.take(), SetOnDrop(Arc::clone(&is_deaf)));
        // To stop listening may take a while. Calls are served until it is done, since clients are told to go elsewhere only then.
        // Without a thread it happens here.
        let _ = thread::spawn("gimmal-shutdown", move || {
            drop(acceptors);
            drop(deaf);
        });
        Ending { drained: None, until: Instant::now() + timeout, is_deaf }
    }

    /// Goes on with a shutdown. Returns whether it ended well, once it has ended.
    fn end(&mut self, ending: &mut Ending) -> Option<bool> {
        if ending.drained.is_none() {
            // First no client may come any more.
            if !ending.is_deaf.is_set() {
                return None;
            }
            self.shared.drain();
            let is_at_rest = self.act(Node::drain);
            if !is_at_rest && !ending.until.has_passed() {
                return None;
            }
            ending.drained = Some(is_at_rest);
            ending.until = Instant::now() + ending.until.remaining().max(Duration::from_secs(1));
        }
        let is_left = self.act(Node::leave);
        (is_left || ending.until.has_passed()).then(|| is_left && ending.drained == Some(true))
    }
}

/// Steps, until one found something or wants more than another; what the last one wants. Before a sleep the port is armed.
fn round(inline: &mut Inline<Any, Node>, limit: Duration, context: &Context<'_>) -> Rest {
    for _ in 0..STEPS {
        match inline.step(limit, context.waker(), true) {
            Rest::Spin => std::hint::spin_loop(),
            rest => return rest,
        }
    }
    Rest::Spin
}
