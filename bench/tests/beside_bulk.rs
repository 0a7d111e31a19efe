//! Small messages beside bulk over TCP: 64-byte echoes while the server pulls 64 MiB after 64 MiB through the same
//! connection, and a raw socket's echoes beside a stream of iperf3. Judged only on a machine that does nothing else:
//! `cargo test --release -p gimmal-bench --test beside_bulk -- --ignored --nocapture`.

#![cfg(feature = "tcp")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test may fail; times far below 2^53 ns"
)]

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use gimmal_bench::{
    echo::Echo,
    plan::{ECHO, READ, TOUCH, engine_plan, head},
};
use gimmal_engine::{
    Acceptor, App, Idle, Inline, Io, Message,
    transport::{
        ConnId, Gate as _, Instant, ListenOptions, Listener as _, Port, Provider as _, copy, tcp::Tcp,
    },
    worker::thread::pin_to,
};
use gimmal_testkit::skip;

const BYTES: usize = 64;
const LOAN_BYTES: usize = 64 << 20;
/// How long each way echoes, in each of the rounds.
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
const WARM_UP: Duration = Duration::from_millis(500);
/// From one echo to the next, unless it takes longer.
const PERIOD: Duration = Duration::from_micros(100);

/// Counts what was answered.
#[derive(Debug, Default)]
struct Caller {
    echoes: u64,
    pulls: u64,
}

impl App for Caller {
    type Command = std::convert::Infallible;

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, message: Message<'_>) {
        self.echoes += u64::from(message.head.kind == ECHO);
        self.pulls += u64::from(message.head.kind == READ);
    }

    fn command<P: Port>(&mut self, _: &mut Io<'_, P>, command: Self::Command) {
        match command {}
    }
}

/// How long this thread has waited for its core so far: others ran there.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// What 99 % of a round's echoes did not exceed, by the clock of each, and how many there were.
struct Tail {
    /// From when it was due: what it waited for a core, or for the echo before it, counts.
    due_ns: u128,
    /// From when it was sent.
    sent_ns: u128,
    echoes: usize,
}

/// Makes round trips for a round, each when it is due, or at once if the one before took longer; `turn` runs meanwhile. An echo that
/// stops for long is one echo, but all that were due meanwhile are late.
fn timed<S>(mut state: S, mut turn: impl FnMut(&mut S), mut call: impl FnMut(&mut S)) -> Tail {
    // The first pulls and the stream's first seconds fetch memory from the kernel.
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        call(&mut state);
    }
    let (start, before, mut took) = (Instant::now(), waited(), Vec::new());
    while start.elapsed() < ROUND {
        let due = start + PERIOD.saturating_mul(u32::try_from(took.len()).unwrap());
        while !due.has_passed() {
            turn(&mut state);
        }
        let sent = Instant::now();
        call(&mut state);
        took.push([due.elapsed().as_nanos(), sent.elapsed().as_nanos()]);
    }
    let waited = waited().saturating_sub(before);
    let [due_ns, sent_ns] = [0, 1].map(|clock| {
        let mut took: Vec<u128> = took.iter().map(|took| took[clock]).collect();
        took.sort_unstable();
        let parts = [500, 900, 950, 980, 990, 999].map(|part| took[took.len() * part / 1000] / 1000);
        let since = ["it was due", "it was sent"][clock];
        println!("  p50, 90, 95, 98, 99, 99.9 since {since}: {parts:?} us; {waited:?} without a core");
        took[took.len() * 99 / 100]
    });
    Tail { due_ns, sent_ns, echoes: took.len() }
}

