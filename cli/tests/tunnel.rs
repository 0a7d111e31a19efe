//! `gimmal tunnel` both ways round: programs that know nothing of it, at both ends.
//!
//! Each case runs through the tunnel, and [`breaks_are_found`] through proxies that break it on purpose.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    process::Command,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use common::Running;
use gimmal_transport::Instant;
use rustix::{
    net::sockopt::set_socket_linger,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

const LIMIT: Duration = Duration::from_secs(30);

/// Both ends of a tunnel to a server of this test, or another way to it.
struct Way {
    /// Where programs connect.
    at: SocketAddr,
    /// Their server.
    server: TcpListener,
    ends: Option<(Running, Running)>,
    /// No read or write waits longer.
    limit: Duration,
}

fn url(medium: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match medium {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        _ => format!("shm://tunnel-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
    }
}

impl Way {
    fn tunnel(medium: &str, more: &[&str]) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let map = format!("it=tcp:{}", server.local_addr().unwrap());
        let (url, drain) = (url(medium), ["--json", "--drain-s", "5"]);
        let mut leave = vec!["tunnel", "--listen", &url, "--map", &map];
        leave.extend(drain.iter().chain(more));
        let leave = Running::start(&leave);
        let (listen, to) = ("tcp:127.0.0.1:0", leave.at.clone());
        let mut enter = vec!["tunnel", "--listen", listen, "--to", &to];
        enter.extend(drain);
        let enter = Running::start(&enter);
        let at = enter.at.strip_prefix("tcp:").unwrap().parse().unwrap();
        Self { at, server, ends: Some((enter, leave)), limit: LIMIT }
    }

    /// A program's connection, and what its server has of it.
    fn pair(&self) -> (TcpStream, TcpStream) {
        let program = TcpStream::connect(self.at).unwrap();
        let (server, _) = self.server.accept().unwrap();
        for stream in [&program, &server] {
            stream.set_read_timeout(Some(self.limit)).unwrap();
            stream.set_write_timeout(Some(self.limit)).unwrap();
        }
        (program, server)
    }
}

/// Bytes that tell where they belong.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at / 7 + at * seed) % 251).unwrap()).collect()
}

fn read_all(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map(|_| all)
}

fn check(is: bool, what: &str) -> Result<(), String> {
    if is { Ok(()) } else { Err(what.to_owned()) }
}

/// 8 MiB go each way at once, byte for byte.
fn both_ways(way: &Way) -> Result<(), String> {
    let (program, server) = way.pair();
    let (up, down) = (pattern(8 << 20, 3), pattern(8 << 20, 5));
    let write = |mut stream: &TcpStream, bytes: &[u8]| {
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
    };
    thread::scope(|scope| {
        scope.spawn(|| write(&program, &up));
        scope.spawn(|| write(&server, &down));
        let came_down = scope.spawn(|| read_all(&program));
        let came_up = read_all(&server).map_err(|error| error.to_string())?;
        let came_down = came_down.join().unwrap().map_err(|error| error.to_string())?;
        check(came_up == up, "what went up")?;
        check(came_down == down, "what went down")
    })
}

/// The end of one direction is seen while the other goes on.
fn half_close(way: &Way) -> Result<(), String> {
    let (mut program, mut server) = way.pair();
    program.write_all(b"question").unwrap();
    program.shutdown(Shutdown::Write).unwrap();
    let question = read_all(&server).map_err(|error| format!("the question: {error}"))?;
    check(question == b"question", "the question")?;
    thread::sleep(Duration::from_millis(50));
    server.write_all(b"answer").map_err(|error| format!("the answer: {error}"))?;
    drop(server);
    check(read_all(&program).map_err(|error| error.to_string())? == b"answer", "the answer")
}

/// A connection that ends by force ends so on the other side, whichever side that is.
fn reset(way: &Way) -> Result<(), String> {
    for from_program in [true, false] {
        let (program, server) = way.pair();
        let (one, other) = if from_program { (program, server) } else { (server, program) };
        set_socket_linger(&one, Some(Duration::ZERO)).unwrap();
        drop(one);
        let kind = read_all(&other).err().map(|error| error.kind());
        check(kind == Some(ErrorKind::ConnectionReset), &format!("a reset, and not {kind:?}"))?;
    }
    Ok(())
}

