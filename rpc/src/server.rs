//! Servers: services behind a listener, on worker threads or on the calling thread.

mod acceptors;
mod local;
mod watch;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::{
    Admit,
    transport::{
        Address, Allow, Hello, Instant, Key, ListenError, ListenOptions, Provider, Refusal, RejectReason,
        Tls, UserMemory, thread,
    },
    worker::duty::DutySnapshot,
};

pub use self::local::LocalServer;
use self::{acceptors::Acceptors, watch::Watch};
use crate::{
    cell::block,
    command::Command,
    config::{Config, Limits},
    draining::{SetOnDrop, Signal},
    error::ServeError,
    here,
    provider::{Any, any_for},
    reflect::{Mirror, serve_reflection},
    route::Route,
    runtime::Runtime,
    service::{Registry, Service},
    shared::Shared,
    stats::{Counters, Stats},
    workers::{self, WorkerSet},
};

/// Collects what a server is made of. Keys, certificates, the allow-list and a take-over given by their own methods hold whatever
/// [`config`](ServerBuilder::config) says, and whichever is called first.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// # use gimmal::Cx;
/// # #[gimmal::service(crate = gimmal_rpc)]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// use gimmal::{Config, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config { serving_max: 1024, ..Config::default() };
/// let server = Server::builder().service(serve_hello(Greeter)).config(config).listen("mem://doc-config")?;
/// assert_eq!(server.address().to_string(), "mem://doc-config");
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct ServerBuilder {
    services: Vec<Arc<dyn Service>>,
    config: Config,
    keys: Vec<Key>,
    allow: Option<Allow>,
    tls: Option<Tls>,
    admit: Option<Admit>,
    take_over: Option<Duration>,
    is_opaque: bool,
    runtime: Option<Arc<dyn Runtime>>,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerBuilder({} services)", self.services.len())
    }
}

struct Prepared {
    provider: Any,
    registry: Arc<Registry>,
    plan: gimmal_engine::Plan,
    limits: Limits,
    listeners: Vec<<Any as Provider>::Listener>,
    left_out: Vec<String>,
    admit: Admit,
    shared: Arc<Shared>,
    /// Set when the workers run, for reflection.
    counters: Arc<OnceLock<Vec<Arc<Counters>>>>,
}

