//! What one peer can make a server hold or do, and what it leaves behind.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{address, config, sleep, until};
use gimmal_rpc::{
    Behind, Bulk, CallError, CallOptions, Channel as _, Client, Code, Config, Cx, Fate, Guarded, Layered,
    Method, ResponseWriter, Server, ServerLayer, Sink, Status, Topic, WithLoan,
    layer::{Ended, WithToken, tokens},
};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Notes {
    /// Begins, and goes on until the test lets it end.
    #[oneway]
    async fn note(&self, cx: &Cx);
    async fn echo(&self, cx: &Cx, text: String) -> String;
    /// Keeps what it was given until the test lets it end.
    async fn hold(&self, cx: &Cx, content: Bulk) -> usize;
    /// Keeps its sink beyond the call.
    async fn keep(&self, cx: &Cx, out: Sink<u64>);
    async fn follow(&self, cx: &Cx, out: Sink<u64>);
}

#[derive(Clone)]
struct Noter {
    begun: Arc<AtomicU64>,
    may_end: Arc<AtomicBool>,
    kept: Arc<Mutex<Option<mpsc::Sender<Sink<u64>>>>>,
    topic: Topic<u64>,
}

impl Default for Noter {
    fn default() -> Self {
        let topic = Topic::new(4, Behind::Wait);
        Self { begun: Arc::default(), may_end: Arc::default(), kept: Arc::default(), topic }
    }
}

impl Notes for Noter {
    async fn note(&self, _: &Cx) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        while !self.may_end.load(Ordering::SeqCst) {
            sleep(20).await;
        }
    }

    async fn echo(&self, _: &Cx, text: String) -> String {
        text
    }

    async fn hold(&self, cx: &Cx, content: Bulk) -> usize {
        self.note(cx).await;
        content.len()
    }

    async fn keep(&self, _: &Cx, out: Sink<u64>) {
        self.kept.lock().unwrap().as_ref().unwrap().send(out).unwrap();
        std::future::pending::<()>().await;
    }

    async fn follow(&self, _: &Cx, out: Sink<u64>) {
        let _ = self.topic.feed(out).await;
    }
}

fn serve(config: Config) -> (Server, Noter) {
    serve_at("shm", config)
}

fn serve_at(scheme: &str, config: Config) -> (Server, Noter) {
    let noter = Noter::default();
    let builder = Server::builder().service(serve_notes(noter.clone())).config(config);
    (builder.listen(&address(scheme, "limits")).unwrap(), noter)
}

fn client(server: &Server) -> NotesClient {
    NotesClient::new(Client::builder().config(config()).connect(&server.address().to_string()).unwrap())
}

/// Sends `count` one-way requests, and waits until each has begun or was refused.
fn flood(server: &Server, count: u64) -> NotesClient {
    let client = client(server);
    let before = server.stats().requests;
    for _ in 0..count {
        client.note().wait().unwrap();
    }
    until("all have come", || server.stats().requests == before + count);
    client
}

#[test]
fn one_way_requests_leave_room_for_calls_and_for_others() {
    let (server, noter) = serve(Config { tasks_max: 64, serving_max: 8, ..config() });
    let other = client(&server);
    let first = flood(&server, 64);
    let stats = server.stats();
    assert_eq!((noter.begun.load(Ordering::SeqCst), stats.refused), (8, 56), "a peer has its serving_max");
    other.echo("beside a flood".to_owned()).wait().unwrap();
    drop(first);
    // Peers that come and go leave no more behind than half of what there is.
    for _ in 0..8 {
        drop(flood(&server, 16));
    }
    assert_eq!(noter.begun.load(Ordering::SeqCst), 32);
    other.echo("after all have gone".to_owned()).wait().unwrap();
    // What ends makes room.
    noter.may_end.store(true, Ordering::SeqCst);
    until("all have ended", || {
        let before = server.stats().refused;
        let _ = flood(&server, 8);
        server.stats().refused == before
    });
}

#[test]
fn wakes_of_handlers_keep_no_client_out() {
    const SUBSCRIBERS: usize = 200;
    let mut small = Config { serving_max: 256, ..config() };
    small.engine.inbox = 4;
    let (server, noter) = serve(small);
    let url = server.address().to_string();
    let wide = Client::builder().config(Config { window: 256, ..config() }).connect(&url).unwrap();
    let many = NotesClient::new(wide).with_options(CallOptions::default().timeout(None));
    let streams: Vec<_> = (0..SUBSCRIBERS).map(|_| many.follow()).collect();
    until("all have subscribed", || noter.topic.subscribers() == SUBSCRIBERS);
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = std::thread::spawn({
        let (stop, topic) = (Arc::clone(&stop), noter.topic.clone());
        move || {
            let mut published = 0u64;
            while !stop.load(Ordering::SeqCst) && topic.blocking_publish(&published).is_ok() {
                published += 1;
            }
            published
        }
    });
    let reader = std::thread::spawn(move || {
        let mut streams = streams;
        let mut read = 0u64;
        loop {
            for (stream, _) in &mut streams {
                match stream.blocking_next() {
                    Some(Ok(_)) => read += 1,
                    _ => return read,
                }
            }
        }
    });
    for _ in 0..20 {
        let late = client(&server);
        late.echo("in spite of all wakes".to_owned()).wait().unwrap();
    }
    assert_eq!(server.rejected(), 0);
    stop.store(true, Ordering::SeqCst);
    assert!(publisher.join().unwrap() > 0);
    noter.topic.close();
    assert!(reader.join().unwrap() > 0);
}