/// A reader that reads nothing stops its writer, and another connection goes on.
fn back_pressure(way: &Way) -> Result<(), String> {
    let (mut program, mut server) = way.pair();
    let (mut other_program, mut other_server) = way.pair();
    program.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let (chunk, mut sent) = (vec![7; 1 << 20], 0usize);
    let stopped = loop {
        match program.write(&chunk) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error.kind(),
        }
        check(sent < 256 << 20, "the writer is stopped")?;
    };
    check(stopped == ErrorKind::WouldBlock, &format!("stopped by {stopped:?}"))?;
    other_program.write_all(b"ping").unwrap();
    let mut ping = [0; 4];
    other_server.read_exact(&mut ping).map_err(|error| format!("beside it: {error}"))?;
    let reading = thread::spawn(move || {
        let (mut buffer, mut came) = (vec![0; 1 << 16], 0usize);
        loop {
            match server.read(&mut buffer) {
                Ok(0) | Err(_) => return came,
                Ok(bytes) => came += bytes,
            }
        }
    });
    drop(program);
    check(reading.join().unwrap() == sent, "every byte of the slow connection")
}

/// A server that writes first is heard, and slow pieces arrive as they are written.
fn slow_start(way: &Way) -> Result<(), String> {
    let (mut program, mut server) = way.pair();
    for round in 0..5u8 {
        server.write_all(&[round; 3]).unwrap();
        let (began, mut piece) = (Instant::now(), [0; 3]);
        program.read_exact(&mut piece).map_err(|error| format!("a piece: {error}"))?;
        check(piece == [round; 3], "a piece")?;
        check(began.elapsed() < Duration::from_secs(2), "a piece at once")?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

type Case = (&'static str, fn(&Way) -> Result<(), String>);
const CASES: [Case; 5] = [
    ("both ways", both_ways),
    ("half close", half_close),
    ("reset", reset),
    ("back-pressure", back_pressure),
    ("slow start", slow_start),
];

fn carries(medium: &str) {
    let mut way = Way::tunnel(medium, &[]);
    for (name, case) in CASES {
        case(&way).unwrap_or_else(|error| panic!("{name} over {medium}: {error}"));
    }
    let (enter, leave) = way.ends.take().unwrap();
    let (enter, leave) = (enter.stop(), leave.stop());
    assert_eq!(enter["drained"], true, "{enter}");
    // A server's reset may come before its connection is known here to be one.
    let number = |end: &serde_json::Value, name| end[name].as_u64().unwrap();
    let left = number(&leave, "connections") + number(&leave, "refused");
    assert_eq!(number(&enter, "connections"), left, "{enter} {leave}");
    assert!(enter["bytes_in"].as_u64().unwrap() > 8 << 20, "{enter}");
}

#[test]
fn connections_are_carried_over_shared_memory() {
    carries("shm");
}

#[test]
fn connections_are_carried_over_tcp() {
    carries("tcp");
}

/// What a proxy does to one direction of a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Broken {
    /// Changes a byte of each 100,000.
    Byte,
    /// The end of one direction ends both.
    BothEnds,
    /// An end by force becomes an end in order.
    PoliteReset,
    /// Reads all it gets, whatever becomes of it.
    NoLimit,
    /// Keeps small pieces until there are more.
    Hoards,
}

/// A way by a proxy of this test that breaks something.
fn broken(how: Broken) -> Way {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (front, to) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.local_addr().unwrap());
    let at = front.local_addr().unwrap();
    thread::spawn(move || {
        for program in front.incoming() {
            let (program, server) = (program.unwrap(), TcpStream::connect(to).unwrap());
            let (program_too, server_too) = (program.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || direction(how, &program, &server));
            thread::spawn(move || direction(how, &server_too, &program_too));
        }
    });
    Way { at, server, ends: None, limit: Duration::from_secs(2) }
}

fn direction(how: Broken, mut from: &TcpStream, mut to: &TcpStream) {
    let (mut buffer, mut kept, mut moved) = (vec![0; 1 << 16], Vec::new(), 0usize);
    loop {
        let (bytes, is_reset) = match from.read(&mut buffer) {
            Ok(bytes) => (bytes, false),
            Err(_) => (0, true),
        };
        if bytes == 0 {
            let _ = to.write_all(&kept);
            if is_reset && how != Broken::PoliteReset {
                let _ = set_socket_linger(to, Some(Duration::ZERO));
            }
            let end = if how == Broken::BothEnds || is_reset { Shutdown::Both } else { Shutdown::Write };
            let _ = to.shutdown(end);
            return;
        }
        let piece = &mut buffer[..bytes];
        if how == Broken::Byte && (moved + bytes) / 100_000 > moved / 100_000 {
            piece[0] ^= 1;
        }
        moved += bytes;
        if how == Broken::NoLimit || how == Broken::Hoards && bytes < 100 {
            kept.extend_from_slice(piece);
            continue;
        }
        if to.write_all(piece).is_err() {
            return;
        }
    }
}

/// Every case fails on the proxy that breaks what it is about, and passes on none that it should not.
#[test]
fn breaks_are_found() {
    for (how, found_by) in [
        (Broken::Byte, "both ways"),
        (Broken::BothEnds, "half close"),
        (Broken::PoliteReset, "reset"),
        (Broken::NoLimit, "back-pressure"),
        (Broken::Hoards, "slow start"),
    ] {
        let (_, case) = CASES.into_iter().find(|(name, _)| *name == found_by).unwrap();
        let way = broken(how);
        let ended = thread::spawn(move || case(&way)).join();
        assert!(!matches!(ended, Ok(Ok(()))), "{found_by} passes on a proxy that has {how:?}");
    }
}

#[test]
fn a_name_that_nothing_stands_for_and_a_server_that_is_gone_are_resets() {
    let way = Way::tunnel("shm", &[]);
    let (enter, leave) = way.ends.unwrap();
    let unknown = Running::start(&[
        "tunnel",
        "--listen",
        "tcp:127.0.0.1:0",
        "--to",
        &format!("{}/other", leave.at.trim_end_matches("/it")),
        "--json",
    ]);
    drop(way.server);
    for end in [&enter, &unknown] {
        let at: SocketAddr = end.at.strip_prefix("tcp:").unwrap().parse().unwrap();
        let program = TcpStream::connect(at).unwrap();
        program.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(read_all(&program).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(leave.stop()["refused"], 2);
}

/// Waits until `is` is true.
fn soon(is: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is() && began.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
    is()
}

/// How long the programs' connections outlive an end of their tunnel that is killed.
fn outlives(medium: &str, kills_enter: bool) -> Duration {
    let mut way = Way::tunnel(medium, &[]);
    // The first connection makes the one between the ends.
    drop(way.pair());
    let (program, server) = way.pair();
    let (enter, leave) = way.ends.take().unwrap();
    let (killed, left) = if kills_enter { (enter, leave) } else { (leave, enter) };
    let sockets = left.sockets();
    killed.signal(rustix::process::Signal::KILL);
    let began = Instant::now();
    // The kernel ends the connection of a process that is killed; the other end of the tunnel resets its own.
    let _ = (read_all(&program), read_all(&server));
    let outlived = began.elapsed();
    // Gone are the program's connection, and at least the other end's.
    assert!(soon(|| left.sockets() + 2 <= sockets), "{} of {sockets} sockets over {medium}", left.sockets());
    left.stop();
    outlived
}

#[test]
fn a_tunnel_that_is_killed_ends_its_connections() {
    for medium in ["shm", "tcp"] {
        for kills_enter in [true, false] {
            // A machine with much to do may be late, though not often: the median counts.
            let mut tried: Vec<Duration> = (0..5).map(|_| outlives(medium, kills_enter)).collect();
            tried.sort_unstable();
            assert!(tried[2] < Duration::from_secs(1), "{tried:?} over {medium}");
        }
    }
}

/// As many connections as a tunnel has by default are open at once, each with its own bytes; one more waits for another's end.
#[test]
fn a_thousand_connections_are_open_at_once() {
    const CONNECTIONS: usize = 1024;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 4096) {
        gimmal_testkit::skip("this user may not open 4,096 files");
        return;
    }
    for medium in ["shm", "tcp"] {
        let mut way = Way::tunnel(medium, &[]);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let mut pairs: Vec<_> = (0..CONNECTIONS).map(|_| way.pair()).collect();
        let mut late = TcpStream::connect(way.at).unwrap();
        late.write_all(b"last").unwrap();
        for round in 0..2 {
            for (at, (program, server)) in pairs.iter_mut().enumerate() {
                program.write_all(&pattern(100, at + round)).unwrap();
                server.write_all(&pattern(200, at + round)).unwrap();
            }
            for (at, (program, server)) in pairs.iter_mut().enumerate() {
                let (mut up, mut down) = ([0; 100], [0; 200]);
                server.read_exact(&mut up).unwrap();
                program.read_exact(&mut down).unwrap();
                assert!(up[..] == pattern(100, at + round) && down[..] == pattern(200, at + round));
            }
        }
        way.server.set_nonblocking(true).unwrap();
        assert_eq!(way.server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        way.server.set_nonblocking(false).unwrap();
        drop(pairs.pop());
        let (mut server, _) = way.server.accept().unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let mut last = [0; 4];
        server.read_exact(&mut last).unwrap();
        assert_eq!(&last, b"last");
        drop((pairs, late, server));
        let (enter, leave) = way.ends.take().unwrap();
        assert_eq!(enter.stop()["connections"], CONNECTIONS + 1);
        assert_eq!(leave.stop()["refused"], 0);
    }
}

/// Answers each connection with what it asks.
fn echo(server: TcpListener) {
    thread::spawn(move || {
        for program in server.incoming() {
            let program = program.unwrap();
            thread::spawn(move || std::io::copy(&mut &program, &mut &program));
        }
    });
}

/// Asks over a connection of its own.
fn asks(at: SocketAddr) -> std::io::Result<()> {
    let mut program = TcpStream::connect(at)?;
    program.set_read_timeout(Some(LIMIT))?;
    let mut answer = [0; 8];
    program.write_all(b"question")?;
    program.read_exact(&mut answer)?;
    assert_eq!(&answer, b"question");
    Ok(())
}

/// Says so when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_restart_under_load_loses_only_what_was_open() {
    const PROGRAMS: usize = 4;
    for is_killed in [true, false] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (url, map) = (url("shm"), format!("it=tcp:{}", server.local_addr().unwrap()));
        echo(server);
        let arguments = ["tunnel", "--listen", &url, "--map", &map, "--json"];
        let leave = Running::start(&arguments);
        let enter = Running::start(&["tunnel", "--listen", "tcp:127.0.0.1:0", "--to", &leave.at, "--json"]);
        let at: SocketAddr = enter.at.strip_prefix("tcp:").unwrap().parse().unwrap();
        let (asked, lost, is_over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let ask_on = || {
            while !is_over.load(Ordering::Relaxed) {
                let counter = if asks(at).is_ok() { &asked } else { &lost };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        let ask_more = |more: usize| {
            let before = asked.load(Ordering::Relaxed);
            let began = Instant::now();
            while asked.load(Ordering::Relaxed) < before + more {
                assert!(began.elapsed() < LIMIT, "nothing is answered");
                thread::sleep(Duration::from_millis(1));
            }
        };
        let leave = thread::scope(|scope| {
            let programs = [(); PROGRAMS].map(|()| scope.spawn(ask_on));
            let over = Over(&is_over);
            ask_more(100);
            if is_killed {
                // By SIGKILL.
                drop(leave);
            } else {
                leave.stop();
            }
            let leave = Running::start(&arguments);
            ask_more(100);
            drop(over);
            for program in programs {
                program.join().unwrap();
            }
            leave
        });
        let lost = lost.into_inner();
        assert!(
            lost <= PROGRAMS,
            "killed: {is_killed}; {lost} connections are lost, and {PROGRAMS} were open"
        );
        enter.stop();
        leave.stop();
    }
}

#[test]
fn unix_sockets_idle_connections_and_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let (path, front) = (folder.path().join("server"), folder.path().join("front"));
    let server = UnixListener::bind(&path).unwrap();
    let (url, map) = (url("shm"), format!("it=unix:{}", path.display()));
    let arguments =
        ["tunnel", "--listen", &url, "--map", &map, "--proxy-protocol", "--idle-s", "1", "--json"];
    let leave = Running::start(&arguments);
    let listen = format!("unix:{}", front.display());
    let enter = Running::start(&[
        "tunnel",
        "--listen",
        &listen,
        "--listen",
        "tcp:127.0.0.1:0",
        "--to",
        &leave.at,
        "--json",
    ]);
    assert_eq!(enter.at, listen);
    let mut program = UnixStream::connect(&front).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    let mut header = [0; 16];
    accepted.read_exact(&mut header).unwrap();
    // A unix socket has no addresses to tell.
    assert_eq!(header[12..], [0x20, 0, 0, 0]);
    program.write_all(b"x").unwrap();
    accepted.read_exact(&mut header[..1]).unwrap();
    // Nothing moves: both connections end.
    program.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = Vec::new();
    let _ = program.read_to_end(&mut rest);
    assert!(rest.is_empty());
    enter.stop();
    assert!(!front.exists(), "the socket is unlinked");
    assert_eq!(leave.stop()["idle"], 1);
}

#[test]
fn sockets_that_systemd_hands_over_are_listened_at() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (front, map) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), format!("it=tcp:{}", server.local_addr().unwrap()));
    let at = front.local_addr().unwrap();
    echo(server);
    let leave = Running::start(&["tunnel", "--listen", &url("shm"), "--map", &map, "--json"]);
    // As sd_listen_fds(3) says: the sockets begin at descriptor 3.
    let script = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" tunnel --listen systemd --to "$1" --json 3<&0 </dev/null"#;
    let enter = Running::start_by(
        Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_gimmal"), &leave.at])
            .stdin(OwnedFd::from(front)),
    );
    assert_eq!(enter.at, format!("tcp:{at}"));
    asks(at).unwrap();
    enter.stop();
    leave.stop();
}

