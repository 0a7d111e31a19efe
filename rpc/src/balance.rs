//! Several servers as one channel: each call goes to the one that has least to do, and around those that are gone.
//!
//! ```text
//!  Resolver ─ urls ─► members, each a Client ─► pick ─► the call
//!      ▲                 └─ one that cannot be reached yet is tried again by a thread
//!      └──── asked again every `refresh`
//! ```
//! A call is made once. One that failed because its server went is made elsewhere by [`Retry`](crate::Retry) around
//! this.

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
    net::ToSocketAddrs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::{
    StartError,
    transport::{Instant, Loan, LoanError, PortError, UserBytes, thread},
};

use crate::{
    channel::{Beside, CallOptions, Channel, Ticket},
    client::{self, Client, WorkerCall},
    codec::Compose,
    config::Config,
    error::ConnectError,
    method::Method,
    response::Response,
    status::{Code, Status},
    workers::WorkerSet,
};

/// Says which servers there are.
pub trait Resolver: Send + Sync + 'static {
    /// Their URLs now. May block: it is asked by a thread of its own, but for the first time.
    ///
    /// # Errors
    /// Why nothing is known; those that were known are kept.
    fn resolve(&self) -> Result<Vec<String>, String>;
}

/// A fixed list of URLs.
impl Resolver for Vec<String> {
    fn resolve(&self) -> Result<Vec<String>, String> {
        Ok(self.clone())
    }
}

/// Every address of a name, by the system's resolver.
#[derive(Clone, Debug)]
pub struct Dns {
    /// The name.
    pub host: String,
    /// The port of all servers.
    pub port: u16,
}

impl Resolver for Dns {
    fn resolve(&self) -> Result<Vec<String>, String> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let found = found.map_err(|error| format!("{}: {error}", self.host))?;
        Ok(found.map(|address| format!("gimmal://{address}")).collect())
    }
}

/// Which of the servers that are there gets the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pick {
    /// The server with the fewest of our calls in flight; in turn among equals.
    #[default]
    LeastLoaded,
    /// One after the other.
    RoundRobin,
}

/// One connection to one server.
struct Member {
    url: String,
    /// Its place among the connections to its server, which it keeps.
    number: usize,
    client: Client,
    under_way: AtomicUsize,
}

struct Shared {
    members: RwLock<Arc<Vec<Arc<Member>>>>,
    next: AtomicUsize,
    pick: Pick,
    resolver: Box<dyn Resolver>,
    workers: Arc<WorkerSet>,
    config: Config,
    refresh: Duration,
}

/// A channel over several servers; see the module. Cheap to clone; any thread, any runtime.
#[derive(Clone)]
pub struct Balanced {
    shared: Arc<Shared>,
}

impl fmt::Debug for Balanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.shared.members();
        f.debug_list().entries(members.iter().map(|member| &member.url)).finish()
    }
}

/// Configures a [`Balanced`].
#[derive(Clone, Debug)]
pub struct BalancedBuilder {
    config: Config,
    pick: Pick,
    refresh: Duration,
}

impl BalancedBuilder {
    /// The configuration of every client; `engine.workers` is also the number of connections to each server.
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

    /// How often the resolver is asked, and servers that could not be reached are tried; 10 ms to 1 h, default 1 s.
    #[must_use]
    pub fn refresh(mut self, refresh: Duration) -> Self {
        self.refresh = refresh.clamp(Duration::from_millis(10), Duration::from_secs(3600));
        self
    }

    /// Connects to what `resolver` knows; one server that can be reached is enough, the others are tried again.
    ///
    /// # Errors
    /// The last server's, if none can be reached; [`ConnectError::NoServer`] if the resolver knows none; [`ConnectError::Start`] if
    /// there is no thread for a worker or to ask the resolver with.
    pub fn connect(self, resolver: impl Resolver) -> Result<Balanced, ConnectError> {
        let Self { config, pick, refresh } = self;
        let workers = Arc::new(client::spawn(&crate::provider::any(), config.clone())?);
        let shared = Shared {
            members: RwLock::default(),
            next: AtomicUsize::new(0),
            pick,
            resolver: Box::new(resolver),
            workers,
            config,
            refresh,
        };
        shared.update()?;
        let shared = Arc::new(shared);
        let theirs = Arc::downgrade(&shared);
        let thread = thread::spawn("gimmal-resolve", move || keep(&theirs));
        thread.map_err(|error| StartError::Thread(format!("to ask the resolver with: {error}")))?;
        Ok(Balanced { shared })
    }
}

/// Asks the resolver again and again, as long as anybody wants to know.
fn keep(shared: &Weak<Shared>) {
    loop {
        let Some(refresh) = shared.upgrade().map(|shared| shared.refresh) else { return };
        let until = Instant::now() + refresh;
        while Instant::now() < until {
            // Looks often whether anybody is left, so that a process ends soon.
            std::thread::sleep(refresh.min(Duration::from_millis(100)));
            if shared.strong_count() == 0 {
                return;
            }
        }
        let Some(shared) = shared.upgrade() else { return };
        match catch_unwind(AssertUnwindSafe(|| shared.update())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "no server could be reached"),
            Err(_) => {
                tracing::error!("the resolver panicked: the servers stay as they are until it is asked again")
            }
        }
    }
}

