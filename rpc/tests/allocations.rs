//! What the hot path allocates over shared memory, counted on both threads: nothing for raw methods, for
//! async handlers that are done when they are polled first, and for inline callers.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{sync::mpsc, time::Duration};

use allocation_counter::{AllocationInfo, measure};
use common::{ProbeClient, Prober, config, serve_probe};
use gimmal_rpc::{Client, InlineClient, InlineServer, Server};

const WARM_UP: u64 = 1_000;
const CALLS: u64 = 6_000;

fn serve(server: &mut InlineServer, answers: u64) {
    // `stats` is plain loads: asking costs nothing that is counted here.
    while server.stats().answers < answers {
        server.idle(Duration::from_millis(1));
    }
}

/// Makes `CALLS` calls after a warm-up; what client and server allocated during them.
fn count(name: &str, call: impl Fn(&ProbeClient<InlineClient>)) -> (AllocationInfo, AllocationInfo) {
    let url = common::address("shm", name);
    let theirs = url.clone();
    let (ready, listening) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let builder = Server::builder().service(serve_probe(Prober::default())).config(config());
        let mut server = builder.listen_inline(&theirs).unwrap();
        ready.send(()).unwrap();
        serve(&mut server, WARM_UP);
        let counted = measure(|| serve(&mut server, WARM_UP + CALLS));
        // The last answer leaves with the turn that was just taken; the client's goodbye is answered after it.
        for _ in 0..50 {
            server.idle(Duration::from_millis(1));
        }
        counted
    });
    listening.recv().unwrap();
    let client = ProbeClient::new(Client::builder().config(config()).connect_inline(&url).unwrap());
    (0..WARM_UP).for_each(|_| call(&client));
    let counted = measure(|| (0..CALLS).for_each(|_| call(&client)));
    drop(client);
    (counted, server.join().unwrap())
}

#[test]
fn a_raw_method_and_an_inline_caller_allocate_nothing() {
    let request = [5; 64];
    let (client, server) = count("raw", |client| {
        assert_eq!(client.reverse(&request).wait_with(<[u8]>::len).unwrap(), 64);
    });
    assert_eq!((client.count_total, server.count_total), (0, 0));
}

#[test]
fn an_async_handler_that_does_not_wait_and_an_inline_caller_allocate_nothing() {
    let (client, server) = count("async", |client| {
        assert_eq!(client.divide(6, 3).wait().unwrap(), 2);
    });
    assert_eq!((client.count_total, server.count_total), (0, 0));
}

#[test]
fn an_inline_method_with_borrowed_arguments_allocates_nothing() {
    let bytes = [3; 4096];
    let (client, server) = count("borrowed", |client| {
        assert_eq!(client.add("a name", &bytes).wait(), Ok(3 * 4096));
    });
    assert_eq!((client.count_total, server.count_total), (0, 0));
}