#[test]
fn a_sink_that_outlives_its_server_keeps_nothing_of_it() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let rounds = 8;
    let mut counts = Vec::new();
    for _ in 0..rounds {
        let (server, noter) = serve(config());
        let (tell, told) = mpsc::channel();
        *noter.kept.lock().unwrap() = Some(tell);
        let client = client(&server);
        let (stream, call) = client.keep();
        let sink = told.recv_timeout(Duration::from_secs(20)).unwrap();
        drop((stream, call, client));
        let _ = server.shutdown(Duration::ZERO);
        drop((noter, sink));
        counts.push(descriptors());
    }
    // Other tests of this process open and close some meanwhile; a leak is two or more for each round.
    until("nothing is kept", || descriptors() < counts[0] + rounds);
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Store {
    async fn put(&self, cx: &Cx, content: Bulk) -> usize;
    /// Its arguments travel as bulk when they are large.
    async fn measure(&self, cx: &Cx, content: Vec<u8>) -> (usize, bool);
    #[raw]
    fn count(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
    async fn lend(&self, cx: &Cx, bytes: usize) -> WithLoan<()>;
}

struct Shelf;

impl Store for Shelf {
    async fn put(&self, _: &Cx, content: Bulk) -> usize {
        content.len()
    }

    async fn measure(&self, cx: &Cx, content: Vec<u8>) -> (usize, bool) {
        (content.len(), cx.metadata().is_some())
    }

    fn count(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        answer.write(&request.len().to_le_bytes());
    }

    async fn lend(&self, cx: &Cx, bytes: usize) -> WithLoan<()> {
        WithLoan::new((), cx.loan(bytes).unwrap())
    }
}

/// How often calls began and ended.
#[derive(Debug, Default, Clone)]
struct Seen(Arc<[AtomicU64; 3]>);

impl Seen {
    fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::SeqCst))
    }
}

impl ServerLayer for Seen {
    type Seen = ();

    fn before(&self, _: &Cx, _: &'static Method) -> Result<(), Status> {
        self.0[0].fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn after(&self, _: &'static Method, (): (), ended: Ended) {
        self.0[if ended == Ended::Answered { 1 } else { 2 }].fetch_add(1, Ordering::SeqCst);
    }
}

const TOKEN: &str = "open";

/// A server that asks for a token, and pulls at most `most` bytes.
fn shelf(most: u64) -> (Server, Seen) {
    let seen = Seen::default();
    let inside = Guarded::new(serve_store(Shelf), seen.clone());
    let mut config = config();
    config.engine.port.bulk_bytes_max = most;
    let builder = Server::builder().service(Guarded::new(inside, tokens([TOKEN]))).config(config);
    (builder.listen(&address("shm", "shelf")).unwrap(), seen)
}

fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> Code {
    result.unwrap_err().status().unwrap().code()
}

/// What the server would say if it tried to pull: its limit is below.
#[test]
fn a_call_that_is_refused_brings_nothing() {
    const BYTES: usize = 1 << 20;
    let (server, seen) = shelf(4096);
    let url = server.address().to_string();
    let stranger = Client::builder().config(config()).connect(&url).unwrap();
    let store = StoreClient::new(stranger.clone());
    let loan = || stranger.loan(BYTES).unwrap();
    assert_eq!(code(store.put(loan()).wait()), Code::Unauthenticated);
    assert_eq!(code(store.measure(vec![7; BYTES]).wait()), Code::Unauthenticated);
    assert_eq!(code(store.count(&vec![7; BYTES]).wait().map(|_| ())), Code::Unauthenticated);
    let local = StoreClient::new(Client::builder().config(config()).connect_local(&url).unwrap());
    assert_eq!(code(local.measure(vec![7; BYTES]).wait()), Code::Unauthenticated);
    assert_eq!(seen.counts(), [0; 3]);
    // With a token the server pulls, and says that it cannot. The layer inside has judged it, and hears of its end.
    let friend = StoreClient::new(Layered::new(stranger.clone(), WithToken::new(TOKEN)));
    assert_eq!(code(friend.put(loan()).wait()), Code::ResourceExhausted);
    assert_eq!(code(friend.measure(vec![7; BYTES]).wait()), Code::ResourceExhausted);
    assert_eq!(seen.counts(), [2, 0, 2]);
    until("nothing is left", || server.stats().serving == 0);
}

#[test]
fn a_call_with_bulk_is_judged_once() {
    const BYTES: usize = 1 << 20;
    let (server, seen) = shelf(1 << 30);
    let url = server.address().to_string();
    let client = Client::builder().config(config()).connect(&url).unwrap();
    let store = StoreClient::new(Layered::new(client.clone(), WithToken::new(TOKEN)));
    assert_eq!(store.put(client.loan(BYTES).unwrap()).wait().unwrap(), BYTES);
    assert_eq!(store.measure(vec![7; BYTES]).wait().unwrap(), (BYTES, true));
    assert_eq!(store.measure(vec![7; 3]).wait().unwrap(), (3, true));
    assert_eq!(*store.count(&vec![7; BYTES]).wait().unwrap(), BYTES.to_le_bytes());
    assert_eq!(seen.counts(), [4, 4, 0]);
    let local = Client::builder().config(config()).connect_local(&url).unwrap();
    let store = StoreClient::new(Layered::new(local, WithToken::new(TOKEN)));
    assert_eq!(store.measure(vec![7; BYTES]).wait().unwrap(), (BYTES, true));
    assert_eq!(*store.count(&vec![7; BYTES]).wait().unwrap(), BYTES.to_le_bytes());
    assert_eq!(seen.counts(), [6, 6, 0]);
    // Behind a full window a large call waits, with its token.
    let narrow = Client::builder().config(Config { window: 1, ..config() }).connect(&url).unwrap();
    let store = StoreClient::new(Layered::new(narrow, WithToken::new(TOKEN)));
    let calls: Vec<_> = (0..8).map(|_| store.measure(vec![7; BYTES])).collect();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), (BYTES, true)));
    assert_eq!(seen.counts(), [14, 14, 0]);
}

