//! Several servers as one channel: each call goes to the one that has least to do, and around those that are gone.
//!
//! ```text
//!  Resolver ─ urls ─► members, each a client ─► pick ─► the call
//!      ▲                 └─ one that cannot be reached yet is tried again: by a thread, or by a task of the clients' own
//!      └──── asked again every `refresh`
//! ```
//! A call is made once. One that failed because its server went is made elsewhere by [`Retry`](crate::Retry) around
//! this.

mod ask;
mod resolver;

use std::{
    any::Any,
    collections::HashSet,
    fmt,
    future::Future,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::{
    StartError,
    transport::{Instant, Loan, LoanError, PortError, UserBytes, thread},
};

#[doc(hidden)]
pub use ask::ask;
pub use resolver::{Dns, Resolver};

use crate::{
    channel::{Beside, CallOptions, Channel, Ticket},
    client::{self, Client},
    codec::Compose,
    config::Config,
    error::ConnectError,
    method::Method,
    response::Response,
    status::{Code, Status},
    workers::WorkerSet,
};

/// Which of the servers that take calls gets the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pick {
    /// The connection with the fewest of this channel's calls in flight; in turn among equals. The default.
    #[default]
    LeastLoaded,
    /// One connection after the other, however much each has to do.
    RoundRobin,
}

/// A client of one server, over several of which a [`Balanced`] chooses.
pub trait Member: Channel {
    /// Returns whether it has a connection that takes calls, as far as this side knows. Asked for every call, so it must not block.
    fn is_ready(&self) -> bool;
}

impl Member for Client {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }
}

/// A task that a [`Source`] runs on the thread of its clients, which are not `Send`.
pub type LocalTask = Pin<Box<dyn Future<Output = ()>>>;

/// Finds and makes the clients of a [`Balanced`] on an event loop, for [`BalancedBuilder::connect_on`]. Users of tokio need none:
/// `gimmal::tokio::LocalClient::balanced` has one.
pub trait Source: 'static {
    /// The kind of clients.
    type Client: Member + 'static;

    /// Returns the URLs of the servers, or why none is known. A resolver that blocks is asked away from the event loop's thread.
    /// Dropped before it is ready when the connecting is given up.
    fn resolve(&self) -> impl Future<Output = Result<Vec<String>, String>>;

    /// Connects to the server at `url`, with a client that connects again by itself. Dropping the future must close what there is of
    /// a connection.
    fn connect(&self, config: &Config, url: &str)
    -> impl Future<Output = Result<Self::Client, ConnectError>>;

    /// Waits, on the event loop.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// Runs a task on the event loop until it ends or the returned guard is dropped.
    fn spawn(&self, task: LocalTask) -> Box<dyn Any + Send + Sync>;
}

/// One connection to one server.
struct Place<C> {
    url: String,
    /// Its number among the connections to its server, which it keeps.
    number: usize,
    client: C,
    under_way: AtomicUsize,
}

type Places<C> = Vec<Arc<Place<C>>>;

struct Shared<C> {
    places: RwLock<Arc<Places<C>>>,
    next: AtomicUsize,
    pick: Pick,
    default_timeout: Option<Duration>,
    /// The task that keeps up with the resolver, where it is one.
    keeper: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A channel over several servers: each call goes to one of those that take calls, as [`Pick`] says. Cheap to clone.
///
/// A [`Resolver`] names the servers. It is asked again and again ([`BalancedBuilder::refresh`]): new servers get connections, and
/// those that it does not name any more get no more calls. A server whose connection is gone gets calls only if no other is ready.
/// A call is made once: put [`Retry`](crate::Retry) around to make a failed one at another server.
///
/// Loans belong to one connection, so [`Channel::loan`] and [`Channel::lend`] fail here: use them on [`Balanced::ordered`]. Over
/// [`Client`]s it is for any thread and any runtime. Otherwise it stays on its clients' thread.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// # use gimmal::Cx;
/// # #[gimmal::service(crate = gimmal_rpc)]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// use gimmal::balance::Balanced;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = |url| gimmal::Server::builder().service(serve_hello(Greeter)).listen(url);
/// # let servers = (server("mem://doc-one")?, server("mem://doc-two")?);
/// let urls = vec!["mem://doc-one".to_owned(), "mem://doc-two".to_owned()];
/// let client = HelloClient::new(Balanced::builder().connect(urls)?);
/// assert_eq!(client.hello("Ada".into()).wait()?, "Hello, Ada!");
/// # Ok(())
/// # }
/// ```
pub struct Balanced<C = Client> {
    shared: Arc<Shared<C>>,
}

impl<C> Clone for Balanced<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C: Member> fmt::Debug for Balanced<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.shared.places();
        f.debug_list().entries(places.iter().map(|place| &place.url)).finish()
    }
}

