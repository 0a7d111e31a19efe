//! What calls over shared memory allocate and copy, counted at both ends and printed: nothing for inline handlers with
//! borrowed or loaned arguments and inline or driven callers; one allocation, its task, for an async handler that waits;
//! one copy of what is handed off. An answer is read where it landed when an inline caller waits for it, and copied once, out of the
//! ring, when it is looked at later.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    future::Future,
    os::fd::AsFd as _,
    pin::Pin,
    sync::mpsc,
    task::{Context, Poll},
    time::Duration,
};

use allocation_counter::measure;
use common::config;
use gimmal_rpc::{Bulk, Channel as _, Client, Cx, LocalClient, LocalServer, ResponseWriter, Server, Stats};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::LocalSet,
};

const WARM_UP: u64 = 1_000;
const CALLS: u64 = 6_000;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Meter {
    /// Backwards.
    #[raw]
    fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
    /// The sum of borrowed bytes.
    #[inline]
    fn borrowed(&self, cx: &Cx, name: &str, bytes: &[u8]) -> u64;
    /// The sum of loaned bytes.
    async fn loaned(&self, cx: &Cx, bytes: Bulk) -> u64;
    /// So many letters, which the server allocates.
    #[inline]
    fn letters(&self, cx: &Cx, count: usize) -> String;
    /// Returns the number at once.
    async fn ready(&self, cx: &Cx, number: u64) -> u64;
    /// Returns the number at its second poll.
    async fn pending(&self, cx: &Cx, number: u64) -> u64;
}

#[derive(Debug)]
struct Meters;

/// Pending once.
#[derive(Debug, Default)]
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Meter for Meters {
    fn raw(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        for (to, from) in answer.reserve(request.len()).iter_mut().zip(request.iter().rev()) {
            *to = *from;
        }
    }

    fn borrowed(&self, _: &Cx, _: &str, bytes: &[u8]) -> u64 {
        common::sum(bytes)
    }

    async fn loaned(&self, _: &Cx, bytes: Bulk) -> u64 {
        common::sum(&bytes)
    }

    fn letters(&self, _: &Cx, count: usize) -> String {
        "x".repeat(count)
    }

    async fn ready(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn pending(&self, _: &Cx, number: u64) -> u64 {
        Once::default().await;
        number
    }
}

/// What `CALLS` calls took at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    allocations: u64,
    copied_requests: u64,
    copied_answers: u64,
}

impl End {
    fn of(allocations: u64, before: &Stats, after: &Stats) -> Self {
        Self {
            allocations,
            copied_requests: after.copied_requests - before.copied_requests,
            copied_answers: after.copied_answers - before.copied_answers,
        }
    }
}

const NOTHING: End = End { allocations: 0, copied_requests: 0, copied_answers: 0 };
/// A caller that takes its answers out of the ring.
const ANSWERS: End = End { copied_answers: CALLS, ..NOTHING };
/// What an inline caller's answers are kept in, made for the first that comes with a turn that looks at everything (one in 64),
/// which the warm-up may not have seen.
const BUFFERS: u64 = 2;

/// A caller that copies its answers, into buffers that it has.
fn copied(client: End) -> bool {
    client.allocations <= BUFFERS && End { allocations: 0, ..client } == ANSWERS
}

/// A caller that reads its answers in the ring, all but those that come with a turn that looks at everything.
fn in_place(client: End) -> bool {
    client.allocations <= BUFFERS && client.copied_requests == 0 && client.copied_answers <= CALLS / 8
}

fn serve(server: &mut LocalServer, answers: u64) {
    // `stats` is plain loads: asking costs nothing that is counted here.
    while server.stats().answers < answers {
        server.idle(Duration::from_millis(1));
    }
}

/// A server on a thread of its own, and what its `CALLS` calls after the warm-up took.
fn server(name: &str) -> (String, std::thread::JoinHandle<End>) {
    let url = common::address("shm", name);
    let theirs = url.clone();
    let (ready, listening) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let builder = Server::builder().service(serve_meter(Meters)).config(config());
        let mut server = builder.listen_local(&theirs).unwrap();
        ready.send(()).unwrap();
        serve(&mut server, WARM_UP);
        let before = server.stats();
        let counted = measure(|| serve(&mut server, WARM_UP + CALLS));
        let end = End::of(counted.count_total, &before, &server.stats());
        // The last answer leaves with the turn that was just taken; the client's goodbye is answered after it.
        for _ in 0..50 {
            server.idle(Duration::from_millis(1));
        }
        end
    });
    listening.recv().unwrap();
    (url, server)
}

fn printed(name: &str, client: End, server: End) -> (End, End) {
    println!("{name}: {CALLS} calls; client {client:?}; server {server:?}");
    (client, server)
}

/// Makes `CALLS` calls inline after a warm-up; what client and server allocated and copied.
fn inline(name: &str, call: impl Fn(&MeterClient<LocalClient>)) -> (End, End) {
    let (url, server) = server(name);
    let client = MeterClient::new(Client::builder().config(config()).connect_local(&url).unwrap());
    (0..WARM_UP).for_each(|_| call(&client));
    let before = client.channel().stats();
    let counted = measure(|| (0..CALLS).for_each(|_| call(&client)));
    let end = End::of(counted.count_total, &before, &client.channel().stats());
    drop(client);
    printed(name, end, server.join().unwrap())
}

