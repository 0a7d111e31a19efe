//! A server that is shut down gracefully: what it waits for, and what it says.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{Prober, address, block_on, config, connections, pattern, serve_probe, sleep, until};
use gimmal_rpc::{Bulk, Channel, Client, Config, Cx, Fate, Server, Sink, WithLoan};

extern crate gimmal_rpc as gimmal;

/// Long enough for each of these tests on a busy machine; none waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Work {
    /// Ends after so many ms, which it awaits.
    #[oneway]
    async fn note(&self, cx: &Cx, ms: u64);
    /// Blocks its worker for so many ms, and then awaits as many.
    #[oneway]
    async fn grind(&self, cx: &Cx, ms: u64);
    /// As `grind`, and is answered.
    async fn ground(&self, cx: &Cx, ms: u64) -> u64;
    /// Never ends.
    #[oneway]
    async fn hang(&self, cx: &Cx);
    /// Sends so many items of so many bytes.
    async fn pour(&self, cx: &Cx, items: u8, bytes: u32, out: Sink<Vec<u8>>);
    /// So many bytes of the pattern.
    async fn lend(&self, cx: &Cx, bytes: u64) -> WithLoan<()>;
    /// Whether the bytes are the pattern, after so many ms.
    async fn check(&self, cx: &Cx, ms: u64, bytes: Bulk) -> bool;
}

#[derive(Clone, Default)]
struct Worker {
    begun: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Worker {
    fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }
}

fn is_pattern(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(at))
}

impl Work for Worker {
    async fn note(&self, _: &Cx, ms: u64) {
        sleep(ms).await;
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    async fn grind(&self, _: &Cx, ms: u64) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(ms));
        sleep(ms).await;
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    async fn ground(&self, cx: &Cx, ms: u64) -> u64 {
        self.grind(cx, ms).await;
        ms
    }

    async fn hang(&self, _: &Cx) {
        std::future::pending().await
    }