/// Configures a [`Balanced`]; made by [`Balanced::builder`].
#[derive(Clone, Debug)]
pub struct BalancedBuilder {
    config: Config,
    pick: Pick,
    refresh: Duration,
}

impl BalancedBuilder {
    /// Sets the configuration of every client. `engine.workers` is also the number of connections to each server; over clients of an
    /// event loop it is one.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets how the server for the next call is chosen.
    #[must_use]
    pub const fn pick(mut self, pick: Pick) -> Self {
        self.pick = pick;
        self
    }

    /// Sets how often the resolver is asked, and servers that could not be reached are tried: 10 ms to 1 h, default 1 s. A value
    /// beyond these becomes the nearer one.
    #[must_use]
    pub fn refresh(mut self, refresh: Duration) -> Self {
        self.refresh = refresh.clamp(Duration::from_millis(10), Duration::from_secs(3600));
        self
    }

    /// Connects to what `resolver` knows; one server that can be reached is enough, the others are tried again by a thread.
    ///
    /// Blocks for the resolver, and for each server in turn up to its connect and handshake time-outs.
    ///
    /// # Errors
    /// The last server's, if none can be reached; [`ConnectError::NoServer`] if the resolver knows none; [`ConnectError::Start`] if
    /// there is no thread for a worker or to ask the resolver with.
    pub fn connect(self, resolver: impl Resolver) -> Result<Balanced, ConnectError> {
        let Self { config, refresh, .. } = self.clone();
        let workers = Arc::new(client::spawn(&crate::provider::any(), config.clone())?);
        let balanced = self.empty();
        let ours = Arc::downgrade(&workers);
        let keeper =
            Keeper { shared: Arc::downgrade(&balanced.shared), resolver, workers: ours, config, refresh };
        keeper.update(&balanced.shared)?;
        let thread = thread::spawn("gimmal-resolve", move || keeper.keep());
        thread.map_err(|error| StartError::Thread(format!("to ask the resolver with: {error}")))?;
        Ok(balanced)
    }

    /// Connects to what `source` knows, with one client for each server, on the calling thread's event loop. One server that can be
    /// reached is enough; a task tries the others again.
    ///
    /// Cancel safe: dropping the future closes what was connected.
    ///
    /// # Errors
    /// The last server's, if none can be reached; [`ConnectError::NoServer`] if the resolver knows none.
    pub async fn connect_on<S: Source>(self, source: S) -> Result<Balanced<S::Client>, ConnectError> {
        let Self { config, refresh, .. } = self.clone();
        let balanced = self.empty();
        update(&balanced.shared, &source, &config).await?;
        let (source, theirs) = (Arc::new(source), Arc::downgrade(&balanced.shared));
        let asked = Arc::clone(&source);
        let keeper = source.spawn(Box::pin(async move {
            loop {
                asked.pause(refresh).await;
                let Some(shared) = theirs.upgrade() else { return };
                if let Err(error) = update(&shared, &*asked, &config).await {
                    tracing::debug!(%error, "no server could be reached");
                }
            }
        }));
        // Nobody else sets it.
        let _ = balanced.shared.keeper.set(keeper);
        Ok(balanced)
    }

    fn empty<C>(self) -> Balanced<C> {
        let default_timeout = (!self.config.deadline.is_zero()).then_some(self.config.deadline);
        let (places, next, keeper) = (RwLock::default(), AtomicUsize::new(0), OnceLock::new());
        Balanced { shared: Arc::new(Shared { places, next, pick: self.pick, default_timeout, keeper }) }
    }
}

/// What the thread has that keeps up with the resolver.
struct Keeper<R> {
    shared: Weak<Shared<Client>>,
    resolver: R,
    /// Each client has them too.
    workers: Weak<WorkerSet>,
    config: Config,
    refresh: Duration,
}