#[test]
fn a_raw_method_and_an_inline_caller_allocate_nothing() {
    let request = [5; 64];
    let ends = inline("raw, inline", |client| {
        assert_eq!(client.raw(&request).response().wait().bytes().map(<[u8]>::len).unwrap(), 64);
    });
    assert!(copied(ends.0) && ends.1 == NOTHING, "{ends:?}");
}

#[test]
fn a_pipeline_copies_and_allocates_nothing() {
    let (url, server) = server("raw, pipeline");
    let client = MeterClient::new(Client::builder().config(config()).connect_local(&url).unwrap());
    let mut pipeline = client.raw_pipeline();
    let mut calls = |count: u64| {
        for tag in 0..count {
            pipeline.call(tag, &[5; 64]).unwrap();
            if pipeline.under_way() == 32 {
                pipeline.wait(8, |_, answer| assert_eq!(answer.unwrap().len(), 64));
            }
        }
        pipeline.wait(usize::MAX, |_, answer| assert_eq!(answer.unwrap().len(), 64));
    };
    calls(WARM_UP);
    let before = client.channel().stats();
    let counted = measure(|| calls(CALLS));
    let end = End::of(counted.count_total, &before, &client.channel().stats());
    drop(client);
    let (client, server) = printed("raw, pipeline", end, server.join().unwrap());
    // A request is copied once, out of the caller's hands.
    assert_eq!((client, server), (End { copied_requests: client.copied_requests, ..NOTHING }, NOTHING));
}

#[test]
fn an_inline_handler_with_borrowed_arguments_copies_and_allocates_nothing() {
    let bytes = [3; 4096];
    let ends = inline("borrowed, inline", |client| {
        assert_eq!(client.borrowed("a name", &bytes).wait(), Ok(3 * 4096));
    });
    assert!(in_place(ends.0) && ends.1 == NOTHING, "{ends:?}");
}

#[test]
fn a_reply_is_read_without_an_allocation() {
    let (client, server) = inline("a reply, inline", |client| {
        let reply = client.letters(1000).response().wait();
        assert_eq!(reply.borrowed().map(str::len), Ok(1000));
    });
    assert!(copied(client), "{client:?}");
    assert_eq!(server, End { allocations: CALLS, ..NOTHING });
}

#[test]
fn loaned_arguments_are_copied_nowhere() {
    let ends = inline("loaned, inline", |client| {
        let mut loan = client.channel().loan(16 << 10).unwrap();
        loan.fill(1);
        assert_eq!(client.loaned(loan).wait(), Ok(16 << 10));
    });
    assert!(in_place(ends.0) && ends.1 == NOTHING, "{ends:?}");
}

#[test]
fn an_async_handler_that_does_not_wait_allocates_nothing() {
    let ends = inline("async, ready, inline", |client| assert_eq!(client.ready(7).wait(), Ok(7)));
    assert!(in_place(ends.0) && ends.1 == NOTHING, "{ends:?}");
}

#[test]
fn an_async_handler_that_waits_allocates_its_task() {
    let (client, server) =
        inline("async, pending, inline", |client| assert_eq!(client.pending(7).wait(), Ok(7)));
    assert!(in_place(client), "{client:?}");
    assert_eq!(server, End { allocations: CALLS, ..NOTHING });
}

#[test]
fn a_driven_caller_copies_and_allocates_nothing() {
    let (url, server) = server("borrowed, driven");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let local = LocalSet::new();
    let guard = runtime.enter();
    let channel = Client::builder().config(config()).connect_local(&url).unwrap();
    let driver = channel.driver().unwrap();
    let fd = driver.as_fd().try_clone_to_owned().unwrap();
    #[allow(deprecated, reason = "the way that replaces it is unsafe; nobody else has this descriptor")]
    let fd = AsyncFd::with_interest(fd, Interest::READABLE).unwrap();
    let driver = local.spawn_local(driver.run(move |context: &mut Context<'_>| {
        fd.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready())
    }));
    drop(guard);
    let client = MeterClient::new(channel);
    let bytes = [3; 4096];
    let calls = async |count: u64| {
        for _ in 0..count {
            assert_eq!(client.borrowed("a name", &bytes).await, Ok(3 * 4096));
        }
    };
    local.block_on(&runtime, calls(WARM_UP));
    let before = client.channel().stats();
    let counted = measure(|| local.block_on(&runtime, calls(CALLS)));
    let end = End::of(counted.count_total, &before, &client.channel().stats());
    drop(client);
    local.block_on(&runtime, driver).unwrap().unwrap();
    assert_eq!(printed("borrowed, driven", end, server.join().unwrap()), (ANSWERS, NOTHING));
}

#[test]
fn what_is_handed_off_is_copied_once_each_way() {
    let (url, server) = server("borrowed, handed off");
    let client = MeterClient::new(Client::builder().config(config()).connect(&url).unwrap());
    let bytes = [3; 4096];
    let calls =
        |count| (0..count).for_each(|_| assert_eq!(client.borrowed("a name", &bytes).wait(), Ok(3 * 4096)));
    calls(WARM_UP);
    let before = client.channel().stats();
    let counted = measure(|| calls(CALLS));
    let end = End::of(counted.count_total, &before, &client.channel().stats());
    let (client, server) = printed("borrowed, handed off", end, server.join().unwrap());
    assert_eq!((client.copied_requests, client.copied_answers), (CALLS, CALLS));
    assert_eq!(server, NOTHING);
}
