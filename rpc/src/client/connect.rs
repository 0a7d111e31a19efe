//! Ways to a connection: the calling thread waits for it, a future does, or the first call.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
};

use gimmal_engine::{OpenError, StartError, transport::thread};

use super::{Client, Inner};
use crate::{
    config::Config,
    error::ConnectError,
    oneshot::{Receiver, oneshot},
    provider::{Any, any},
    reconnect::{self, Line},
    route::Route,
    service::Registry,
    workers::WorkerSet,
};

/// Workers that clients share, by their configuration; they stop when the last of those clients goes.
static SHARED: Mutex<Vec<(Config, Weak<WorkerSet>)>> = Mutex::new(Vec::new());

/// The workers of all clients with this configuration that share theirs.
pub(super) fn shared(config: &Config) -> Result<Arc<WorkerSet>, ConnectError> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|(_, workers)| workers.strong_count() > 0);
    let known = shared.iter().find(|(known, _)| known == config);
    if let Some(workers) = known.and_then(|(_, workers)| workers.upgrade()) {
        return Ok(workers);
    }
    let workers = Arc::new(spawn(&any(), config.clone())?);
    shared.push((config.clone(), Arc::downgrade(&workers)));
    Ok(workers)
}

pub(crate) fn spawn(provider: &Any, config: Config) -> Result<WorkerSet, ConnectError> {
    let (plan, limits) = config.validate()?;
    Ok(WorkerSet::spawn(provider, &plan, limits, Arc::new(Registry::default()), Arc::default())?)
}

impl Client {
    /// Connects to `shm://name`, `tcp://host:port`, `tcp+tls://host:port`, `rdma://host:port` or `mem://name`, or by the best way
    /// there is to `gimmal://host:port`. All clients of a process that are made like this share one worker thread. Blocks the
    /// thread, at most for the connect and handshake time-outs of each way: 7 s by default.
    ///
    /// # Errors
    /// A variant of [`ConnectError`] for each cause: a malformed URL, no server, a refusal, no thread. In a handler of the
    /// server's only worker it is [`ConnectError::OwnWorker`].
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder().share_workers().connect(url)
    }

    /// Connects to the server of `url`, as a future of any runtime. The steps that block, the look-up of names among them, are done
    /// by a thread of their own. All clients of a process that are made like this share one worker thread.
    ///
    /// Cancel safe: when the future is dropped, the attempt ends within its time-outs, and the connection that it may make is
    /// closed.
    ///
    /// # Errors
    /// The future ends with those of [`Client::connect`].
    pub fn connect_async(url: &str) -> Connecting {
        let url = url.to_owned();
        Connecting::on_a_thread(move || Self::connect(&url))
    }

    /// Makes a client that is connected later: returns at once, and a thread connects, again and again until a server answers.
    /// Calls that start while there is no connection wait for one, within their deadlines; those with loans or streams fail, not
    /// run.
    ///
    /// # Errors
    /// A malformed URL, and no thread for the worker. A missing server is no error.
    pub fn connect_lazy(url: &str) -> Result<Self, ConnectError> {
        Self::builder().share_workers().connect_lazy(url)
    }

    /// A client on workers that others share.
    pub(crate) fn on_url(workers: &Arc<WorkerSet>, config: &Config, url: &str) -> Result<Self, ConnectError> {
        Self::by(workers, config, Route::parse(url, &config.engine.connect.tls)?)
    }

    /// Connects on the worker with the fewest connections.
    pub(super) fn by(workers: &Arc<WorkerSet>, config: &Config, route: Route) -> Result<Self, ConnectError> {
        let place = workers.least();
        let handle = place.handle();
        let opened =
            route.open(handle.connect_options(), |address, options| handle.connect_with(address, options))?;
        let line = Line::new((place, handle), route, config.reconnect, opened);
        let client = Self::of(Arc::clone(workers), config, line, false);
        followed(reconnect::watch(&client.inner))?;
        Ok(client)
    }

    pub(super) fn later(
        workers: Arc<WorkerSet>,
        config: &Config,
        route: Route,
    ) -> Result<Self, ConnectError> {
        let place = workers.least();
        let line = Line::later((place.clone(), place.handle()), route, config.reconnect);
        let client = Self::of(workers, config, line, true);
        followed(reconnect::begin(&client.inner))?;
        Ok(client)
    }

    fn of(workers: Arc<WorkerSet>, config: &Config, line: Line, is_lazy: bool) -> Self {
        let deadline = (!config.deadline.is_zero()).then_some(config.deadline);
        let message_bytes_max = config.message_bytes_max;
        Self { inner: Arc::new(Inner { line, deadline, message_bytes_max, is_lazy, workers }) }
    }
}

/// A client whose connection its worker does not follow would never reconnect.
fn followed(is_followed: bool) -> Result<(), ConnectError> {
    if is_followed { Ok(()) } else { Err(OpenError::Worker("its inbox is full").into()) }
}

/// A client that another thread connects: the future of [`Client::connect_async`]. It has begun before it is polled. Cancel safe:
/// dropping it gives the attempt up.
#[derive(Debug)]
#[must_use = "the client comes out of it when it is awaited"]
pub struct Connecting(Result<Receiver<Result<Client, ConnectError>>, ConnectError>);

fn no_thread(why: String) -> ConnectError {
    StartError::Thread(why).into()
}

