//! One-sided access: what a handler exposes, its caller reads and changes by itself, with a worker client and with a local one.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use common::{address, config, until};
use gimmal_rpc::{
    Channel, Client, Cx, Fate, Loan, LocalClient, Server, TransportError,
    engine::transport::{AccessError, Exposed},
    layer::{Hedge, Layered, Log, Retry, RetryPolicy},
    memory::{Access, Accessor, RemoteMemory},
};

for_each_scheme! {
    memory_is_read_and_changed_by_the_caller
    an_access_ends_with_the_driver_of_its_client
}

const BYTES: usize = 4096;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Table {
    /// Shows the table to the caller; the first time it is exposed.
    async fn open(&self, cx: &Cx) -> Result<RemoteMemory, String>;
    /// The word at an offset.
    async fn word(&self, cx: &Cx, at: u64) -> u64;
    /// Withdraws it.
    async fn withdraw(&self, cx: &Cx);
    /// Waits, in the handler, for an access of a client of its own process.
    async fn wait_within(&self, cx: &Cx) -> bool;
}

#[derive(Default)]
struct Store {
    exposed: Mutex<Option<Arc<Exposed>>>,
    /// A client of this server, and the memory shown to it.
    within: Mutex<Option<(Client, RemoteMemory)>>,
}

impl Store {
    fn exposed(&self, cx: &Cx) -> Arc<Exposed> {
        let mut exposed = self.exposed.lock().unwrap();
        Arc::clone(exposed.get_or_insert_with(|| cx.expose(BYTES).unwrap()))
    }
}

struct Shared(Arc<Store>);

impl Table for Shared {
    async fn open(&self, cx: &Cx) -> Result<RemoteMemory, String> {
        let exposed = self.0.exposed(cx);
        cx.show(&exposed).await.map_err(|error| error.to_string())
    }

    async fn word(&self, cx: &Cx, at: u64) -> u64 {
        self.0.exposed(cx).load(at).unwrap()
    }

    async fn withdraw(&self, _: &Cx) {
        self.0.exposed.lock().unwrap().take();
    }

    async fn wait_within(&self, _: &Cx) -> bool {
        let (client, memory) = self.0.within.lock().unwrap().take().unwrap();
        let waited = memory.fetch_add(&client, 0, 1).wait();
        matches!(waited, Err(TransportError::OwnWorker { fate: Fate::MaybeRan }) | Ok(_))
    }
}

fn serve(url: &str) -> (Server, Arc<Store>) {
    let store = Arc::<Store>::default();
    let service = serve_table(Shared(Arc::clone(&store)));
    (Server::builder().config(config()).service(service).listen(url).unwrap(), store)
}

fn worker(url: &str) -> TableClient<Client> {
    TableClient::new(Client::builder().config(config()).connect(url).unwrap())
}

fn local(url: &str) -> TableClient<LocalClient> {
    TableClient::new(Client::builder().config(config()).connect_local(url).unwrap())
}

fn filled(client: &impl Channel, bytes: &[u8]) -> Loan {
    let mut loan = client.loan(bytes.len()).unwrap();
    loan.copy_from_slice(bytes);
    loan
}

/// Polls it by hand, as a runtime would.
fn polled<C: Accessor, T>(access: Access<C, T>) -> Result<T, TransportError> {
    let (mut access, mut ended) = (pin!(access), None);
    until("the access ends", || {
        match access.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => ended = Some(result),
            Poll::Pending => {}
        }
        ended.is_some()
    });
    ended.unwrap()
}

fn refused(error: AccessError) -> TransportError {
    TransportError::Access { error, fate: Fate::NotRun }
}

fn read_and_changed<C: Accessor>(client: &TableClient<C>, has_atomics: bool) {
    let (memory, channel) = (client.open().wait().unwrap(), client.channel());
    assert_eq!((memory.len(), memory.is_empty()), (BYTES as u64, false));
    let written = memory.write(channel, 96, filled(channel, b"twelve bytes")).wait().unwrap();
    let read = polled(memory.read(channel, 103, written.truncate(5))).unwrap();
    assert_eq!(&*read, b"bytes");

    let outside = AccessError::Outside { at: 4090, bytes: 8, len: BYTES as u64 };
    let beyond = memory.read(channel, 4090, channel.loan(8).unwrap()).wait();
    assert_eq!(beyond.unwrap_err(), refused(outside));
    if !has_atomics {
        assert_eq!(memory.fetch_add(channel, 0, 1).wait(), Err(refused(AccessError::NoAtomics)));
        return;
    }

    let word = 128;
    let before = client.word(word).wait().unwrap();
    assert_eq!(memory.fetch_add(channel, word, 5).wait(), Ok(before));
    assert_eq!(
        polled(memory.compare_swap(channel, word, before, 0)),
        Ok(before + 5),
        "not what was expected"
    );
    assert_eq!(memory.compare_swap(channel, word, before + 5, before + 9).wait(), Ok(before + 5));
    assert_eq!(client.word(word).wait().unwrap(), before + 9, "the owner sees it");

    // Many at once: each ends once.
    let all: Vec<_> = (0..50).map(|_| memory.fetch_add(channel, 256, 1)).collect();
    let mut seen: Vec<u64> = all.into_iter().map(|access| access.wait().unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 50);

    assert_eq!(memory.fetch_add(channel, 4, 1).wait(), Err(refused(AccessError::Misaligned { at: 4 })));
}