impl ServerBuilder {
    /// Adds a service: what `serve_…` of its trait makes of an implementation.
    #[must_use]
    pub fn service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Sets the whole configuration, except what the other methods set. A field outside its limits is an error of
    /// [`listen`](ServerBuilder::listen).
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Adds a shared key to those of the configuration: every client must prove one of them, and this server proves it.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.keys.push(key);
        self
    }

    /// Sets whose processes may connect over shared memory, in place of the configuration's list.
    #[must_use]
    pub fn allow(mut self, allow: Allow) -> Self {
        self.allow = Some(allow);
        self
    }

    /// Sets the certificates that this server shows and believes over `tcp+tls://`, in place of the configuration's.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Asks `admit` about each client that wants to connect, with its [`Hello`] and its name for people: its process over shared
    /// memory, otherwise its address. It lets the client in, or refuses it with a reason and at most 132 bytes, which the client finds in
    /// [`ConnectCause::Rejected`](gimmal_engine::transport::ConnectError::Rejected). The last `admit` that was set counts.
    ///
    /// It is asked after the allow-list, the certificates and the hello's key were checked, and after `accepted_max`. Over RDMA the
    /// client ends the proof of its key only when it was accepted.
    ///
    /// It runs on the accepting thread, for one client at a time: while it blocks, nobody connects, so it should decide by what it
    /// has in memory. A client for which it panics is refused as overloaded, and the panic is logged.
    #[must_use]
    pub fn admit(mut self, admit: impl FnMut(&Hello, &str) -> Result<(), Refusal> + Send + 'static) -> Self {
        self.admit = Some(Box::new(admit));
        self
    }

    /// Sets how long `listen` blocks while another process listens at the address, until that stops; zero, the default, does not
    /// wait. Nothing tells that process to stop but you. Over TCP it hands its socket over, so no client is refused meanwhile.
    #[must_use]
    pub const fn take_over(mut self, patience: Duration) -> Self {
        self.take_over = Some(patience);
        self
    }

    /// Lets handlers use `runtime`: its timers, sockets and tasks. Handlers are still polled and dropped on the server's
    /// workers, inside the runtime, so a call takes no other thread.
    #[must_use]
    pub fn runtime(mut self, runtime: impl Runtime) -> Self {
        self.runtime = Some(Arc::new(runtime));
        self
    }

    /// Leaves the service [`gimmal.Reflection`](crate::reflect) out: clients are told nothing but what the services tell. `gimmal
    /// call`, `describe`, `top` and `health` then fail.
    #[must_use]
    pub const fn without_reflection(mut self) -> Self {
        self.is_opaque = true;
        self
    }

    /// The configuration, with what was given by methods of its own.
    fn configured(&mut self) -> Config {
        let mut config = std::mem::take(&mut self.config);
        let listen = &mut config.engine.listen;
        listen.keys.append(&mut self.keys);
        listen.allow = self.allow.take().unwrap_or_else(|| std::mem::take(&mut listen.allow));
        listen.take_over = self.take_over.unwrap_or(listen.take_over);
        listen.tls = self.tls.take().unwrap_or_else(|| std::mem::take(&mut listen.tls));
        config
    }

    /// Refuses local services of another thread, and all of them where workers serve.
    fn check_threads(&mut self, has_workers: bool) -> Result<(), ServeError> {
        let is_elsewhere =
            |service: &Arc<dyn Service>| service.is_local().is_some_and(|is_here| has_workers || !is_here);
        let Some(service) = self.services.iter().find(|service| is_elsewhere(service)) else { return Ok(()) };
        let name = service.methods().first().map_or_else(String::new, |method| method.service.to_owned());
        if service.is_local() == Some(false) {
            // It must not be dropped here either.
            std::mem::forget(std::mem::take(&mut self.services));
        }
        Err(ServeError::Local { service: name })
    }

    fn prepare(mut self, url: &str, has_workers: bool) -> Result<Prepared, ServeError> {
        if self.services.is_empty() {
            return Err(ServeError::NoService);
        }
        self.check_threads(has_workers)?;
        let shared = Shared::new(self.runtime.take());
        let counters = Arc::default();
        if !self.is_opaque {
            let methods = Registry::methods(&self.services);
            let mirror = Mirror::new(methods, Arc::clone(&shared), Arc::clone(&counters));
            self.services.push(Arc::new(serve_reflection(mirror)));
        }
        let config = self.configured();
        let route = Route::parse(url, &config.engine.listen.tls)?;
        let (plan, limits) = config.validate()?;
        let registry = Arc::new(Registry::new(self.services)?);
        let (provider, options) = (any_for(&route.kinds()), &plan.config().listen);
        let listen = |address: &Address| listen_within(&provider, address, options);
        let (listeners, left_out) = route.listen(!options.take_over.is_zero(), listen)?;
        let admit = self.admit.unwrap_or_else(|| Box::new(|_, _| Ok(())));
        Ok(Prepared { provider, registry, plan, limits, listeners, left_out, admit, shared, counters })
    }

    /// Listens on `shm://name`, `tcp://host:port`, `tcp+tls://host:port`, `rdma://host:port` or `mem://name`, and serves on worker
    /// threads: one, unless [`Config`] has more. On `gimmal://host:port` it listens in every way that this host has, see
    /// [`Server::addresses`]; with certificates over TLS alone. Dropping the result ends its connections.
    ///
    /// Blocks while a name is looked up, and for [`take_over`](ServerBuilder::take_over) where another process has the address.
    ///
    /// # Errors
    /// A variant of [`ServeError`] for each cause: no service, two methods with one id, a malformed URL, a setting outside its
    /// limits, an address that is in use, a local service, no thread.
    pub fn listen(self, url: &str) -> Result<Server, ServeError> {
        let prepared = self.prepare(url, true)?;
        let Prepared { provider, registry, plan, limits, listeners, left_out, admit, shared, counters } =
            prepared;
        let workers = WorkerSet::spawn(&provider, &plan, limits, registry, Arc::clone(&shared))?;
        // Nobody else sets it.
        let _ = counters.set(workers.counters.clone());
        let (ended, stations) = (Arc::default(), workers.workers.stations());
        let acceptors = Acceptors::spawn(listeners, stations, admit, (&shared, &ended))?;
        let watch = Watch::new(&shared, &ended, stations);
        if plan.config().workers == 1 {
            // Nobody else sets it.
            let _ = shared.sole_worker_at.set(acceptors.addresses());
        }
        Ok(Server { acceptors, left_out, workers, shared, ended, _watch: watch })
    }

    /// Listens with the calling thread as the worker: handlers run in [`LocalServer::turn`], [`idle`](LocalServer::idle),
    /// [`run_until`](LocalServer::run_until) and [`serve_until`](LocalServer::serve_until). It takes the URLs that
    /// [`listen`](ServerBuilder::listen) takes, and blocks for the same. `config.engine.workers` is ignored.
    ///
    /// # Errors
    /// A variant of [`ServeError`] for each cause: no service, two methods with one id, a malformed URL, a setting outside its
    /// limits, an address that is in use, a local service of another thread.
    pub fn listen_local(self, url: &str) -> Result<LocalServer, ServeError> {
        let prepared = self.prepare(url, false)?;
        let Prepared { provider, registry, plan, limits, listeners, admit, shared, counters: shown, .. } =
            prepared;
        let (inline, counters) = workers::inline(&provider, &plan, limits, registry, Arc::clone(&shared))?;
        // Nobody else sets it.
        let _ = shown.set(vec![Arc::clone(&counters)]);
        let (ended, station) = (Arc::default(), [inline.handle().into()]);
        let acceptors = Acceptors::spawn(listeners, &station, admit, (&shared, &ended))?;
        let watch = Watch::new(&shared, &ended, &station);
        Ok(LocalServer::new(acceptors, (inline, counters), (shared, ended, watch)))
    }
}

