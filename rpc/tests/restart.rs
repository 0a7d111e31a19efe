//! Hot restart: a new process takes the server's place while clients call without a pause. No idempotent call fails.
//!
//! Over shared memory, TCP and TLS, or over the URL in `GIMMAL_RESTART_URL` (`rdma://host:port`). Over TCP no connect is
//! refused either, since the listening socket is handed over.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use gimmal_rpc::{Client, Config, Cx, Instant, Reconnect, Retry, RetryPolicy, Server, Tls, engine::Idle};
use gimmal_testkit::{Over, child::this_program, until};
use gimmal_transport::testing::Authority;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Who {
    /// The server's process.
    #[idempotent]
    async fn pid(&self, cx: &Cx) -> u32;
}

struct Me;

impl Who for Me {
    async fn pid(&self, _: &Cx) -> u32 {
        std::process::id()
    }
}

fn config() -> Config {
    let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    let mut config =
        Config { reconnect: Some(reconnect), deadline: Duration::from_secs(60), ..Config::default() };
    config.engine.idle = Idle::Adaptive { spin_us: 20 };
    config
}

/// The folder with the server's certificate, in its process.
const CERTIFICATES: &str = "GIMMAL_RESTART_TLS";

/// What the server shows.
fn shown() -> Tls {
    let Some(folder) = std::env::var_os(CERTIFICATES) else { return Tls::default() };
    let folder = Path::new(&folder);
    Tls::default().certificate(folder.join("server.pem"), folder.join("server.key"))
}

/// The server's process: serves until its input ends, then drains.
fn serve(url: &str) {
    println!("waiting");
    let builder = Server::builder().service(serve_who(Me)).config(config()).tls(shown());
    let server = builder.take_over(Duration::from_secs(30)).listen(url).unwrap();
    println!("listening on {}", server.address());
    let _ = std::io::stdin().read(&mut [0]);
    let told = Instant::now();
    let drained = server.shutdown(Duration::from_secs(30));
    println!("drained {drained}");
    eprintln!("the old process drained within {:?}", told.elapsed());
}

/// Killed when the test ends, whatever its end.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(url: &str, certificates: &Path) -> Self {
        let mut command = this_program().unwrap();
        if url.starts_with("tcp+tls://") {
            command.env(CERTIFICATES, certificates);
        }
        let command = command.env("GIMMAL_RESTART_SERVE", url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { input: child.stdin.take(), child, output };
        assert_eq!(process.line(), "waiting");
        process
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn listening(&mut self) -> String {
        self.line().strip_prefix("listening on ").expect("the server starts").to_owned()
    }
}

/// Whether a process waits for the listening socket of `place`: it has connected to the name that transport/src/tcp/handover.rs
/// makes of it, beside which the old process listens.
fn is_awaited(place: &str) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = format!("@gimmal-tcp-{place}");
    sockets.lines().filter(|line| line.split_whitespace().last() == Some(&*name)).count() >= 2
}

fn restart(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let _ = authority.issue("server", &["127.0.0.1"]);
    let mut server = Process::start(url, folder.path());
    let url = server.listening();
    let believed = Tls::default().authority(&authority.file);
    let client = Client::builder().config(config()).tls(believed).connect(&url).unwrap();
    let policy = RetryPolicy { attempts: 10_000, max: Duration::from_millis(20), ..RetryPolicy::default() };
    let client = WhoClient::new(Retry::new(client, policy));
    let (stop, made, pid) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let place = url.strip_prefix("tcp://").or_else(|| url.strip_prefix("tcp+tls://"));
    std::thread::scope(|scope| {
        let (stop, made, pid) = (&stop, &made, &pid);
        let _over = Over(stop);
        for _ in 0..2 {
            let client = client.clone();
            scope.spawn(move || {
                let _over = Over(stop);
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.pid().wait().expect("no idempotent call fails");
                    pid.store(answer.into(), Ordering::Relaxed);
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        if let Some(place) = place {
            scope.spawn(move || {
                let _over = Over(stop);
                while !stop.load(Ordering::Relaxed) {
                    TcpStream::connect(place).expect("no connect is refused");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for round in 1..=3 {
            let before = made.load(Ordering::Relaxed);
            until("calls go through", || made.load(Ordering::Relaxed) > before + 500);
            // It is there before the old one goes, and waits for its place.
            let mut next = Process::start(&url, folder.path());
            if let Some(place) = place {
                until("the next process waits for the socket", || is_awaited(place));
            }
            let started = Instant::now();
            drop(server.input.take());
            assert_eq!(next.listening(), url);
            let listening = started.elapsed();
            until("the new one answers", || pid.load(Ordering::Relaxed) == u64::from(next.child.id()));
            let answered = started.elapsed();
            println!(
                "restart {round}: the new process listened {listening:?} after the word, and answered after {answered:?}"
            );
            assert_eq!(server.line(), "drained true");
            server = next;
        }
    });
    println!("{} calls, none failed, over 3 restarts", made.load(Ordering::Relaxed));
    std::io::stdout().flush().unwrap();
}

fn main() {
    if let Ok(url) = std::env::var("GIMMAL_RESTART_SERVE") {
        return serve(&url);
    }
    if let Ok(url) = std::env::var("GIMMAL_RESTART_URL") {
        return restart(&url);
    }
    let folder = tempfile::tempdir().unwrap();
    restart(&format!("shm://{}/restart", folder.path().display()));
    restart("tcp://127.0.0.1:0");
    if cfg!(feature = "tls") {
        restart("tcp+tls://127.0.0.1:0");
    }
}
