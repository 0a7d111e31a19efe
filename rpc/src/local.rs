//! The client whose calling thread is the worker: the lowest latency, no second thread, no copy of the request.

mod conn;
mod dial;
mod driver;

use std::{
    fmt, io,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::{Loan, LoanError, Negotiated, UserBytes};

use self::conn::Alone;
#[cfg(test)]
pub(crate) use self::conn::Wanted;
pub(crate) use self::conn::{LocalConn, Turns};
pub use self::{
    conn::LocalCall,
    dial::{Dialling, Gone},
    driver::{Driver, Running, RunningUntil},
};
use crate::{
    channel::{Beside, CallOptions, Channel},
    codec::Compose,
    config::{Config, Reconnect},
    error::ConnectError,
    memory::{Accessor, Handed},
    method::Method,
    node::Fresh,
    pipeline::Pipeline,
    reconnect::arguments_max,
    stats::Stats,
};

/// A client whose worker is the calling thread. It is not `Send`; clones share one connection. A request is encoded where it leaves
/// from.
///
/// Its calls move only while one of them is [waited](crate::Call::wait) for or polled, or by [`turn`](LocalClient::turn). A typed
/// response is decoded where it landed. A call that starts while no other is in flight leaves at once. Otherwise it leaves with
/// the next turn, so that a window of calls costs one doorbell. As a future, a call runs one turn each time it is
/// polled, and asks to be polled again.
///
/// With a [`driver`](LocalClient::driver) the calls move by a future of a current-thread runtime, and wake the tasks that await
/// them. Then a response is copied once, out of the ring.
///
/// ```
/// # use gimmal_rpc::{Cx, Server};
/// use gimmal_rpc::LocalClient;
///
/// # #[gimmal_rpc::service(crate = gimmal_rpc)]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = Server::builder().service(serve_hello(Greeter)).listen("mem://local-client")?;
/// let client = HelloClient::new(LocalClient::connect("mem://local-client")?);
/// assert_eq!(client.hello("world".into()).wait()?, "Hello, world!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LocalClient {
    local: Rc<LocalConn>,
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalClient({:?})", self.local)
    }
}