/// The engine's echoes beside its pulls.
fn engine() -> Tail {
    let stop = Arc::new(AtomicBool::new(false));
    let (ready, listening) = mpsc::channel();
    let stopped = Arc::clone(&stop);
    let server = thread::spawn(move || {
        pin_to(1).unwrap();
        let plan = engine_plan(BYTES, 0, Idle::Spin).unwrap();
        let mut server = Inline::new(&Tcp, &plan, Echo::default()).unwrap();
        let listener = Tcp.listen(&"tcp://127.0.0.1:0".parse().unwrap(), &ListenOptions::default()).unwrap();
        let address = listener.address();
        let _acceptor = Acceptor::spawn(listener, vec![server.handle()]).unwrap();
        ready.send(address).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            server.turn();
        }
    });
    let plan = engine_plan(BYTES, 0, Idle::Spin).unwrap();
    let mut client = Inline::new(&Tcp, &plan, Caller::default()).unwrap();
    let (conn, _) = client.connect(&listening.recv().unwrap()).unwrap();
    let gate = client.handle().gate().clone();
    let (mut echoes, mut lent) = (0, 0);
    let measured = timed(
        &mut client,
        |client| {
            let _ = client.turn();
        },
        |client| {
            if client.app().pulls == lent {
                let loan = gate.allocate(conn, LOAN_BYTES).unwrap();
                lent += 1;
                client
                    .with(|_, io| io.send_with_loan(conn, head(TOUCH, lent), loan, 0, |_| Some(0)))
                    .unwrap();
            }
            echoes += 1;
            let send = |out: &mut [u8]| {
                copy(&[7; BYTES], out);
                Some(BYTES)
            };
            client.with(|_, io| io.send(conn, head(ECHO, echoes), BYTES, send)).unwrap();
            while client.app().echoes < echoes {
                client.turn();
            }
        },
    );
    println!("  {lent} loans were pulled meanwhile");
    assert!(lent > 1, "nothing was pulled");
    client.close(Duration::from_secs(1));
    stop.store(true, Ordering::Relaxed);
    server.join().unwrap();
    measured
}

/// Reads `bytes` bytes; `false`: the peer has gone.
fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> bool {
    let mut got = 0;
    while got < bytes.len() {
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return false,
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    true
}

/// A program that ends with this: the child is the program itself, not one that waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn iperf3(core: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new("taskset");
    command.args(["-c", core, "iperf3"]).args(arguments);
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// A raw socket's echoes, polled, beside a stream of iperf3 on the same two cores.
fn raw() -> Tail {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let _server = iperf3("1", &["-s", "-1", "-p", &port]);
    let until = Instant::now() + Duration::from_secs(10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        pin_to(1).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; BYTES];
        while read(&mut stream, &mut bytes) {
            stream.write_all(&bytes).unwrap();
        }
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    thread::sleep(Duration::from_millis(300));
    let mut client = iperf3("0", &["-c", "127.0.0.1", "-p", &port, "-t", "30"]);
    thread::sleep(Duration::from_millis(500));
    assert!(client.0.try_wait().unwrap().is_none() && Instant::now() < until, "iperf3 does not run");
    let measured = timed(
        &mut stream,
        |_| std::hint::spin_loop(),
        |stream| {
            let mut bytes = [7; BYTES];
            stream.write_all(&bytes).unwrap();
            assert!(read(stream, &mut bytes), "the echo has gone");
        },
    );
    drop((client, stream));
    echo.join().unwrap();
    measured
}

#[test]
#[ignore = "a measurement, for a release build and a quiet machine"]
fn an_echo_beside_a_pull_waits_at_most_three_times_as_long_as_a_raw_one_beside_iperf3() {
    if Command::new("iperf3").arg("-v").stdout(Stdio::null()).status().is_err() {
        return skip("iperf3 is not installed");
    }
    pin_to(0).unwrap();
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (ours, theirs) = (engine(), raw());
            for (name, Tail { due_ns, sent_ns, echoes }) in
                [("beside a pull", &ours), ("raw, beside iperf3", &theirs)]
            {
                let [due, sent] = [due_ns, sent_ns].map(|ns| ns / 1000);
                println!(
                    "{name}: p99 {due} us since it was due, {sent} us since it was sent, {echoes} echoes"
                );
            }
            println!("since they were sent: {:.2}", ours.sent_ns as f64 / theirs.sent_ns as f64);
            ours.due_ns as f64 / theirs.due_ns as f64
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("p99 over p99: {ratios:.2?}");
    let median = ratios[ROUNDS / 2];
    assert!(median <= 3.0, "p99 is {median:.2} x that of a raw socket beside iperf3");
}