/// Between two looks whether an address is free: on verbs a look makes and destroys an id.
const TAKE_OVER_LOOK: Duration = Duration::from_millis(10);

/// Listens, and waits until the process that has the address stops.
fn listen_within(
    provider: &Any,
    address: &Address,
    options: &ListenOptions,
) -> Result<<Any as Provider>::Listener, ListenError> {
    let deadline = Instant::now() + options.take_over;
    let mut is_told = false;
    loop {
        let options = ListenOptions { take_over: deadline.remaining(), ..options.clone() };
        match provider.listen(address, &options) {
            Err(error @ ListenError::InUse { .. }) if !deadline.has_passed() => {
                if !std::mem::replace(&mut is_told, true) {
                    let patience = options.take_over;
                    tracing::info!(%address, ?patience, %error, "waits until the address is free");
                }
                std::thread::sleep(TAKE_OVER_LOOK);
            }
            outcome => return outcome,
        }
    }
}

/// Services on worker threads. Dropping it closes every connection without waiting for handlers, and blocks until the threads have
/// ended, within a bound. [`shutdown`](Server::shutdown) and [`serve_until`](Server::serve_until) end it in order.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// # use gimmal::Cx;
/// # #[gimmal::service(crate = gimmal_rpc)]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// use std::time::Duration;
///
/// use gimmal::Server;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder().service(serve_hello(Greeter)).listen("mem://doc-server")?;
/// let client = HelloClient::new(gimmal::Client::builder().connect("mem://doc-server")?);
/// assert_eq!(client.hello("Ada".into()).wait()?, "Hello, Ada!");
/// assert!(server.shutdown(Duration::from_secs(5))); // no handler had to be cut off
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    acceptors: Acceptors,
    left_out: Vec<String>,
    workers: WorkerSet,
    shared: Arc<Shared>,
    /// Set when there is nothing to serve for any more; see [`Server::join`].
    ended: Arc<Signal>,
    _watch: Watch,
}