#[test]
fn names_are_read_again_at_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
    let file = folder.path().join("map");
    let write = |at: usize| {
        let line = format!("it=tcp:{}\n", servers[at].local_addr().unwrap());
        std::fs::write(&file, line).unwrap();
    };
    write(0);
    let url = url("shm");
    let leave = Running::start(&["tunnel", "--listen", &url, "--map-file", file.to_str().unwrap(), "--json"]);
    let enter = Running::start(&["tunnel", "--listen", "tcp:127.0.0.1:0", "--to", &leave.at, "--json"]);
    let at: SocketAddr = enter.at.strip_prefix("tcp:").unwrap().parse().unwrap();
    let first = TcpStream::connect(at).unwrap();
    servers[0].accept().unwrap();
    write(1);
    // The end at the programs has nothing to read again, and goes on.
    for end in [&enter, &leave] {
        end.signal(rustix::process::Signal::HUP);
    }
    servers[1].set_nonblocking(true).unwrap();
    let began = Instant::now();
    let mut programs = vec![first];
    while servers[1].accept().is_err() {
        assert!(began.elapsed() < LIMIT, "the new name is not taken");
        programs.push(TcpStream::connect(at).unwrap());
        thread::sleep(Duration::from_millis(20));
    }
    // One that is wrong changes nothing.
    std::fs::write(&file, "nonsense").unwrap();
    leave.signal(rustix::process::Signal::HUP);
    thread::sleep(Duration::from_millis(100));
    programs.push(TcpStream::connect(at).unwrap());
    while servers[1].accept().is_err() {
        assert!(began.elapsed() < LIMIT, "the name is lost");
        thread::sleep(Duration::from_millis(20));
    }
    // Connections that nobody accepted end with their server.
    drop((programs, servers));
    enter.stop();
    leave.stop();
}