impl<R: Resolver> Keeper<R> {
    /// Asks the resolver again and again, as long as anybody wants to know.
    fn keep(self) {
        loop {
            let until = Instant::now() + self.refresh;
            while Instant::now() < until {
                // Looks often whether anybody is left, so that a process ends soon.
                std::thread::sleep(self.refresh.min(Duration::from_millis(100)));
                if self.shared.strong_count() == 0 {
                    return;
                }
            }
            let Some(shared) = self.shared.upgrade() else { return };
            match catch_unwind(AssertUnwindSafe(|| self.update(&shared))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "no server could be reached"),
                Err(_) => {
                    tracing::error!(
                        "the resolver panicked: the servers stay as they are until it is asked again"
                    )
                }
            }
        }
    }

    fn update(&self, shared: &Shared<Client>) -> Result<(), ConnectError> {
        let Some(mut change) =
            shared.change(self.resolver.resolve(), &self.config, self.config.engine.workers)?
        else {
            return Ok(());
        };
        let Some(workers) = self.workers.upgrade() else { return Ok(()) };
        for (url, number) in change.wanted() {
            if !change.missed.contains(&url) {
                change.reached(url.clone(), number, Client::on_url(&workers, &self.config, &url));
            }
        }
        shared.take_over(change)
    }
}

async fn update<S: Source>(
    shared: &Shared<S::Client>,
    source: &S,
    config: &Config,
) -> Result<(), ConnectError> {
    let Some(mut change) = shared.change(source.resolve().await, config, 1)? else { return Ok(()) };
    for (url, number) in change.wanted() {
        change.reached(url.clone(), number, source.connect(config, &url).await);
    }
    shared.take_over(change)
}

/// The next members: those that stay, and places for new ones.
struct Change<C> {
    places: Places<C>,
    wanted: Vec<(String, usize)>,
    /// Servers that could not be reached.
    missed: HashSet<String>,
    error: Option<ConnectError>,
}

impl<C> Change<C> {
    /// Which connections are to be made: the server's URL, and the number among those to this server.
    fn wanted(&mut self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.wanted)
    }

    fn reached(&mut self, url: String, number: usize, client: Result<C, ConnectError>) {
        match client {
            Ok(client) => {
                self.places.push(Arc::new(Place { url, number, client, under_way: AtomicUsize::new(0) }));
            }
            Err(why) => {
                tracing::debug!(url, error = %why, "not connected");
                self.error = Some(why);
                self.missed.insert(url);
            }
        }
    }
}