impl Server {
    /// Returns a builder with the default configuration and no service.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns where it listens, with the port that was chosen; of several addresses the first.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.acceptors.address()
    }

    /// Returns every address it listens at: several for `gimmal://host:port`.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.acceptors.addresses()
    }

    /// Returns the ways by which `gimmal://host:port` is not served, each with the reason: `rdma: no RDMA device: …`. Empty for
    /// other URLs.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns what was counted so far, over all workers.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.workers.stats()
    }

    /// Returns what each worker has and did: its connections, turns and sleeps, its longest turn. `tuning.md` says what follows
    /// from them.
    #[must_use]
    pub fn duty(&self) -> Vec<DutySnapshot> {
        self.workers.duty()
    }

    /// Returns a function that does as [`Server::stats`] on any thread, also when [`Server::serve_until`] or [`Server::shutdown`] has
    /// taken the server: for a page of metrics.
    pub fn stats_reader(&self) -> impl Fn() -> Stats + Clone + Send + Sync + use<> {
        let counters = self.workers.counters.clone();
        move || Stats::sum(&counters)
    }

    /// Returns the text of the last panic of a worker, if there was one. [`Stats::worker_panics`] counts them. Panics of handlers
    /// are not among these.
    #[must_use]
    pub fn last_worker_panic(&self) -> Option<String> {
        self.workers.last_panic()
    }

    /// Returns what became of the user memory ([`Cx::lend`](crate::Cx::lend)) that handlers lent, over all workers.
    #[must_use]
    pub fn user_memory(&self) -> UserMemory {
        self.workers.user_memory()
    }

    /// Returns how many connections were accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.acceptors.accepted()
    }

    /// Asks the clients of workers that have more than their share to connect again. A new connection goes to the worker with the
    /// fewest, and the client closes the old one when its calls have ended, so no call fails. A client that does not
    /// [reconnect](crate::Reconnect) stays where it is, and so does an inline one. Returns how many were asked.
    pub fn rebalance(&self) -> usize {
        let (handles, duties) = (self.workers.workers.handles(), self.duty());
        let share = duties.iter().map(|duty| duty.connections).sum::<usize>().div_ceil(duties.len());
        let mut asked = 0;
        for (handle, duty) in handles.iter().zip(duties) {
            let surplus = duty.connections.saturating_sub(share);
            if surplus > 0 && handle.submit(Command::Shed(surplus)).is_ok() {
                asked += surplus;
            }
        }
        asked
    }

    /// Returns how many requests to connect were refused: foreign clients, wrong keys, users not on the list, no place.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.acceptors.rejected()
    }

    /// Returns how many requests to connect were refused for the cause of `reason`, whatever its values are.
    #[must_use]
    pub fn rejected_as(&self, reason: RejectReason) -> u64 {
        self.acceptors.rejected_as(reason)
    }

    /// Returns why a request to connect was refused last, if one was.
    #[must_use]
    pub fn last_rejected(&self) -> Option<RejectReason> {
        self.acceptors.last_rejected()
    }

    /// Sets what `gimmal.Reflection` says of a service's health from now on; the empty name means the whole server. Calls are not
    /// affected.
    pub fn set_health(&self, service: &str, is_well: bool) {
        self.shared.set_health(service, is_well);
    }

    /// Returns a function that ends [`Server::join`] from any thread: for a handler of Ctrl-C, say. To call it more than once
    /// does no harm.
    pub fn stopper(&self) -> impl Fn() + Clone + Send + Sync + use<> {
        let ended = Arc::clone(&self.ended);
        move || ended.set()
    }

    /// Returns why this server does not listen any more at one of its addresses, though nobody stopped it; `None` while it does. It
    /// serves the connections that it has, and its health is [`NotServing`](crate::reflect::Health::NotServing).
    #[must_use]
    pub fn not_listening(&self) -> Option<String> {
        self.acceptors.not_listening()
    }

    /// Serves until [`Server::stopper`] ends it, until the runtime of its handlers ends, or until it does not listen at any address
    /// any more: then [`Server::not_listening`] says why. Blocks the thread until then, and shuts nothing down: connections end when
    /// the server is dropped, or in order by [`Server::shutdown`]. In async code use [`Server::serve_until`].
    ///
    /// ```
    #[doc = include_str!("doc/hello.txt")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-join")?;
    /// let stop = server.stopper();
    /// std::thread::spawn(stop); // another thread, or the handler of a signal
    /// server.join();
    /// assert!(server.shutdown(Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn join(&self) {
        let mut ended = self.ended.wait();
        block(|context| Pin::new(&mut ended).poll(&mut Context::from_waker(context.waker())));
    }

    /// Serves until `signal` is ready, or until [`Server::join`] would end. Then shuts down as [`Server::shutdown`] does, on a
    /// thread of its own, and returns what that returns.
    ///
    /// Not cancel safe: dropping the future drops the server, whose connections end. A shutdown that has begun goes on.
    pub async fn serve_until(self, signal: impl Future, timeout: Duration) -> bool {
        let (mut signal, mut ended) = (pin!(signal), self.ended.wait());
        poll_fn(|context| match signal.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Pin::new(&mut ended).poll(context),
        })
        .await;
        let (done, drained) = (Arc::<Signal>::default(), Arc::new(AtomicBool::new(false)));
        let (set, tell) = (SetOnDrop(Arc::clone(&done)), Arc::clone(&drained));
        // Without a thread the server is dropped.
        let _ = thread::spawn("gimmal-shutdown", move || {
            let _set = set;
            tell.store(self.shutdown(timeout), Ordering::Release);
        });
        done.wait().await;
        drained.load(Ordering::Acquire)
    }

    /// Stops accepting, frees its address, tells every client to go elsewhere and refuses new calls (not run, so safe to
    /// make elsewhere). Waits for the handlers that run, one-way ones included, for their answers to leave, and for clients
    /// to read the bulk of these; then says goodbye to every client. Blocks the thread for all of it, for `timeout` and about a
    /// second at most. Returns whether everything had ended: `false` means that a handler was cut off, or an answer.
    ///
    /// A handler of this server cannot wait for itself: called by one, this returns `false` at once, and all else is done by
    /// a thread of its own.
    #[must_use]
    pub fn shutdown(self, timeout: Duration) -> bool {
        if here::is_worker_of(&self.shared) {
            // Without a thread the server is dropped, which waits for nobody here.
            let _ = thread::spawn("gimmal-shutdown", move || self.shutdown(timeout));
            return false;
        }
        let at = self.address().to_string();
        let Self { acceptors, workers, shared, .. } = self;
        let deadline = Instant::now() + timeout;
        tracing::info!(at, ?timeout, "shuts down: what runs may end");
        // That takes a while. Calls are served until it is done, since clients are told to go elsewhere only then.
        drop(acceptors);
        shared.drain();
        let drained = workers.drain(deadline);
        let left = deadline.remaining().max(Duration::from_secs(1));
        let has_ended_well = workers.workers.shutdown(left) && drained;
        if has_ended_well {
            tracing::info!(at, "has shut down");
        } else {
            tracing::warn!(
                at,
                ?timeout,
                "has shut down: handlers or answers were cut off at the end of the time"
            );
        }
        has_ended_well
    }
}

