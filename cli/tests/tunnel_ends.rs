//! How a tunnel ends: connections by force while one side reads nothing, and its own ends that are killed meanwhile.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use common::Running;
use gimmal_transport::Instant;
use rustix::net::sockopt::set_socket_linger;

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `is` is true.
fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < LIMIT, "{what}: never");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A tunnel with one place at either end, and the server behind it.
struct Narrow {
    server: TcpListener,
    leave_arguments: Vec<String>,
    enter: Running,
    leave: Running,
}

fn start(arguments: &[String]) -> Running {
    Running::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Narrow {
    fn new(medium: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = match medium {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("shm://tunnel-ends-{}-{number}", std::process::id()),
        };
        let map = format!("it=tcp:{}", server.local_addr().unwrap());
        let leave_arguments =
            ["tunnel", "--listen", &url, "--map", &map, "--connections-max", "1", "--drain-s", "1", "--json"]
                .map(str::to_owned)
                .to_vec();
        let leave = start(&leave_arguments);
        let enter = Self::enter(&leave.at);
        Self { server, leave_arguments, enter, leave }
    }

    fn enter(to: &str) -> Running {
        let listen = ["tunnel", "--listen", "tcp:127.0.0.1:0", "--to", to];
        Running::start(&[&listen[..], &["--connections-max", "1", "--drain-s", "1", "--json"]].concat())
    }

    /// A program's connection, and what its server has of it.
    fn pair(&self) -> (TcpStream, TcpStream) {
        let at: SocketAddr = self.enter.at.strip_prefix("tcp:").unwrap().parse().unwrap();
        let connect = || TcpStream::connect(at).unwrap();
        let (mut program, mut accepted) = (connect(), None);
        soon("a program reaches its server", || {
            // An end that has just been started again may take too long to be there.
            if program.take_error().unwrap().is_some() {
                program = connect();
            }
            accepted = self.server.accept().ok();
            accepted.is_some()
        });
        let (server, _) = accepted.unwrap();
        server.set_nonblocking(false).unwrap();
        for stream in [&program, &server] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
        }
        (program, server)
    }

    /// Another program is served.
    fn serves(&self) {
        let (mut program, mut server) = self.pair();
        let mut read = [0; 4];
        program.write_all(b"ping").unwrap();
        server.read_exact(&mut read).unwrap();
        server.write_all(b"pong").unwrap();
        program.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"pong");
    }
}

/// Writes until nothing more goes.
fn fill(mut stream: &TcpStream) {
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let error = loop {
        if let Err(error) = stream.write(&[7; 1 << 18]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// Waits until the connection has ended by force, without a read.
fn is_broken(stream: &TcpStream) {
    soon("the end by force", || {
        stream.take_error().unwrap().is_some_and(|error| error.kind() == ErrorKind::ConnectionReset)
    });
}

/// Whichever of the two writes, the other one does not read. `is_half`: that one has ended its own direction before.
fn a_full_way(narrow: &Narrow, (from_program, is_half): (bool, bool)) -> (TcpStream, TcpStream) {
    let (program, server) = narrow.pair();
    let (writer, hung) = if from_program { (program, server) } else { (server, program) };
    if is_half {
        hung.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&writer).read(&mut [0]).unwrap(), 0);
    }
    fill(&writer);
    (writer, hung)
}

const WAYS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];

#[test]
fn an_end_by_force_passes_what_nobody_reads() {
    for medium in ["shm", "tcp"] {
        let narrow = Narrow::new(medium);
        for way in WAYS {
            let (writer, hung) = a_full_way(&narrow, way);
            set_socket_linger(&writer, Some(Duration::ZERO)).unwrap();
            drop(writer);
            is_broken(&hung);
            // It is still open: its place is free all the same.
            narrow.serves();
        }
    }
}

#[test]
fn the_loss_of_the_other_end_passes_what_nobody_reads() {
    for medium in ["shm", "tcp"] {
        for way in WAYS {
            let mut narrow = Narrow::new(medium);
            let (writer, hung) = a_full_way(&narrow, way);
            // The end at the hung one learns that the other is gone.
            if way.0 {
                narrow.enter.signal(rustix::process::Signal::KILL);
                is_broken(&hung);
                narrow.enter = Narrow::enter(&narrow.leave.at);
            } else if medium == "shm" {
                narrow.leave.signal(rustix::process::Signal::KILL);
                is_broken(&hung);
                narrow.leave = start(&narrow.leave_arguments);
            } else {
                // Another process could take the port meanwhile.
                continue;
            }
            narrow.serves();
            drop(writer);
        }
    }
}
