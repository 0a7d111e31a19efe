//! Two processes, one of which is killed; and what a process has left when all is closed.

use std::process::{Child, Stdio};

use super::*;
use crate::{
    Instant,
    testing::process::{alone, role, this_binary},
};

/// Starts `test` in a process of its own.
pub(super) fn again(test: &str, role: &str) -> Child {
    this_binary(test, role).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

pub(super) fn connect_when_there(address: &Address, ring_bytes: u32) -> Side {
    let until = Instant::now() + SECOND.saturating_mul(30);
    let port = Shm.open_port(&config(ring_bytes)).unwrap();
    let link = loop {
        match connect(address, &port.gate()) {
            Ok(mut connecting) => break connecting.poll(SECOND.saturating_mul(30)).unwrap().unwrap(),
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
#[ignore = "the other process of another test"]
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
                    Came::Frame { frame, .. } => {
                        side.commit(&frame, frame.tag().0);
                        side.give_back(frame);
                        side.port.flush();
                        // Half a frame: written, never staged.
                        side.scribble(b"half");
                    }
                    _ => open = false,
                }
            }
        }
    }
}

impl Side {
    /// As `wait`, asleep.
    fn wait_long(&mut self) -> Vec<Came> {
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
        let mut child = again("shm::tests::kill::child_echo_server", path.to_str().unwrap());
        let mut side = connect_when_there(&address, 4096);
        side.send(b"ping", 3);
        let answer = side.frame();
        assert_eq!((&*answer, answer.tag()), (&b"ping"[..], Tag(3)));
        side.give_back(answer);
        let error = Shm.listen(&address, &patient_listen()).unwrap_err();
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
            assert!(readable(side.port.wait_fd(), 30 * SECOND));
            side.port.disarm();
        }
        assert_eq!(side.closed(), CloseReason::PeerGone { how: "socket closed" });
        assert!(started.elapsed() < 20 * SECOND, "{:?}", started.elapsed());
        println!("noticed after {:?} (asleep: {asleep})", started.elapsed());
        // The next server takes the place over, in the next round or here.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "socket and lock");
    }
    drop(listen(&address));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "the other process of another test"]
fn child_client() {
    let Some(path) = role() else { return };
    let mut side = connect_when_there(&Address::Shm { path: path.into() }, 4096);
    for number in 0..50 {
        side.send(&[number], 0);
    }
    side.scribble(b"half");
    std::thread::sleep(30 * SECOND);
}

/// R24: what a client published before it was killed is delivered, then the close.
#[test]
fn r24_published_frames_survive_their_writer() {
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let mut listener = listen(&address);
    let mut child = again("shm::tests::kill::child_client", path.to_str().unwrap());
    let port = Shm.open_port(&config(4096)).unwrap();
    let link = listener.accept(30 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
    let mut side = Side::adopt(port, link);
    side.opened();
    // All 50 are there when the last is; only then it is killed, and only then they are read.
    let until = Instant::now() + 30 * SECOND;
    let super::super::table::Stage::Live(live) = &side.port.table.slots[side.conn.index() as usize].stage
    else {
        panic!()
    };
    while live.peer_word(49 * 16) == 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Came::Closed { .. })) {
        events.extend(side.wait());
    }
    assert_eq!(events.len(), 51);
    assert!(matches!(events.pop(), Some(Came::Closed { reason: CloseReason::PeerGone { .. }, .. })));
    for (number, event) in events.into_iter().enumerate() {
        let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
        assert_eq!(*frame, [number as u8]);
    }
}

const CRASHES: [&str; 10] = [
    "connected",
    "greeted",
    "answered",
    "granted",
    "adopted",
    "composed",
    "staged",
    "flushed",
    "asleep",
    "closed",
];

