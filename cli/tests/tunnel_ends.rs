//! How a tunnel ends: connections by force while one side reads nothing, and its own ends that are killed meanwhile.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::OpenOptionsExt as _, net::UnixStream},
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use common::Running;
use gimmal_transport::Instant;
use rustix::{
    fs::OFlags,
    net::sockopt::{set_socket_linger, socket_acceptconn},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open},
};

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

fn shm() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("shm://tunnel-ends-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Narrow {
    fn new(medium: &str) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let url = if medium == "tcp" { "tcp://127.0.0.1:0".to_owned() } else { shm() };
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
                narrow.enter.kill();
                is_broken(&hung);
                narrow.enter = Narrow::enter(&narrow.leave.at);
            } else if medium == "shm" {
                narrow.leave.kill();
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

/// A program that waits for the other end sees no end in order when this one ends: it was served nothing.
#[test]
fn a_program_that_still_waits_is_reset() {
    for signal in [Signal::TERM, Signal::KILL] {
        let mut enter = Narrow::enter(&format!("{}/it", shm()));
        let at: SocketAddr = enter.at.strip_prefix("tcp:").unwrap().parse().unwrap();
        let idle = enter.sockets();
        let mut program = TcpStream::connect(at).unwrap();
        program.set_read_timeout(Some(LIMIT)).unwrap();
        soon("it is accepted", || enter.sockets() > idle);
        enter.signal(signal);
        assert_eq!(program.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        soon("it ends", || enter.ended().is_some());
    }
}

/// A tunnel whose output nobody reads, from its start on.
struct Unread(Child);

impl Unread {
    fn start(arguments: &[&str]) -> Self {
        let unread = || std::io::pipe().unwrap().1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_gimmal"));
        // Its log is never silent.
        command.args(arguments).env("GIMMAL_LOG", "trace").stdout(unread()).stderr(unread());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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

/// Whether a program's question is answered.
fn asks(program: &UnixStream) -> bool {
    program.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut program, mut answer) = (program, [0; 4]);
    program.write_all(b"ping").is_ok() && program.read_exact(&mut answer).is_ok() && &answer == b"ping"
}

/// The log, the lines that say where it listens, a map that is wrong, and the counters: none of them ends it.
#[test]
fn a_tunnel_goes_on_when_nobody_reads_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let (file, front) = (folder.path().join("map"), folder.path().join("front"));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    std::fs::write(&file, format!("it=tcp:{}\n", server.local_addr().unwrap())).unwrap();
    let (url, listen) = (shm(), format!("unix:{}", front.display()));
    let mut leave = Unread::start(&["tunnel", "--listen", &url, "--map-file", file.to_str().unwrap()]);
    let mut enter = Unread::start(&["tunnel", "--listen", &listen, "--to", &format!("{url}/it")]);
    echo(server);
    let asks = || UnixStream::connect(&front).is_ok_and(|program| asks(&program));
    soon("it carries", asks);
    // The end at the server reads its names from a pipe now, so that it is known when it has.
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    leave.signal(Signal::HUP);
    let mut names = None;
    soon("the names are read again", || {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        names = OpenOptions::new().write(true).custom_flags(flags).open(&file).ok();
        names.is_some()
    });
    names.unwrap().write_all(b"nonsense\n").unwrap();
    soon("it carries with the names that it had", asks);
    for end in [&mut enter, &mut leave] {
        end.signal(Signal::TERM);
        soon("it ends", || end.0.try_wait().unwrap().is_some());
        assert!(end.0.wait().unwrap().success(), "it ends in order");
    }
}

/// A tunnel that nobody can reach any more ends as one that has failed, so that systemd starts it again.
#[test]
fn one_whose_listener_is_lost_ends_as_failed() {
    for words in [["tunnel", "--map", "it=tcp:127.0.0.1:1"], ["edge", "--to", "http://127.0.0.1:1"]] {
        let (mut errors, stderr) = std::io::pipe().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gimmal"));
        command.args(words).args(["--listen", &shm(), "--json"]).stderr(stderr);
        let mut end = Running::start_by(&mut command);
        // This end of the pipe is the child's alone.
        drop(command);
        let process = pidfd_open(end.pid(), PidfdFlags::empty()).unwrap();
        let socket = (3..1024).find_map(|number| {
            let copy = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
            socket_acceptconn(&copy).is_ok_and(|listens| listens).then_some(copy)
        });
        let Some(socket) = socket else {
            gimmal_testkit::skip("this user may not reach into the files of its own processes");
            return;
        };
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
        soon("it ends", || end.ended().is_some());
        assert_eq!(end.ended().unwrap().code(), Some(1));
        let mut said = String::new();
        errors.read_to_string(&mut said).unwrap();
        assert!(said.contains("gimmal: no longer listening"), "{said}");
    }
}

/// Nobody connects to the first two of three.
#[test]
fn listeners_share_the_places_for_connections() {
    let folder = tempfile::tempdir().unwrap();
    let fronts = ["one", "two", "three"].map(|name| folder.path().join(name));
    let [one, two, three] = fronts.each_ref().map(|front| format!("unix:{}", front.display()));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let map = format!("it=tcp:{}", server.local_addr().unwrap());
    echo(server);
    let leave = Running::start(&["tunnel", "--listen", &shm(), "--map", &map, "--json"]);
    let listen = ["tunnel", "--listen", &one, "--listen", &two, "--listen", &three];
    let enter =
        Running::start(&[&listen[..], &["--to", &leave.at, "--connections-max", "1", "--json"]].concat());
    assert_eq!(enter.at, one);
    for _ in 0..2 {
        for front in fronts.iter().rev() {
            let mut program = None;
            soon("it listens", || {
                program = UnixStream::connect(front).ok();
                program.is_some()
            });
            assert!(asks(&program.unwrap()), "{}", front.display());
        }
    }
    enter.stop();
    leave.stop();
}
