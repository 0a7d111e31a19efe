//! What a client is made of.

use std::{sync::Arc, time::Duration};

use gimmal_engine::{
    Idle, Placement,
    transport::{Key, Tls},
};

use super::{Client, Connecting, connect::shared, spawn};
use crate::{
    config::{Config, Reconnect},
    error::ConnectError,
    local::LocalClient,
    provider::any_for,
    route::Route,
    workers::WorkerSet,
};

/// Configures a client; made by [`Client::builder`]. A setting made by its own method wins over [`config`](ClientBuilder::config),
/// whichever is called first. What is outside its limits is an error of the method that connects.
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
/// use gimmal::Client;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-builder")?;
/// let client = Client::builder().deadline(Duration::from_secs(2)).window(256).connect("mem://doc-builder")?;
/// assert_eq!(HelloClient::new(client).hello("Ada".into()).wait()?, "Hello, Ada!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    config: Config,
    deadline: Option<Duration>,
    window: Option<usize>,
    idle: Option<Idle>,
    reconnect: Option<Option<Reconnect>>,
    key: Option<Key>,
    tls: Option<Tls>,
    heartbeat_ms: Option<u32>,
    placement: Option<Placement>,
    is_shared: bool,
}

impl Client {
    /// Returns a builder with the default configuration.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

impl ClientBuilder {
    /// Sets the whole configuration, except what the other methods set.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the deadline of calls that are given none: 1 us or more, zero for no limit. Default 10 s. It is not for calls with streams.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how many calls may be in flight at once on the connection, 1 to 16,384; more wait in the client. Default 64.
    #[must_use]
    pub const fn window(mut self, window: usize) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets what the worker does when there is nothing to do. Default [`Idle::Adaptive`].
    #[must_use]
    pub const fn idle(mut self, idle: Idle) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Sets how the client reconnects when its connection ended; `None`: it does not. By default it does, see [`Reconnect`].
    #[must_use]
    pub const fn reconnect(mut self, reconnect: Option<Reconnect>) -> Self {
        self.reconnect = Some(reconnect);
        self
    }

    /// Sets the shared key that this client proves, and has the server prove.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the certificates that this client shows and believes over `tcp+tls://`.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets within how many ms a peer that went silent is reported, and the connection given up: 10 to 3,600,000, 0 for never.
    /// Default 5000.
    #[must_use]
    pub const fn heartbeat_ms(mut self, bound_ms: u32) -> Self {
        self.heartbeat_ms = Some(bound_ms);
        self
    }

    /// Sets which core the worker runs on. Default [`Placement::Free`]: not pinned.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = Some(placement);
        self
    }