#[cfg(test)]
mod tests {
    use std::{any::Any, sync::Mutex};

    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;
    use crate::runtime::BoxFuture;

    /// A runtime that runs nothing.
    #[derive(Debug)]
    struct Outside;

    impl Runtime for Outside {
        fn enter(&self, run: &mut dyn FnMut()) {
            run();
        }

        fn spawn(&self, task: BoxFuture) -> Box<dyn Any + Send + Sync> {
            Box::new(Mutex::new(task))
        }
    }

    fn mirror() -> Mirror {
        Mirror::new(std::iter::empty(), Arc::default(), Arc::default())
    }

    #[test]
    fn no_server_builder_call_undoes_another() {
        let calls: &[BuilderCall<ServerBuilder>] = &[
            ("service", |builder| builder.service(serve_reflection(mirror()))),
            ("config", |builder| builder.config(Config { window: 7, ..Config::default() })),
            ("key", |builder| builder.key(Key::new(&[7; 32]).unwrap())),
            ("allow", |builder| builder.allow(Allow::default().uid(7))),
            ("tls", |builder| builder.tls(Tls::default().server_name("a"))),
            ("admit", |builder| builder.admit(|_, _| Ok(()))),
            ("take_over", |builder| builder.take_over(Duration::from_secs(7))),
            ("without_reflection", ServerBuilder::without_reflection),
            ("runtime", |builder| builder.runtime(Outside)),
        ];
        no_call_undoes_another(ServerBuilder::default, calls, |mut builder| {
            let config = builder.configured();
            let parts = (builder.services.len(), builder.admit.is_some(), builder.runtime.is_some());
            (config, parts, builder.is_opaque)
        });
    }

    /// Those of the configuration too: both were asked for.
    #[test]
    fn keys_add_up() {
        let (one, two) = (Key::new(&[1; 32]).unwrap(), Key::new(&[2; 32]).unwrap());
        let mut config = Config::default();
        config.engine.listen.keys.push(one.clone());
        let mut builder = Server::builder().key(two.clone()).config(config);
        assert_eq!(builder.configured().engine.listen.keys, [one, two]);
    }
}