/// Over tcp, what calls bring lies in the server's own memory. In shared memory it lies in the caller's.
#[test]
fn bulk_beyond_the_limit_of_a_connection_is_refused_and_not_run() {
    const BYTES: usize = 1 << 20;
    let mut small = config();
    small.engine.port.loan_bytes_max = 3 * BYTES as u64;
    let (server, noter) = serve_at("tcp", small);
    let channel = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
    let one = NotesClient::new(channel.clone());
    let hold = || one.hold(channel.loan(BYTES).unwrap());
    let held: Vec<_> = (0..3).map(|_| hold()).collect();
    until("three have begun", || noter.begun.load(Ordering::SeqCst) == 3);
    // With what is around it, it fits in as much: the arguments and the answer are in our memory together.
    let large = "7".repeat(BYTES - 100);
    let refused = |error: CallError| {
        let status = error.status().cloned().unwrap();
        assert!(status.message().contains("port.loan_bytes_max"), "{status}");
        (status.code(), status.fate())
    };
    let not_run = (Code::ResourceExhausted, Fate::NotRun);
    assert_eq!(refused(hold().wait().unwrap_err()), not_run);
    assert_eq!(refused(one.echo(large.clone()).wait().unwrap_err()), not_run);
    // Nothing else of the connection suffers, and others have memory of their own.
    one.echo("beside it".to_owned()).wait().unwrap();
    client(&server).echo(large.clone()).wait().unwrap();
    noter.may_end.store(true, Ordering::SeqCst);
    held.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), BYTES));
    assert_eq!(one.echo(large.clone()).wait().unwrap(), large);
}

#[test]
fn a_stream_has_no_deadline_but_the_one_it_is_given() {
    let (server, noter) = serve(config());
    let brief = Config { deadline: Duration::from_millis(200), ..config() };
    let url = server.address().to_string();
    let channel = Client::builder().config(brief.clone()).connect(&url).unwrap();
    let client = NotesClient::new(channel);
    let (mut stream, call) = client.follow();
    let local = NotesClient::new(Client::builder().config(brief).connect_local(&url).unwrap());
    let (mut near, near_call) = local.follow();
    until("both have subscribed", || {
        let _ = near.try_next();
        noter.topic.subscribers() == 2
    });
    let (mut short, short_call) =
        client.clone().with_options(CallOptions::default().timeout(Duration::from_millis(100))).follow();
    assert!(short.blocking_next().unwrap().is_err(), "its own deadline ends it");
    drop(short_call);
    std::thread::sleep(Duration::from_millis(400));
    noter.topic.blocking_publish(&7).unwrap();
    assert_eq!(stream.blocking_next().unwrap().unwrap(), 7);
    assert_eq!(near.blocking_next().unwrap().unwrap(), 7);
    drop((call, near_call));
}

#[test]
fn streams_that_use_up_the_window_are_counted() {
    let (server, noter) = serve(config());
    let narrow = Config { window: 4, ..config() };
    let client =
        NotesClient::new(Client::builder().config(narrow).connect(&server.address().to_string()).unwrap());
    let mut followed: Vec<_> = (0..3).map(|_| client.follow()).collect();
    until("three have subscribed", || noter.topic.subscribers() == 3);
    client.echo("in the last place".to_owned()).wait().unwrap();
    assert_eq!(client.channel().stats().behind_streams, 0);
    followed.push(client.follow());
    until("four have subscribed", || noter.topic.subscribers() == 4);
    let short = client.clone().with_options(CallOptions::default().timeout(Duration::from_millis(200)));
    short.echo("behind streams".to_owned()).wait().unwrap_err();
    assert_eq!(client.channel().stats().behind_streams, 1);
    drop(followed.pop());
    client.echo("there is a place again".to_owned()).wait().unwrap();
}