    /// Shares workers with all clients of this process that say so and whose configuration is the same: many connections that are used
    /// now and then need no thread each. Without this, a client has workers of its own.
    #[must_use]
    pub const fn share_workers(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// The configuration, with each setting that was made by its own method.
    fn configured(self) -> Config {
        let Self {
            mut config,
            deadline,
            window,
            idle,
            reconnect,
            key,
            tls,
            heartbeat_ms,
            placement,
            is_shared: _,
        } = self;
        let engine = &mut config.engine;
        engine.connect.key = key.or_else(|| engine.connect.key.take());
        engine.connect.tls = tls.unwrap_or_else(|| std::mem::take(&mut engine.connect.tls));
        engine.idle = idle.unwrap_or(engine.idle);
        engine.heartbeat_ms = heartbeat_ms.unwrap_or(engine.heartbeat_ms);
        engine.placement = placement.unwrap_or_else(|| std::mem::take(&mut engine.placement));
        config.deadline = deadline.unwrap_or(config.deadline);
        config.window = window.unwrap_or(config.window);
        config.reconnect = reconnect.unwrap_or(config.reconnect);
        config
    }

    /// The route to a URL, and workers for it.
    fn of(self, url: &str) -> Result<(Route, Arc<WorkerSet>, Config), ConnectError> {
        let is_shared = self.is_shared;
        let config = self.configured();
        let route = Route::parse(url, &config.engine.connect.tls)?;
        let workers = match is_shared {
            true => shared(&config),
            false => spawn(&any_for(&route.kinds()), config.clone()).map(Arc::new),
        };
        let workers = workers.map_err(|error| route.explain(error))?;
        Ok((route, workers, config))
    }

    /// Connects to `shm://name`, `tcp://host:port`, `tcp+tls://host:port`, `rdma://host:port` or `mem://name`, or by the best way
    /// there is to `gimmal://host:port`. Blocks the thread, at most for the connect and handshake time-outs of each way.
    ///
    /// # Errors
    /// A variant of [`ConnectError`] for each cause: a malformed URL, a setting outside its limits, no thread, no server, a
    /// refusal.
    pub fn connect(self, url: &str) -> Result<Client, ConnectError> {
        let (route, workers, config) = self.of(url)?;
        Client::by(&workers, &config, route)
    }

    /// Connects to the server of `url`, as a future of any runtime. The steps that block, the look-up of names among them, are done
    /// by a thread of their own.
    ///
    /// Cancel safe: when the future is dropped, the attempt ends within its time-outs, and the connection that it may make is
    /// closed.
    ///
    /// # Errors
    /// The future ends with those of [`connect`](ClientBuilder::connect).
    pub fn connect_async(self, url: &str) -> Connecting {
        let url = url.to_owned();
        Connecting::on_a_thread(move || self.connect(&url))
    }

    /// Makes a client that is connected later: returns at once, and a thread connects, again and again until a server answers.
    /// Calls that start while there is no connection wait for one, within their deadlines; those with loans or streams fail, not
    /// run.
    ///
    /// # Errors
    /// A malformed URL, a setting outside its limits, no thread or device for the worker. A missing server is no error.
    pub fn connect_lazy(self, url: &str) -> Result<Client, ConnectError> {
        let (route, workers, config) = self.of(url)?;
        Client::later(workers, &config, route)
    }

    /// Connects a client whose worker is the calling thread. Blocks the thread, at most for the connect and handshake time-outs of
    /// each way. Such a client does not reconnect.
    ///
    /// # Errors
    /// A variant of [`ConnectError`] for each cause: a malformed URL, a setting outside its limits, no server, a refusal.
    pub fn connect_local(self, url: &str) -> Result<LocalClient, ConnectError> {
        LocalClient::with(self.configured(), url)
    }

    /// Makes a local client without a connection, for a runtime's task that [drives](LocalClient::driver) and
    /// [dials](LocalClient::dial) it. Its peers take it for dead when its driver does not run for as long as their heartbeat bound.
    /// Does not block.
    ///
    /// # Errors
    /// A malformed URL, a setting outside its limits, no device or memory for the port.
    pub fn open_local(self, url: &str) -> Result<LocalClient, ConnectError> {
        LocalClient::open(self.configured(), url)
    }
}

#[cfg(test)]
mod tests {
    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;

    #[test]
    fn no_client_builder_call_undoes_another() {
        let calls: &[BuilderCall<ClientBuilder>] = &[
            ("config", |builder| builder.config(Config { tasks_max: 7, ..Config::default() })),
            ("deadline", |builder| builder.deadline(Duration::from_secs(77))),
            ("window", |builder| builder.window(3)),
            ("idle", |builder| builder.idle(Idle::Spin)),
            ("reconnect", |builder| builder.reconnect(None)),
            ("key", |builder| builder.key(Key::new(&[7; 32]).unwrap())),
            ("tls", |builder| builder.tls(Tls::default().server_name("a"))),
            ("heartbeat_ms", |builder| builder.heartbeat_ms(777)),
            ("placement", |builder| builder.placement(Placement::Cores(vec![0]))),
            ("share_workers", ClientBuilder::share_workers),
        ];
        let built = |builder: ClientBuilder| (builder.is_shared, builder.configured());
        no_call_undoes_another(ClientBuilder::default, calls, built);
    }
}