impl Shared {
    fn members(&self) -> Arc<Vec<Arc<Member>>> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over what the resolver says: new servers are connected to, and those it does not know any more get no more
    /// calls.
    fn update(&self) -> Result<(), ConnectError> {
        let known = self.members();
        let urls = match self.resolver.resolve() {
            Ok(urls) => urls,
            Err(why) if known.is_empty() => return Err(ConnectError::NoServer { why }),
            Err(why) => {
                tracing::warn!(why, "the resolver knows nothing; the servers stay as they are");
                return Ok(());
            }
        };
        let (mut members, mut seen, mut error) = (Vec::new(), HashSet::new(), None);
        for url in urls.iter().filter(|url| seen.insert(url.as_str())) {
            let before = members.len();
            members.extend(known.iter().filter(|member| member.url == *url).cloned());
            let taken: Vec<usize> = members[before..].iter().map(|member| member.number).collect();
            for number in (0..self.config.engine.workers).filter(|number| !taken.contains(number)) {
                match Client::on_url(&self.workers, &self.config, url) {
                    Ok(client) => {
                        let (url, under_way) = (url.clone(), AtomicUsize::new(0));
                        members.push(Arc::new(Member { url, number, client, under_way }));
                    }
                    Err(why) => {
                        tracing::debug!(url, error = %why, "not connected");
                        error = Some(why);
                        break;
                    }
                }
            }
        }
        if members.is_empty() {
            let why = || ConnectError::NoServer { why: "the resolver gave no address".to_owned() };
            return Err(error.unwrap_or_else(why));
        }
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(members);
        Ok(())
    }

    /// Chooses the server for the next call; one that is not ready only if none is.
    fn pick(&self) -> Option<Arc<Member>> {
        let members = self.members();
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
    /// What it is made of.
    #[must_use]
    pub fn builder() -> BalancedBuilder {
        let refresh = Duration::from_secs(1);
        BalancedBuilder { config: Config::default(), pick: Pick::default(), refresh }
    }

    /// URLs of the servers that take calls now; one for each connection.
    #[must_use]
    pub fn ready(&self) -> Vec<String> {
        let members = self.shared.members();
        let ready = members.iter().filter(|member| member.client.is_ready());
        ready.map(|member| member.url.clone()).collect()
    }

    /// One connection for all calls that belong to `key`: they leave in the order in which they are made. The same key
    /// gives the same server as long as that is there. Also for loans, which belong to a connection.
    #[must_use]
    pub fn ordered(&self, key: impl Hash) -> Option<Client> {
        let members = self.shared.members();
        // The highest of the hashes of key and member: who goes or comes moves only its own keys.
        let rank = |member: &Member| {
            BuildHasherDefault::<DefaultHasher>::default().hash_one((&key, &member.url, member.number))
        };
        let ranked = members.iter().max_by_key(|member| (member.client.is_ready(), rank(member)));
        ranked.map(|member| member.client.clone())
    }

    fn carry(&self, start: impl FnOnce(&Client) -> WorkerCall) -> Carried {
        let member = self.shared.pick();
        if let Some(member) = &member {
            member.under_way.fetch_add(1, Ordering::Relaxed);
        }
        let ticket = member.as_ref().map(|member| start(&member.client));
        Carried { ticket, member }
    }
}

impl Channel for Balanced {
    type Ticket = Carried;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Carried {
        self.carry(|client| client.start(method, options, beside, arguments))
    }

    fn default_timeout(&self) -> Option<Duration> {
        let deadline = self.shared.config.deadline;
        (!deadline.is_zero()).then_some(deadline)
    }

    fn loan(&self, _: usize) -> Result<Loan, LoanError> {
        Err(belongs_to_one())
    }

    fn lend(&self, _: &UserBytes) -> Result<Loan, LoanError> {
        Err(belongs_to_one())
    }
}

fn belongs_to_one() -> LoanError {
    let why = "a loan belongs to one connection: take it, and make its call, on `Balanced::ordered(key)`";
    let provider = "bulk on a balanced channel";
    LoanError::Port(PortError::Unavailable { provider, why: why.to_owned() })
}

/// A call at one of the servers.
#[derive(Debug)]
pub struct Carried {
    ticket: Option<WorkerCall>,
    member: Option<Arc<Member>>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Carried {
    fn set_down(&mut self) {
        if let Some(member) = self.member.take() {
            member.under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Ticket for Carried {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Some(ticket) = &mut self.ticket else { return Poll::Ready(nobody()) };
        let polled = ticket.poll(context);
        if polled.is_ready() {
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
}

impl Drop for Carried {
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
