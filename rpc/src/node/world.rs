//! Whole clients and servers on simulated worlds, for tests of calls and of what is built on them.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod call;
mod tasks;

use std::{
    cell::RefCell,
    fmt,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

pub use call::WorldCall;
use gimmal_engine::{
    App as _, Inline,
    transport::{
        Address, CloseReason, ConnId, ConnectOptions, Connecting as _, Incoming as _, ListenOptions,
        Listener as _, PortConfig, Provider, Time,
    },
};
use tasks::Tasks;

use super::Node;
use crate::{
    command::{Command, Watcher},
    config::Config,
    reach::Reach,
    reconnect::{NOWHERE, arguments_max},
    service::{Registry, Service},
    stats::{Counters, Stats},
};

/// Numbers of a seed.
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// A number below `limit`, to count with.
    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

pub(crate) fn node<P: Provider>(
    sim: &P,
    config: &Config,
    services: Vec<Arc<dyn Service>>,
) -> (Inline<P, Node>, Arc<Counters>) {
    let (plan, limits) = config.clone().validate().unwrap();
    let (reach, counters) = (Reach::new(limits.tasks_max, Arc::default()), Arc::<Counters>::default());
    let registry = Arc::new(Registry::new(services).unwrap());
    let (shared, late) = (Arc::default(), Arc::default());
    let node = Node::new(limits, registry, shared, Arc::clone(&reach), Arc::clone(&counters), late);
    let inline = Inline::new(sim, &plan, node).unwrap();
    reach.set(inline.handle());
    (inline, counters)
}

pub(crate) fn config(serving_max: usize) -> Config {
    let port = PortConfig { ring_bytes: 16 << 10, slot_bytes: 4096, arrivals: 16, ..PortConfig::default() };
    let mut config = Config {
        window: 8,
        waiting_max: 16,
        serving_max,
        tasks_max: 6,
        // The side that only calls takes a little more.
        message_bytes_max: if serving_max == 1 { 31_000 } else { 30_000 },
        ..Config::default()
    };
    config.engine.port = port;
    config
}

/// Turns that a handshake may take.
const OPENING: u32 = 2000;

pub(crate) fn address() -> Address {
    "mem://world".parse().unwrap()
}

/// Takes in who wants to connect.
pub(crate) fn accept<P: Provider>(listener: &mut P::Listener, server: &mut Inline<P, Node>, now: Time) {
    if let Some(incoming) = listener.accept(Duration::ZERO).unwrap() {
        let link = incoming.accept(server.handle().gate()).unwrap();
        server.at(now).adopt(link);
    }
}

/// A world with one client, which is a [`Channel`](crate::Channel), and one server after the other. A clone is the same world.
///
/// Nothing happens but in [`World::turn`]: time goes on, both sides take turns, a connection is made where there is none, and tasks are
/// polled that were woken.
pub struct World<P: Provider> {
    inside: Rc<RefCell<Inside<P>>>,
    tasks: Tasks,
}

impl<P: Provider> Clone for World<P> {
    fn clone(&self) -> Self {
        Self { inside: Rc::clone(&self.inside), tasks: self.tasks.clone() }
    }
}

struct Inside<P: Provider> {
    sim: P,
    rng: Rng,
    now: Time,
    client: Inline<P, Node>,
    called: Arc<Counters>,
    server: Option<Server<P>>,
    line: Line<P>,
    /// Calls that wait for a connection.
    waiting: Vec<Waker>,
}

struct Server<P: Provider> {
    inline: Inline<P, Node>,
    counters: Arc<Counters>,
    /// None once it drains.
    listener: Option<P::Listener>,
}

/// The client's connections.
struct Line<P: Provider> {
    connecting: Option<P::Connecting>,
    /// Turns in which one that was made may still open.
    opening: u32,
    conn: Option<(ConnId, Arc<Watched>)>,
    /// Left for others, until their calls have ended.
    left: Vec<ConnId>,
}

/// Hears that a connection takes no more calls.
#[derive(Debug, Default)]
struct Watched(AtomicBool);

impl Watcher for Watched {
    fn ended(&self, _: &CloseReason) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn leaving(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_moving(&self) -> bool {
        false
    }
}

impl<P: Provider> fmt::Debug for World<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({:?})", self.inside.borrow().now)
    }
}

impl<P: Provider> World<P> {
    /// A world of `sim`, with this seed, without a server.
    #[must_use]
    pub fn new(sim: P, seed: u64) -> Self {
        let rng = Rng(seed * 2 + 1);
        let (client, called) = node(&sim, &config(1), Vec::new());
        let line = Line { connecting: None, opening: 0, conn: None, left: Vec::new() };
        let (now, waiting) = (Time(0), Vec::new());
        let inside = Inside { sim, rng, now, client, called, server: None, line, waiting };
        Self { inside: Rc::new(RefCell::new(inside)), tasks: Tasks::default() }
    }

    /// Starts a server that takes `serving_max` calls at once, in the place of one that was killed.
    pub fn serve(&self, serving_max: usize, services: Vec<Arc<dyn Service>>) {
        let mut inside = self.inside.borrow_mut();
        assert!(inside.server.is_none(), "there is a server");
        let (inline, counters) =
            node(&inside.sim, &Config { tasks_max: serving_max, ..config(serving_max) }, services);
        let listener = Some(inside.sim.listen(&address(), &ListenOptions::default()).unwrap());
        inside.server = Some(Server { inline, counters, listener });
    }