fn memory_is_read_and_changed_by_the_caller(scheme: &str) {
    let (server, _store) = serve(&address(scheme, "memory"));
    let url = server.address().to_string();
    let (worker, local) = (worker(&url), local(&url));
    read_and_changed(&worker, scheme != "siw");
    read_and_changed(&local, scheme != "siw");
    assert_eq!(worker.channel().negotiated().unwrap().atomics, scheme != "siw");

    let (memory, theirs) = (worker.open().wait().unwrap(), local.open().wait().unwrap());
    let loan = || worker.channel().loan(8).unwrap();
    let foreign = theirs.read(worker.channel(), 0, loan()).wait().unwrap_err();
    assert_eq!(foreign, refused(AccessError::NotExposed), "shown on another connection");
    assert_eq!(memory.read(worker.channel(), 0, loan()).wait().unwrap().len(), 8, "no connection ended");
}

/// Layers around a client have its connection.
#[test]
fn memory_is_read_and_changed_through_layers() {
    fn layers<C: Accessor>(client: &TableClient<C>) -> TableClient<impl Accessor + use<C>> {
        let again = Retry::new(client.channel().clone(), RetryPolicy::default());
        TableClient::new(Layered::new(Hedge::new(again, Duration::from_secs(1)), Log))
    }
    let (server, _store) = serve(&address("shm", "layers"));
    let url = server.address().to_string();
    read_and_changed(&layers(&worker(&url)), true);
    read_and_changed(&layers(&local(&url)), true);
}

#[test]
fn memory_is_good_on_its_own_connection_until_it_is_withdrawn() {
    let (server, _store) = serve(&address("shm", "memory"));
    let url = server.address().to_string();
    let (one, two) = (worker(&url), worker(&url));
    let memory = one.open().wait().unwrap();
    let foreign = memory.fetch_add(two.channel(), 0, 1).wait();
    assert_eq!(foreign, Err(refused(AccessError::NotExposed)), "another connection");

    let theirs = two.open().wait().unwrap();
    assert_eq!(theirs.fetch_add(two.channel(), 0, 7).wait(), Ok(0));
    assert_eq!(memory.fetch_add(one.channel(), 0, 1).wait(), Ok(7), "both were shown the same");

    one.withdraw().wait().unwrap();
    assert_eq!(memory.fetch_add(one.channel(), 0, 1).wait(), Err(refused(AccessError::NotExposed)));
    drop(server);
    until("the client hears of it", || !one.channel().is_ready());
    let closed = memory.fetch_add(one.channel(), 0, 1).wait().unwrap_err();
    assert!(matches!(closed, TransportError::Closed { fate: Fate::NotRun, .. }), "{closed}");
}

/// The limit of a connection: the next one is refused by name, and earlier pieces stay usable.
#[test]
fn a_caller_is_shown_256_pieces_at_most() {
    #[gimmal_rpc::service(crate = gimmal_rpc)]
    trait Pieces {
        async fn piece(&self, cx: &Cx) -> Result<RemoteMemory, bool>;
    }

    struct Kept(Mutex<Vec<Arc<Exposed>>>);

    impl Pieces for Kept {
        async fn piece(&self, cx: &Cx) -> Result<RemoteMemory, bool> {
            let exposed = cx.expose(8).map_err(|_| false)?;
            let shown = cx.show(&exposed).await;
            self.0.lock().unwrap().push(exposed);
            shown.map_err(|error| error == refused(AccessError::Full))
        }
    }

    let service = serve_pieces(Kept(Mutex::default()));
    let server =
        Server::builder().config(config()).service(service).listen(&address("shm", "pieces")).unwrap();
    let url = server.address().to_string();
    let client = PiecesClient::new(Client::builder().config(config()).connect(&url).unwrap());
    let all: Vec<RemoteMemory> = std::iter::from_fn(|| client.piece().wait().ok()).take(300).collect();
    assert_eq!(all.len(), 256);
    assert_eq!(client.piece().wait(), Err(gimmal_rpc::CallError::App(true)));
    assert!(all.iter().all(|piece| piece.fetch_add(client.channel(), 0, 1).wait() == Ok(0)));
}

/// Nobody takes turns for it any more.
fn an_access_ends_with_the_driver_of_its_client(scheme: &str) {
    let (server, _store) = serve(&address(scheme, "memory"));
    let client = local(&server.address().to_string());
    let memory = client.open().wait().unwrap();
    let driver = client.channel().driver().unwrap();
    let access = memory.fetch_add(client.channel(), 0, 1);
    drop(driver);
    let closed = TransportError::Access { error: AccessError::Closed, fate: Fate::MaybeRan };
    assert!(matches!(polled(access), Err(error) if error == closed));
}

/// An access needs no turn of the server: the handler that blocks its worker sees it end, or is told that it waits for itself.
#[test]
fn a_handler_that_waits_for_an_access_does_not_hang() {
    let (server, store) = serve(&address("shm", "memory"));
    let client = worker(&server.address().to_string());
    let memory = client.open().wait().unwrap();
    *store.within.lock().unwrap() = Some((client.channel().clone(), memory));
    assert!(client.wait_within().wait().unwrap());
}
