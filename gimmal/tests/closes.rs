//! A connection that does not end in good order says why in the log, once, on the side that is left.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::{Once, RwLock},
    time::Duration,
};

use gimmal::Cx;
use gimmal_testkit::{ChildGuard, child::this_program, until};

#[gimmal::service]
trait Echo {
    async fn echo(&self, cx: &Cx, number: u64) -> u64;
    async fn panic(&self, cx: &Cx);
}

struct Plain;

impl Echo for Plain {
    async fn echo(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn panic(&self, _: &Cx) {
        panic!("as it was asked to");
    }
}

/// What is logged in this process.
static LOG: RwLock<Vec<u8>> = RwLock::new(Vec::new());

struct Writer;

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.write().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write_log() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Writer).init());
}

fn lines(about: &str) -> Vec<String> {
    let log = String::from_utf8(LOG.read().unwrap().clone()).unwrap();
    log.lines().filter(|line| line.contains(about)).map(str::to_owned).collect()
}

/// The lines about connections that ended.
fn ends() -> Vec<String> {
    lines("a connection ended")
}

const ROLE: &str = "GIMMAL_TEST_CLOSES";
const READY: &str = "here I am";

#[test]
#[ignore = "the other process of another test"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, url) = role.split_once(' ').unwrap();
    let _server = (role == "serve").then(|| gimmal::serve(url, serve_echo(Plain)).unwrap());
    let client = (role == "call").then(|| EchoClient::new(gimmal::connect(url).unwrap()));
    if let Some(client) = &client {
        client.echo(1).wait().unwrap();
    }
    println!("{READY}");
    std::thread::sleep(Duration::from_secs(60));
}

fn start(role: &str, url: &str) -> ChildGuard {
    let mut program = this_program().unwrap();
    program.args(["--exact", "child", "--ignored", "--nocapture"]).stdout(Stdio::piped());
    let mut child = ChildGuard::spawn(program.env(ROLE, format!("{role} {url}"))).unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    assert!(said.lines().any(|line| line.unwrap().contains(READY)), "it ended");
    child
}

#[test]
fn an_end_out_of_order_is_logged_once_with_its_reason() {
    write_log();
    let folder = std::env::temp_dir();
    let url = |name: &str| format!("shm://{}/gimmal-{}-{name}", folder.display(), std::process::id());
    // A client that goes in good order is not worth a line.
    let server = gimmal::serve(&url("a"), serve_echo(Plain)).unwrap();
    let client = EchoClient::new(gimmal::connect(&url("a")).unwrap());
    client.echo(1).wait().unwrap();
    drop(client);
    let killed = start("call", &url("a"));
    let pid = killed.id();
    drop(killed);
    until("the server says that its client is gone", || !ends().is_empty());
    drop(server);
    let child = start("serve", &url("b"));
    let client = EchoClient::new(gimmal::connect(&url("b")).unwrap());
    client.echo(1).wait().unwrap();
    drop(child);
    until("the client says that its server is gone", || ends().len() > 1);
    let _ = client.echo(1).wait();
    let ends = ends();
    assert_eq!(ends.len(), 2, "{ends:#?}");
    assert!(ends[0].contains(&format!("process {pid}")), "{ends:#?}");
    for line in &ends {
        assert!(line.contains("INFO") && line.contains("reason=the peer is gone"), "{line}");
    }
    for name in ["b", "b.lock"] {
        let _ = std::fs::remove_file(url(name).trim_start_matches("shm://"));
    }
}

/// A caller makes a handler panic as often as it likes: each is counted, ten a second are logged.
#[test]
fn handlers_that_panic_are_counted_and_logged_ten_a_second() {
    const CALLS: u64 = 100;
    write_log();
    let url = format!("shm://{}/gimmal-{}-panics", std::env::temp_dir().display(), std::process::id());
    let server = gimmal::serve(&url, serve_echo(Plain)).unwrap();
    let client = EchoClient::new(gimmal::connect(&url).unwrap());
    let started = gimmal::Instant::now();
    (0..CALLS).for_each(|_| assert!(client.panic().wait().is_err()));
    let most = 10 * (started.elapsed().as_secs() + 2);
    assert_eq!(server.stats().panics, CALLS);
    let lines = lines(" panicked");
    assert!(!lines.is_empty() && (lines.len() as u64) <= most.min(CALLS), "{} lines of {CALLS}", lines.len());
    assert!(lines.iter().all(|line| line.contains("left_out=")), "{lines:#?}");
}