/// A client that kills itself as soon as it has come to `step`; but for one step that the server knows of.
#[test]
#[ignore = "the other process of another test"]
fn child_crashes() {
    let Some(role) = role() else { return };
    let (step, path) = role.split_once(' ').unwrap();
    let at = |here: &str| {
        if here == step {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
    };
    let address = Address::Shm { path: path.into() };
    if step == "connected" {
        let client = socket::open().unwrap();
        let to = rustix::net::SocketAddrUnix::new(path).unwrap();
        rustix::net::connect(&client, &to).unwrap();
        at("connected");
    }
    let port = Shm.open_port(&config(4096)).unwrap();
    let mut connecting = connect(&address, &port.gate()).unwrap();
    at("greeted");
    if step == "answered" {
        // The server kills us when its answer is there, unread.
        std::thread::sleep(30 * SECOND);
    }
    let link = connecting.poll(30 * SECOND).unwrap().unwrap();
    at("granted");
    let mut side = Side::adopt(port, link);
    at("adopted");
    side.opened();
    side.send(b"whole", 1);
    let staged = side.port.compose(side.conn, 100, |room| {
        room.fill(7);
        at("composed");
        Some(Staged { payload_bytes: 100, tag: Tag(2), chain: Chain::Begin })
    });
    assert!(staged.is_ok_and(|end| end.is_some()));
    at("staged");
    side.port.flush();
    at("flushed");
    while !side.port.arm() {
        side.poll();
    }
    at("asleep");
    side.port.disarm();
    let conn = side.conn;
    side.port.close(conn, CloseReason::Local, Time(0));
    at("closed");
}

/// R80: a client killed at each step of attach, publish, sleep and detach leaves the server clean: whole frames
/// only, one close, no descriptor, and the next client is served.
#[test]
fn r80_a_client_killed_at_any_step_leaves_the_server_clean() {
    alone("shm::tests::kill::child_r80");
}

#[test]
#[ignore = "the other process of another test"]
fn child_r80() {
    if role().is_none() {
        return;
    }
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let mut listener = listen(&address);
    let mut server = Side::adopt_none(Shm.open_port(&config(4096)).unwrap());
    let before = descriptors();
    for step in CRASHES {
        let mut child =
            again("shm::tests::kill::child_crashes", &format!("{step} {}", path.to_str().unwrap()));
        let mut open = false;
        let mut frames = Vec::new();
        let mut reason = None;
        let mut dead = false;
        let until = Instant::now() + 30 * SECOND;
        while !dead || open {
            if Instant::now() >= until {
                let _ = child.kill();
                let _ = child.wait();
                panic!("hangs after {step}");
            }
            dead = dead || child.try_wait().unwrap().is_some();
            if let Some(incoming) = listener.accept(Duration::from_millis(1)).unwrap()
                && let Ok(link) = incoming.accept(&server.port.gate())
            {
                server.port.adopt(link, server.now()).unwrap();
                open = true;
                if step == "answered" {
                    child.kill().unwrap();
                }
            }
            for event in server.poll() {
                match event {
                    Came::Opened { .. } => {}
                    Came::Frame { frame, .. } => frames.push(frame.len()),
                    Came::Closed { reason: why, .. } => {
                        open = false;
                        reason = Some(why);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        child.wait().unwrap();
        let expected: &[usize] = match step {
            "connected" | "greeted" | "answered" | "granted" | "adopted" => &[],
            "composed" => &[5],
            _ => &[5, 100],
        };
        assert_eq!(frames, expected, "{step}");
        match (step, reason) {
            ("connected", None) | ("greeted", None | Some(CloseReason::PeerGone { .. })) => {}
            ("closed", Some(CloseReason::Peer)) => {}
            (_, Some(CloseReason::PeerGone { .. })) if step != "closed" && step != "connected" => {}
            (_, other) => panic!("{step}: {other:?}"),
        }
        assert_eq!(descriptors(), before, "{step}");
    }
    let (accepted, connected) = links(&mut listener, &server.port.gate(), &server.port.gate());
    drop((accepted, connected));
}

/// I9: what a thousand connections used is given back. In a process of its own, where nothing else opens files.
#[test]
fn a_thousand_connections_leave_no_descriptor_and_no_mapping() {
    alone("shm::tests::kill::child_thousand");
}

#[test]
#[ignore = "the other process of another test"]
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
            server.pulled(offer, 1).unwrap();
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
    alone("shm::tests::kill::child_no_memory");
}

#[test]
#[ignore = "the other process of another test"]
fn child_no_memory() {
    if role().is_none() {
        return;
    }
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let small = PortConfig { peer_ring_bytes_max: 16 << 20, ..config(4096) };
    let small = Shm.open_port(&small).unwrap();
    let large = Shm.open_port(&config(16 << 20)).unwrap();
    let mut connecting = connect(&address, &large.gate()).unwrap();
    let incoming = listener.accept(30 * SECOND).unwrap().unwrap();
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let limit = rustix::process::Rlimit { current: Some((pages << 12) + (16 << 20)), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    let error = incoming.accept(&small.gate()).unwrap_err();
    let errno = Errno::NOMEM.raw_os_error();
    assert_eq!(error, crate::AcceptError::Port(crate::PortError::System { step: "mmap", errno }));
    let error = connecting.poll(30 * SECOND).unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::Rejected { reason: crate::RejectReason::Overloaded, .. }),
        "{error}"
    );
}