    /// Ends the server as it is, its handlers and its connections with it.
    pub fn kill(&self) {
        let server = self.inside.borrow_mut().server.take();
        drop(server);
    }

    /// Has the server take no more calls. Returns whether all that it had to do is done, and its clients have left: asked again and
    /// again.
    #[must_use]
    pub fn drain(&self) -> bool {
        let mut inside = self.inside.borrow_mut();
        let Some(Server { inline, listener, .. }) = &mut inside.server else { return true };
        *listener = None;
        inline.app().shared.drain();
        inline.with(Node::drain) && inline.with(Node::leave)
    }

    /// Whether there is a connection that takes calls, as far as the client knows.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inside.borrow().line.conn.is_some()
    }

    /// Returns how many bytes a request, or an item of a stream, may have; 0 before there is a connection.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        let mut inside = self.inside.borrow_mut();
        let Some(conn) = inside.line.conn.as_ref().map(|(conn, _)| *conn) else { return 0 };
        inside.client.with(|_, io| io.negotiated(conn).map_or(0, |negotiated| arguments_max(negotiated)))
    }

    /// Runs `task` by the turns of the world. Returns its number.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) -> u64 {
        self.tasks.spawn(Box::pin(task))
    }

    /// Drops a task.
    pub fn cancel(&self, task: u64) {
        drop(self.tasks.take(task));
    }

    /// Whether a task has neither ended nor been dropped.
    #[must_use]
    pub fn is_running(&self, task: u64) -> bool {
        self.tasks.has(task)
    }

    /// How many tasks have neither ended nor been dropped.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tasks.len()
    }

    /// Whatever has something to do at `now` does it.
    pub fn turn(&self, now: Time) {
        let waiting = self.inside.borrow_mut().turn(now);
        waiting.into_iter().for_each(crate::wake::wake);
        self.tasks.poll();
    }

    /// Checks that nothing is left of calls that have ended.
    ///
    /// # Panics
    /// If there is something.
    pub fn check(&self, what: &str) {
        let inside = self.inside.borrow();
        let stats = |counters: &Counters| {
            let mut stats = Stats::default();
            counters.add_to(&mut stats);
            stats
        };
        let called = stats(&inside.called);
        assert_eq!(called.calls, called.answered + called.failed + called.cancelled, "{what}: {called:?}");
        let client = inside.client.app();
        assert_eq!((client.calls_live, client.closed.len()), (0, 0), "{what}: calls are left");
        if let Some(server) = &inside.server {
            let served = stats(&server.counters);
            assert_eq!((served.serving, served.panics), (0, 0), "{what}: {served:?}");
            assert_eq!(server.inline.app().tasks.len(), 0, "{what}: handlers are left");
        }
    }
}

impl<P: Provider> Inside<P> {
    /// Returns who waited for a connection that is there now.
    fn turn(&mut self, now: Time) -> Vec<Waker> {
        self.now = now;
        self.client.at(self.now).turn();
        if let Some(server) = &mut self.server {
            if self.rng.below(3) > 0 {
                server.inline.at(self.now).turn();
            }
            if let Some(listener) = &mut server.listener {
                accept(listener, &mut server.inline, self.now);
            }
        }
        self.leave();
        if self.line.conn.is_none() {
            self.connect();
        }
        if self.line.conn.is_some() { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }

    /// Leaves a connection that takes no more calls, and closes those whose calls have ended.
    fn leave(&mut self) {
        if let Some((conn, _)) = self.line.conn.take_if(|(_, watched)| watched.0.load(Ordering::Relaxed)) {
            self.line.left.push(conn);
        }
        let client = &mut self.client;
        self.line.left.retain(|conn| {
            let done = Arc::new(AtomicBool::new(false));
            client.with(|node, io| node.retire(io, *conn, None, &done));
            !done.load(Ordering::Relaxed)
        });
    }

    fn connect(&mut self) {
        let Self { sim, client, line, now, .. } = self;
        let listening = self.server.as_ref().is_some_and(|server| server.listener.is_some());
        if line.connecting.is_none() && line.opening == 0 && listening {
            let gate = client.handle().gate().clone();
            line.connecting = sim.connect(&address(), &gate, &ConnectOptions::default()).ok();
        }
        let ended = line.connecting.as_mut().and_then(|connecting| connecting.poll(Duration::ZERO));
        if let Some(ended) = ended {
            line.connecting = None;
            if let Ok(link) = ended {
                client.at(*now).adopt(link);
                line.opening = OPENING;
            }
        }
        if line.opening > 0 {
            line.opening -= 1;
            self.open();
        }
    }

    /// Looks for a connection that was opened.
    fn open(&mut self) {
        let Self { client, line, .. } = self;
        let mut all = client.app_mut().conns.iter_mut();
        let opened = all.find_map(|(conn, _)| (!line.left.contains(&conn)).then_some(conn));
        drop(all);
        let Some(conn) = opened else { return };
        let watched = Arc::<Watched>::default();
        let watcher: Arc<dyn Watcher> = Arc::clone(&watched) as _;
        client.with(|node, io| node.command(io, Command::Watch(conn, watcher)));
        line.conn = Some((conn, watched));
        line.opening = 0;
    }
}