    async fn pour(&self, _: &Cx, items: u8, bytes: u32, mut out: Sink<Vec<u8>>) {
        for number in 0..items {
            out.send(&vec![number; bytes as usize]).await.unwrap();
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    async fn lend(&self, cx: &Cx, bytes: u64) -> WithLoan<()> {
        let mut loan = cx.loan(usize::try_from(bytes).unwrap()).unwrap();
        loan.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
        WithLoan::new((), loan)
    }

    async fn check(&self, _: &Cx, ms: u64, bytes: Bulk) -> bool {
        self.begun.fetch_add(1, Ordering::SeqCst);
        sleep(ms).await;
        is_pattern(&bytes)
    }
}

for_each_scheme! {
    shutdown_waits_for_one_way_handlers
    shutdown_says_that_a_one_way_handler_was_cut
    shutdown_waits_for_one_way_handlers_whose_client_has_gone
    shutdown_waits_for_handlers_in_their_first_poll
    shutdown_of_an_inline_server_waits_for_one_way_handlers
    shutdown_waits_for_a_stream_that_outlives_its_handler
    shutdown_waits_for_answers_that_find_no_room
    shutdown_waits_for_bulk_of_requests_and_answers
}

fn server(scheme: &str) -> (Server, Worker, WorkClient) {
    let worker = Worker::default();
    let builder = Server::builder().service(serve_work(worker.clone())).config(config());
    let server = builder.listen(&address(scheme, "shutdown")).unwrap();
    let url = server.address().to_string();
    (server, worker, WorkClient::new(Client::builder().config(config()).connect(&url).unwrap()))
}

fn shutdown_waits_for_one_way_handlers(scheme: &str) {
    let (server, worker, client) = server(scheme);
    (0..5).for_each(|_| client.note(300).wait().unwrap());
    until("they began", || server.stats().started == 5);
    assert!(server.shutdown(PATIENCE));
    assert_eq!(worker.ended(), 5);
}

fn shutdown_says_that_a_one_way_handler_was_cut(scheme: &str) {
    let (server, worker, client) = server(scheme);
    client.hang().wait().unwrap();
    client.note(10).wait().unwrap();
    until("the other one ended", || server.stats().started == 2 && worker.ended() == 1);
    assert!(!server.shutdown(Duration::from_millis(50)), "one did not end");
}

fn shutdown_waits_for_one_way_handlers_whose_client_has_gone(scheme: &str) {
    let (server, worker, client) = server(scheme);
    client.note(600).wait().unwrap();
    until("it began", || server.stats().started == 1);
    drop(client);
    until("the client is gone", || connections(&server) == [0]);
    assert!(server.shutdown(PATIENCE));
    assert_eq!(worker.ended(), 1);
}

fn shutdown_waits_for_handlers_in_their_first_poll(scheme: &str) {
    let (server, worker, client) = server(scheme);
    client.grind(200).wait().unwrap();
    until("it began", || worker.begun() == 1);
    assert!(server.shutdown(PATIENCE));
    assert_eq!(worker.ended(), 1);
    let (server, worker, client) = self::server(scheme);
    let call = client.ground(200);
    until("it began", || worker.begun() == 1);
    assert!(server.shutdown(PATIENCE));
    assert_eq!(call.wait().unwrap(), 200);
    // One that does not come out of it in time is not taken for one that ended.
    let (server, worker, client) = self::server(scheme);
    client.grind(600).wait().unwrap();
    until("it began", || worker.begun() == 1);
    assert!(!server.shutdown(Duration::from_millis(20)));
}

fn shutdown_of_an_inline_server_waits_for_one_way_handlers(scheme: &str) {
    for (ms, timeout) in [(300, PATIENCE), (3_000_000, Duration::from_millis(50))] {
        let (worker, url) = (Worker::default(), address(scheme, "inline"));
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn({
            let worker = worker.clone();
            move || {
                let builder = Server::builder().service(serve_work(worker)).config(config());
                let mut server = builder.listen_local(&url).unwrap();
                tell.send(server.address().to_string()).unwrap();
                while server.stats().started == 0 {
                    server.idle(Duration::from_millis(5));
                }
                server.shutdown(timeout)
            }
        });
        let client = Client::builder().config(config()).connect(&told.recv().unwrap()).unwrap();
        // Its thread would outlive the test.
        let client = WorkClient::new(client);
        if ms == 300 {
            client.note(ms).wait().unwrap()
        } else {
            client.hang().wait().unwrap()
        }
        let has_ended = thread.join().unwrap();
        assert_eq!((has_ended, worker.ended()), if ms == 300 { (true, 1) } else { (false, 0) });
    }
}

fn shutdown_waits_for_a_stream_that_outlives_its_handler(scheme: &str) {
    // More than its client lets come at once, and less than lies ahead of it in the sink.
    const BYTES: u32 = 600;
    let (server, worker, _) = server(scheme);
    // It reads only while it waits for something.
    let narrow = Config { stream_window: 4096, ..config() };
    let client = Client::builder().config(narrow).connect_local(&server.address().to_string()).unwrap();
    let client = WorkClient::new(client);
    let (mut items, call) = client.pour(20, BYTES);
    client.channel().turn();
    until("all were sent", || worker.ended() == 1);
    let stopping = std::thread::spawn(move || server.shutdown(PATIENCE));
    for number in 0..20 {
        assert_eq!(items.blocking_next().unwrap().unwrap(), vec![number; BYTES as usize]);
    }
    assert!(items.blocking_next().is_none());
    call.wait().unwrap();
    assert!(stopping.join().unwrap());
}

fn shutdown_waits_for_answers_that_find_no_room(scheme: &str) {
    const BYTES: u32 = 10_000;
    let builder = Server::builder().service(serve_probe(Prober::default())).config(config());
    let server = builder.listen(&address(scheme, "room")).unwrap();
    let url = server.address().to_string();
    // It reads only while it waits for a call.
    let client = Client::builder().config(config()).window(100).connect_local(&url).unwrap();
    let client = common::ProbeClient::new(client);
    let calls: Vec<_> = (0..100).map(|_| client.fill(BYTES)).collect();
    client.channel().turn();
    until("answers wait for room", || server.stats().blocked_answers > 0);
    let stopping = std::thread::spawn(move || server.shutdown(PATIENCE));
    let mut refused = 0;
    for call in calls {
        match call.wait() {
            Ok(bytes) => assert_eq!(bytes.len(), BYTES as usize),
            Err(error) => {
                assert_eq!(error.fate(), Fate::NotRun, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused < 100, "some ran before it was shut down");
    assert!(stopping.join().unwrap());
}

fn shutdown_waits_for_bulk_of_requests_and_answers(scheme: &str) {
    const BYTES: usize = 4 << 20;
    let (server, worker, client) = server(scheme);
    let mut loan = client.channel().loan(BYTES).unwrap();
    loan.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
    let check = client.check(200, loan);
    until("its bulk is on the way", || server.stats().requests == 1);
    let lend = client.lend(BYTES as u64);
    until("the other answer has left", || server.stats().answers == 1);
    let stopping = std::thread::spawn(move || server.shutdown(PATIENCE));
    assert!(is_pattern(&lend.wait().unwrap().loan.unwrap()), "the bulk of an answer was cut off");
    assert!(block_on(check).unwrap(), "the bulk of a request");
    assert!(stopping.join().unwrap());
    assert_eq!(worker.begun(), 1);
}
