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
use gimmal_rpc::{Behind, CallOptions, Client, Config, Cx, Server, Sink, Topic};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Notes {
    /// Begins, and goes on until the test lets it end.
    #[oneway]
    async fn note(&self, cx: &Cx);
    async fn echo(&self, cx: &Cx, text: String) -> String;
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

    async fn keep(&self, _: &Cx, out: Sink<u64>) {
        self.kept.lock().unwrap().as_ref().unwrap().send(out).unwrap();
        std::future::pending::<()>().await;
    }

    async fn follow(&self, _: &Cx, out: Sink<u64>) {
        let _ = self.topic.feed(out).await;
    }
}

fn serve(config: Config) -> (Server, Noter) {
    let noter = Noter::default();
    let builder = Server::builder().service(serve_notes(noter.clone())).config(config);
    (builder.listen(&address("shm", "limits")).unwrap(), noter)
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