impl Connecting {
    pub(super) fn on_a_thread(
        connect: impl FnOnce() -> Result<Client, ConnectError> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = oneshot();
        let started = thread::spawn("gimmal-connect", move || sender.send(connect()));
        Self(started.map(|_| receiver).map_err(|error| no_thread(error.to_string())))
    }
}

impl Future for Connecting {
    type Output = Result<Client, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(receiver) => Pin::new(receiver).poll(context).map(|client| {
                client.unwrap_or_else(|| Err(no_thread("the thread that connects has panicked".to_owned())))
            }),
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver as Channel, SyncSender, sync_channel},
        time::Duration,
    };

    use gimmal_engine::transport::{CloseReason, Tls};
    use gimmal_testkit::until;

    use super::*;
    use crate::{
        Cx,
        command::{Command, Watcher},
        config::Reconnect,
        reconnect::NOWHERE,
        server::Server,
        workers::Handle,
    };

    #[test]
    fn clients_of_one_configuration_share_their_workers_until_the_last_goes() {
        let config = |window| Config { window, ..Config::default() };
        let first = shared(&config(31)).unwrap();
        assert!(Arc::ptr_eq(&first, &shared(&config(31)).unwrap()));
        assert!(!Arc::ptr_eq(&first, &shared(&config(32)).unwrap()), "it has another configuration");
        let gone = Arc::downgrade(&first);
        drop(first);
        assert!(gone.upgrade().is_none(), "nothing keeps workers that nobody uses");
        assert_eq!(shared(&config(31)).unwrap().workers.handles().len(), 1);
    }

    fn eager() -> Config {
        let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
        Config { reconnect: Some(reconnect), ..Config::default() }
    }

    #[gimmal_macros::service(crate = crate)]
    trait Nothing {
        async fn nothing(&self, cx: &Cx);
    }

    struct Idle;

    impl Nothing for Idle {
        async fn nothing(&self, _: &Cx) {}
    }

    fn serve(url: &str) -> Server {
        Server::builder().service(serve_nothing(Idle)).listen(url).unwrap()
    }

    /// A worker, its handle, and a client on it whose connection is not followed yet.
    fn unfollowed(url: &str) -> (Arc<WorkerSet>, Handle, Client) {
        let config = eager();
        let workers = Arc::new(spawn(&any(), config.clone()).unwrap());
        let (place, route) = (workers.least(), Route::parse(url, &Tls::default()).unwrap());
        let handle = place.handle();
        let opened =
            route.open(handle.connect_options(), |address, options| handle.connect_with(address, options));
        let line = Line::new((place, handle.clone()), route, config.reconnect, opened.unwrap());
        let client = Client::of(Arc::clone(&workers), &config, line, false);
        (workers, handle, client)
    }

    #[test]
    fn a_client_is_told_of_an_end_that_is_long_ago() {
        let url = format!("mem://long-ago-{}", std::process::id());
        let server = serve(&url);
        let (workers, handle, client) = unfollowed(&url);
        drop(server);
        until("its connection has ended", || handle.duty().connections == 0);
        let _server = serve(&url);
        // More than a worker remembers.
        for _ in 0..100 {
            drop(Client::on_url(&workers, &eager(), &url).unwrap());
        }
        until("theirs have ended too", || handle.duty().connections_closed == 101);
        assert!(client.is_ready(), "it was not told");
        assert!(reconnect::watch(&client.inner));
        until("it has another connection", || client.reconnects() == 1 && client.is_ready());
    }

    /// Keeps its worker from all else, until it is told to stop.
    #[derive(Debug)]
    struct Blocks {
        begins: SyncSender<()>,
        stopped: Mutex<Channel<()>>,
    }

    impl Watcher for Blocks {
        fn ended(&self, _: &CloseReason) {
            let _ = self.begins.try_send(());
            let _ = self.stopped.lock().unwrap().recv();
        }

        fn leaving(&self) {}

        fn is_moving(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_full_inbox_is_waited_for_until_the_connection_is_followed() {
        let url = format!("mem://full-inbox-{}", std::process::id());
        let server = serve(&url);
        let (_workers, handle, client) = unfollowed(&url);
        let ((stop, stopped), (begins, begun)) = (sync_channel(1), sync_channel(1));
        let blocks = Arc::new(Blocks { begins, stopped: Mutex::new(stopped) });
        let watch = || Command::Watch(NOWHERE, Arc::clone(&blocks) as Arc<dyn Watcher>);
        handle.submit(watch()).unwrap();
        begun.recv_timeout(Duration::from_secs(60)).unwrap();
        while handle.submit(watch()).is_ok() {}
        std::thread::scope(|scope| {
            let follows = scope.spawn(|| reconnect::follow(&Arc::downgrade(&client.inner)));
            // Longer than one offer. If this thread is late, the test only finds less.
            std::thread::sleep(Duration::from_millis(1500));
            assert!(!follows.is_finished(), "the inbox is full");
            drop(stop);
            assert!(follows.join().unwrap(), "it gave up");
        });
        drop(server);
        let _server = serve(&url);
        until("it has another connection", || client.reconnects() >= 1 && client.is_ready());
        let gone = Arc::downgrade(&client.inner);
        drop(client);
        assert!(!reconnect::follow(&gone), "nobody is left");
    }
}
