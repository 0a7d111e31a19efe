//! Two processes, one of which is killed; and what a process has left when all is closed.
//!
//! The other process is this test binary again, running one test that is ignored otherwise.

use std::process::{Child, Command, Stdio};

use super::*;

pub(super) const ROLE: &str = "GIMMAL_SHM_TEST";

/// Runs `test` of this binary in a process of its own, with `role` for it to read.
pub(super) fn again(test: &str, role: &str) -> Child {
    let name = format!("shm::tests::{test}");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok();
    if role.is_none() {
        println!("SKIP: this test is the other process of another one");
    }
    role
}

pub(super) fn connect_when_there(address: &Address, ring_bytes: u32) -> Side {
    let until = Instant::now() + 10 * SECOND;
    let port = Shm.open_port(&config(ring_bytes)).unwrap();
    let link = loop {
        match connect(address, &port.gate()) {
            Ok(mut connecting) => break connecting.poll(5 * SECOND).unwrap().unwrap(),
            Err(ConnectError::NobodyListens { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let mut side = Side::adopt(port, link);
    side.opened();
    side
}

#[test]
#[ignore = "the other process of the tests below"]
fn child_echo_server() {
    let Some(path) = role() else { return };
    let mut listener = listen(&Address::Shm { path: path.into() });
    loop {
        let port = Shm.open_port(&config(4096)).unwrap();
        let link = listener.accept(30 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
        let mut side = Side::adopt(port, link);
        side.opened();
        let mut open = true;
        while open {
            for event in side.wait_long() {
                match event {
                    Event::Frame { frame, .. } => {
                        side.commit(&frame, frame.tag().0);
                        side.give_back(frame);
                        side.port.flush();
                        // Half a frame: written and committed, never published.
                        side.commit(b"half", 0);
                    }
                    _ => open = false,
                }
            }
        }
    }
}

impl Side {
    /// As `wait`, asleep.
    fn wait_long(&mut self) -> Vec<Event> {
        loop {
            let events = self.poll();
            if !events.is_empty() {
                return events;
            }
            self.sleep(SECOND);
        }
    }
}

/// R23, R24, R77, R78: a killed peer is noticed by its socket, its half-written frame never comes, its place is free.
#[test]
fn r23_r24_r78_a_killed_server_is_gone_and_its_place_is_free() {
    let (folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    for asleep in [false, true] {
        let mut child = again("kill::child_echo_server", path.to_str().unwrap());
        let mut side = connect_when_there(&address, 4096);
        side.send(b"ping", 3);
        let answer = side.frame();
        assert_eq!((&*answer, answer.tag()), (&b"ping"[..], Tag(3)));
        side.give_back(answer);
        let error = Shm.listen(&address, &ListenOptions::default()).unwrap_err();
        assert!(matches!(error, crate::ListenError::InUse { .. }), "{error}");
        if asleep {
            // The credit of our frame may have come meanwhile, which is told once.
            while !side.port.arm() {
                assert!(side.poll().is_empty());
            }
        }
        let started = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        if asleep {
            assert!(readable(side.port.wait_fd(), SECOND));
            side.port.disarm();
        }
        assert_eq!(side.closed(), CloseReason::PeerGone { how: "socket closed" });
        assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
        println!("noticed after {:?} (asleep: {asleep})", started.elapsed());
        // The next server takes the place over, in the next round or here.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "socket and lock");
    }
    drop(listen(&address));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "the other process of the test below"]
fn child_client() {
    let Some(path) = role() else { return };
    let mut side = connect_when_there(&Address::Shm { path: path.into() }, 4096);
    for number in 0..50 {
        side.send(&[number], 0);
    }
    side.commit(b"half", 0);
    std::thread::sleep(30 * SECOND);
}

/// R24: what a client published before it was killed is delivered, then the close.
#[test]
fn r24_published_frames_survive_their_writer() {
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let mut listener = listen(&address);
    let mut child = again("kill::child_client", path.to_str().unwrap());
    let port = Shm.open_port(&config(4096)).unwrap();
    let link = listener.accept(10 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
    let mut side = Side::adopt(port, link);
    side.opened();
    // All 50 are there when the last is; only then it is killed, and only then they are read.
    let until = Instant::now() + 10 * SECOND;
    let super::super::port::Stage::Live(live) = &side.port.slots[side.conn.index() as usize].stage else {
        panic!()
    };
    while live.peer_word(49 * 16) == 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Closed { .. })) {
        events.extend(side.wait());
    }
    assert_eq!(events.len(), 51);
    assert!(matches!(events.pop(), Some(Event::Closed { reason: CloseReason::PeerGone { .. }, .. })));
    for (number, event) in events.into_iter().enumerate() {
        let Event::Frame { frame, .. } = event else { panic!("{event:?}") };
        assert_eq!(*frame, [number as u8]);
    }
}

/// I9: what a thousand connections used is given back. In a process of its own, where nothing else opens files.
#[test]
fn a_thousand_connections_leave_no_descriptor_and_no_mapping() {
    let status = again("kill::child_thousand", "run").wait().unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "the other process of the test above"]
fn child_thousand() {
    if role().is_none() {
        return;
    }
    let (folder, address) = place();
    let before = descriptors();
    let mut listener = listen(&address);
    let mut server = Side::adopt_none(Shm.open_port(&config(4096)).unwrap());
    let mut client = Side::adopt_none(Shm.open_port(&config(4096)).unwrap());
    let mut settled = (0, 0);
    for round in 0..1000 {
        let (accepted, connected) = links(&mut listener, &server.port.gate(), &client.port.gate());
        server.conn = server.port.adopt(accepted, Time(0)).unwrap();
        client.conn = client.port.adopt(connected, Time(0)).unwrap();
        client.opened();
        server.opened();
        client.send(b"hello", 0);
        let frame = server.frame();
        server.give_back(frame);
        if round % 10 == 0 {
            let loan = crate::Gate::allocate(&client.port.gate(), client.conn, 4096).unwrap();
            let offer = client.port.offer(client.conn, &loan).unwrap();
            server.port.pull(server.conn, offer, 1).unwrap();
            assert_eq!(server.wait().len(), 1);
        }
        let (closing, other) =
            if round % 2 == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let conn = closing.conn;
        closing.port.close(conn, CloseReason::Local, Time(0));
        assert_eq!(closing.closed(), CloseReason::Local);
        assert_eq!(other.closed(), CloseReason::Peer);
        if round == 10 {
            settled = (descriptors(), mappings());
        }
    }
    assert_eq!((descriptors(), mappings()), settled, "descriptors, mappings");
    drop((listener, server, client));
    assert_eq!(descriptors(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

impl Side {
    fn adopt_none(port: ShmPort) -> Self {
        Self { port, conn: ConnId::new(0, 0), batch: Batch::new(64), started: Instant::now() }
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("gimmal")).count()
}

/// R79: memory that cannot be had is an error of the set-up, with its step; and the peer is told.
#[test]
fn r79_no_memory_is_an_error_of_the_setup() {
    let status = again("kill::child_no_memory", "run").wait().unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "the other process of the test above"]
fn child_no_memory() {
    if role().is_none() {
        return;
    }
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let small = Shm.open_port(&config(4096)).unwrap();
    let large = Shm.open_port(&config(64 << 20)).unwrap();
    let mut connecting = connect(&address, &large.gate()).unwrap();
    let incoming = listener.accept(SECOND).unwrap().unwrap();
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let limit = rustix::process::Rlimit { current: Some((pages << 12) + (64 << 20)), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    let error = incoming.accept(&small.gate()).unwrap_err();
    let errno = rustix::io::Errno::NOMEM.raw_os_error();
    assert_eq!(error, crate::AcceptError::Port(crate::PortError::System { step: "mmap", errno }));
    let error = connecting.poll(SECOND).unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::Rejected { reason: crate::RejectReason::Overloaded, .. }),
        "{error}"
    );
}
