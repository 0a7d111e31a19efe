//! A log that blocks holds up the threads that write to it. Calls write nothing, so they go on.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::{Condvar, Mutex};

use gimmal::{
    Cx, Sink,
    auth::{Hello, RejectReason},
};
use gimmal_testkit::until;

#[gimmal::service]
trait Echo {
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
    #[inline]
    fn echo_inline(&self, cx: &Cx, number: u64) -> u64;
    async fn count(&self, cx: &Cx, to: u64, out: Sink<u64>);
}

struct Plain;

impl Echo for Plain {
    async fn echo(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    fn echo_inline(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn count(&self, _: &Cx, to: u64, mut out: Sink<u64>) {
        for number in 0..to {
            if out.send(&number).await.is_err() {
                return;
            }
        }
    }
}

/// Whether the sink is blocked, and the threads that wait for it.
static STATE: Mutex<(bool, Vec<String>)> = Mutex::new((false, Vec::new()));
static OPENED: Condvar = Condvar::new();

struct Blocking;

impl std::io::Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut state = STATE.lock().unwrap();
        if state.0 {
            state.1.push(std::thread::current().name().unwrap_or_default().to_owned());
        }
        drop(OPENED.wait_while(state, |(is_blocked, _)| *is_blocked).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn block(is_blocked: bool) {
    STATE.lock().unwrap().0 = is_blocked;
    OPENED.notify_all();
}

fn waiting() -> Vec<String> {
    STATE.lock().unwrap().1.clone()
}

/// Every level is written. The thread that accepts clients waits in the sink, and calls of every kind go on meanwhile.
#[test]
fn r116_no_call_waits_for_a_log_that_blocks() {
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
    subscriber.with_ansi(false).with_writer(|| Blocking).init();
    let url = format!("shm://{}/gimmal-{}-sink", std::env::temp_dir().display(), std::process::id());
    let is_open = std::sync::atomic::AtomicBool::new(true);
    let admit = move |_: &Hello, _: &str| {
        // The first one alone.
        let is_first = is_open.swap(false, std::sync::atomic::Ordering::Relaxed);
        is_first.then_some(()).ok_or_else(|| RejectReason::Overloaded.into())
    };
    let server = gimmal::Server::builder().service(serve_echo(Plain)).admit(admit).listen(&url).unwrap();
    let client = EchoClient::new(gimmal::connect(&url).unwrap());
    assert_eq!(client.echo(1).wait().unwrap(), 1);
    block(true);
    let other = std::thread::spawn({
        let url = url.clone();
        move || gimmal::connect(&url).is_err()
    });
    until("the accepting thread waits", || waiting().iter().any(|name| name == "gimmal-accept"));
    for number in 0..2000 {
        assert_eq!(client.echo(number).wait().unwrap(), number);
        assert_eq!(client.echo_inline(number).wait().unwrap(), number);
    }
    let (mut numbers, call) = client.count(1000);
    for number in 0..1000 {
        assert_eq!(numbers.blocking_next().unwrap().unwrap(), number);
    }
    call.wait().unwrap();
    let waiting = waiting();
    assert!(waiting.iter().all(|name| name != "gimmal-0"), "a worker waits: {waiting:?}");
    block(false);
    assert!(other.join().unwrap(), "it is refused");
    drop((client, server));
}