impl<C: Member> Shared<C> {
    fn places(&self) -> Arc<Places<C>> {
        Arc::clone(&self.places.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the resolver's answer means: new servers are connected to, `each` times, and those it does not know any more get no
    /// more calls. `None`: nothing changes.
    fn change(
        &self,
        resolved: Result<Vec<String>, String>,
        config: &Config,
        each: usize,
    ) -> Result<Option<Change<C>>, ConnectError> {
        let known = self.places();
        let urls = match resolved {
            Ok(urls) => urls,
            Err(why) if known.is_empty() => return Err(ConnectError::NoServer { why }),
            Err(why) => {
                tracing::warn!(why, "the resolver knows nothing; the servers stay as they are");
                return Ok(None);
            }
        };
        let (places, wanted, missed) = (Vec::new(), Vec::new(), HashSet::new());
        let (mut change, mut seen) = (Change { places, wanted, missed, error: None }, HashSet::new());
        for url in urls.iter().filter(|url| seen.insert(url.as_str())) {
            let before = change.places.len();
            // A connection that has ended and does not come back by itself is replaced.
            let stays = |place: &Place<C>| config.reconnect.is_some() || place.client.is_ready();
            change.places.extend(known.iter().filter(|place| place.url == *url && stays(place)).cloned());
            let is_taken =
                |number: &usize| change.places[before..].iter().any(|place| place.number == *number);
            let free = (0..each).filter(|number| !is_taken(number)).map(|number| (url.clone(), number));
            change.wanted.extend(free);
        }
        Ok(Some(change))
    }

    fn take_over(&self, change: Change<C>) -> Result<(), ConnectError> {
        if change.places.is_empty() {
            let why = || ConnectError::NoServer { why: "the resolver gave no address".to_owned() };
            return Err(change.error.unwrap_or_else(why));
        }
        *self.places.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(change.places);
        Ok(())
    }

    /// Chooses the server for the next call; one that is not ready only if none is.
    fn pick(&self) -> Option<Arc<Place<C>>> {
        let members = self.places();
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = || (0..members.len()).map(|at| &members[(at.wrapping_add(turn)) % members.len()]);
        let ready = || in_turn().filter(|member| member.client.is_ready());
        let picked = match self.pick {
            Pick::RoundRobin => ready().next(),
            Pick::LeastLoaded => ready().min_by_key(|member| member.under_way.load(Ordering::Relaxed)),
        };
        picked.or_else(|| in_turn().next()).cloned()
    }
}

impl Balanced {
    /// Returns a builder with the default configuration.
    #[must_use]
    pub fn builder() -> BalancedBuilder {
        let refresh = Duration::from_secs(1);
        BalancedBuilder { config: Config::default(), pick: Pick::default(), refresh }
    }
}

impl<C: Member> Balanced<C> {
    /// Returns the URLs of the servers that take calls now, one for each connection.
    #[must_use]
    pub fn ready(&self) -> Vec<String> {
        let members = self.shared.places();
        let ready = members.iter().filter(|member| member.client.is_ready());
        ready.map(|member| member.url.clone()).collect()
    }

    /// Returns one connection for all calls that belong to `key`: they leave in the order in which they are made. The same key
    /// gives the same connection as long as that is ready. It is also the way to loans, which belong to a connection. `None`: no
    /// server is known.
    #[must_use]
    pub fn ordered(&self, key: impl Hash) -> Option<C> {
        let members = self.shared.places();
        // The highest of the hashes of key and member: who goes or comes moves only its own keys.
        let rank = |member: &Place<C>| {
            BuildHasherDefault::<DefaultHasher>::default().hash_one((&key, &member.url, member.number))
        };
        let ranked = members.iter().max_by_key(|member| (member.client.is_ready(), rank(member)));
        ranked.map(|member| member.client.clone())
    }
}

impl<C: Member> Channel for Balanced<C> {
    type Ticket = Carried<C>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Carried<C> {
        let place = self.shared.pick();
        if let Some(place) = &place {
            place.under_way.fetch_add(1, Ordering::Relaxed);
        }
        let ticket = place.as_ref().map(|place| place.client.start(method, options, beside, arguments));
        Carried { ticket, place }
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.shared.default_timeout
    }

    /// Where there are several clients, each idles for a share.
    fn drive(&self, idle: Duration) -> bool {
        let places = self.shared.places();
        let share = if places.len() > 1 { idle.min(SHARE) } else { idle };
        let mut drives = false;
        for place in places.iter() {
            drives |= place.client.drive(share);
        }
        drives
    }

    fn loan(&self, _: usize) -> Result<Loan, LoanError> {
        Err(belongs_to_one())
    }

    fn lend(&self, _: &UserBytes) -> Result<Loan, LoanError> {
        Err(belongs_to_one())
    }
}

/// How long one of several clients idles while others wait.
const SHARE: Duration = Duration::from_micros(100);

fn belongs_to_one() -> LoanError {
    let why = "a loan belongs to one connection: take it, and make its call, on `Balanced::ordered(key)`";
    let provider = "bulk on a balanced channel";
    LoanError::Port(PortError::Unavailable { provider, why: why.to_owned() })
}

/// A call at one of the servers.
pub struct Carried<C: Channel = Client> {
    ticket: Option<C::Ticket>,
    place: Option<Arc<Place<C>>>,
}

// Nothing in it is pinned.
impl<C: Channel> Unpin for Carried<C> {}

impl<C: Channel> fmt::Debug for Carried<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carried({:?})", self.place.as_ref().map(|place| &place.url))
    }
}

impl<C: Channel> Carried<C> {
    fn set_down(&mut self) {
        if let Some(place) = self.place.take() {
            place.under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<C: Channel> Ticket for Carried<C> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Some(ticket) = &mut self.ticket else { return Poll::Ready(nobody()) };
        let polled = ticket.poll(context);
        if polled.is_ready() {
            self.set_down();
        }
        polled
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Some(ticket) = &mut self.ticket else { return Poll::Ready(nobody()) };
        let polled = ticket.poll_first(context);
        if matches!(&polled, Poll::Ready(response) if !response.has_begun()) {
            self.set_down();
        }
        polled
    }

    fn wait(&mut self) -> Response {
        let Some(ticket) = &mut self.ticket else { return nobody() };
        let response = ticket.wait();
        self.set_down();
        response
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if let Some(ticket) = &mut self.ticket {
            ticket.recycle(buffer);
        }
    }

    fn detach(&mut self) {
        self.ticket.iter_mut().for_each(Ticket::detach);
    }
}

impl<C: Channel> Drop for Carried<C> {
    fn drop(&mut self) {
        self.set_down();
    }
}

fn nobody() -> Response {
    Status::refused(Code::Unavailable, "no server is known").into()
}

#[cfg(test)]
mod tests {
    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;

    #[test]
    fn no_balanced_builder_call_undoes_another() {
        let calls: &[BuilderCall<BalancedBuilder>] = &[
            ("config", |builder| builder.config(Config { window: 7, ..Config::default() })),
            ("pick", |builder| builder.pick(Pick::RoundRobin)),
            ("refresh", |builder| builder.refresh(Duration::from_secs(7))),
        ];
        no_call_undoes_another(Balanced::builder, calls, |builder| format!("{builder:?}"));
    }
}