impl LocalClient {
    /// Connects to the server of `url` with the default configuration. Blocks the thread, at most for the connect and handshake
    /// time-outs of each way: 7 s by default. The client does not reconnect.
    ///
    /// # Errors
    /// A variant of [`ConnectError`] for each cause: a malformed URL, no device, no server, a refusal.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::with(Config::default(), url)
    }

    pub(crate) fn with(mut config: Config, url: &str) -> Result<Self, ConnectError> {
        // Its thread turns only while a call is waited for, or while its driver is polled: silence is no sign of death.
        config.engine.port.attended = false;
        let local = Rc::new(LocalConn::open(config, url)?);
        local.connect()?;
        Ok(Self { local })
    }

    /// Without a connection, for [`LocalClient::dial`].
    pub(crate) fn open(config: Config, url: &str) -> Result<Self, ConnectError> {
        Ok(Self { local: Rc::new(LocalConn::open(config, url)?) })
    }

    /// Returns what the connection runs with, or `None` before there is one.
    #[must_use]
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.local.negotiated()
    }

    /// Returns how many bytes a request, or an item of a stream, may have on the connection; 0 before there is one.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.negotiated().map_or(0, arguments_max)
    }

    /// Connects a client that [`ClientBuilder::open_local`](crate::ClientBuilder::open_local) made, while its driver runs. Names are
    /// looked up and the server is dialled on another thread. With `again`, it dials until a server answers, with the waits of
    /// [`Reconnect`].
    ///
    /// Dropping the future ends the attempt within its time-outs. The client then stays without a connection.
    ///
    /// # Errors
    /// The future ends with what kept the connection from being made; with `again` only if there is no thread to dial by.
    pub fn dial(&self, again: Option<Reconnect>) -> Dialling {
        Dialling::of(&self.local, again)
    }

    /// Returns how long a call may take that is given no time-out, or `None` if there is no limit.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.local.deadline
    }

    /// Returns how the configuration says to connect again, for callers of [`dial`](LocalClient::dial).
    #[must_use]
    pub fn reconnect(&self) -> Option<Reconnect> {
        self.local.reconnect
    }

    /// Returns a future that ends when the connection takes no more calls: it ended, or the server goes away. Calls in flight may
    /// still end well. Another such future takes the place of the first, which then ends too.
    ///
    /// Cancel safe.
    pub fn gone(&self) -> Gone {
        Gone::of(&self.local)
    }

    /// Runs turns for a task that shares the thread with the client's driver. Ready when one found something, so that calls may
    /// have ended. Otherwise the task is polled again soon, or the driver is woken to sleep for both.
    pub fn poll_turns(&self, context: &Context<'_>) -> Poll<()> {
        self.local.poll_turns(context)
    }

    /// Returns a pipeline of calls of `method`, a raw one, each with `options`. A generated client has a method for this
    /// beside each raw one.
    #[must_use]
    pub fn pipeline(&self, method: &'static Method, options: &CallOptions) -> Pipeline {
        Pipeline::new(&self.local, method, options)
    }

    /// Returns the driver, with which calls move by a future of the calling thread's runtime. A client has one for its life: when
    /// the driver is dropped, the connection ends, and every call with it.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the client has a driver; otherwise the system's, when there is no descriptor
    /// to wait for the connection with.
    pub fn driver(&self) -> io::Result<Driver> {
        Driver::of(&self.local)
    }

    /// Runs one bounded turn of the worker, and returns how many events and commands it handled. Does not block.
    pub fn turn(&self) -> usize {
        self.local.turns().turn()
    }

    /// Runs a turn. When that found nothing, idles by the configured strategy: it blocks until something comes, for at most
    /// `limit`, or makes a few turns more where it is to spin. Returns how many events and commands the turns handled.
    pub fn idle(&self, limit: Duration) -> usize {
        self.local.turns().idle(limit)
    }

    /// Returns what was counted for this client so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.local.stats()
    }

    /// Says goodbye and waits for the server's answer. Blocks the thread for `timeout` at most, and runs turns meanwhile. Returns
    /// whether the answer came. Calls of clones end with the connection.
    #[must_use]
    pub fn close(self, timeout: Duration) -> bool {
        let conn = self.local.conn();
        let mut turns = self.local.turns();
        turns.with(|_, io| io.close(conn));
        let until = turns.now().plus(timeout);
        while turns.now() < until {
            turns.idle(Duration::from_millis(1));
            if turns.with(|_, io| io.negotiated(conn).is_none()) {
                return true;
            }
        }
        false
    }
}

impl Accessor for LocalClient {
    fn hand_access(&self, handed: Handed) {
        self.local.turns().with(|node, io| node.access(io, self.local.conn(), handed));
    }
}

impl Channel for LocalClient {
    type Ticket = LocalCall;

    #[inline]
    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> LocalCall {
        // Most calls have nothing beside their arguments: theirs is a way of its own, on which nothing else is looked at.
        if beside.is_nothing() && options.metadata.is_none() {
            // It owns nothing: dropping one that might would be a call.
            std::mem::forget(beside);
            self.local.begin(method, options, (&mut None, None), Fresh::<_, Alone>::on(arguments))
        } else {
            self.local.start_beside(method, options, beside, arguments)
        }
    }

    /// With a driver only for a caller that blocks: otherwise the driver moves the calls, and wakes.
    fn drive(&self, idle: Duration) -> bool {
        if !idle.is_zero() {
            self.local.turns().idle(idle);
        } else if self.local.is_driven() {
            return false;
        } else {
            self.local.turns().turn();
        }
        true
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.local.default_timeout()
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        self.local.loan(bytes)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.local.lend(bytes)
    }
}
