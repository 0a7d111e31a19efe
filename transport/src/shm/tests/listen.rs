//! Meeting: who is let in, who is told no and why, and what is left in the folder.

use std::{
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use super::{
    super::{rendezvous::check_folder, socket},
    skip, *,
};
use crate::{
    AcceptError, Allow, Hello, Instant, Key, ListenError, PortError, RejectReason,
    hello::{VERSION, decode_reject},
    parts::request,
    strangers::{CHANCE, PLACES, PLACES_OF_ONE},
};

pub(super) fn path_of(address: &Address) -> PathBuf {
    match address {
        Address::Shm { path } => path.clone(),
        other => panic!("{other}"),
    }
}

fn raw_client(address: &Address) -> OwnedFd {
    let client = socket::open().unwrap();
    let to = rustix::net::SocketAddrUnix::new(path_of(address)).unwrap();
    rustix::net::connect(&client, &to).unwrap();
    client
}

pub(super) fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn good_hello() -> Hello {
    super::super::link::hello(&config(4096), 1)
}

/// A wait without a limit ends with what is waited for; one without a time is one look.
#[test]
fn any_wait_is_taken() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    for short in [Duration::ZERO, Duration::from_nanos(1)] {
        assert!(listener.accept(short).unwrap().is_none());
    }
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX)] {
        let mut connecting = connect(&address, &gate).unwrap();
        for short in [Duration::ZERO, Duration::from_nanos(1)] {
            assert!(connecting.poll(short).is_none());
        }
        let incoming = listener.accept(limit).unwrap().expect("a client is there");
        let _link = incoming.accept(&gate).unwrap();
        assert!(connecting.poll(limit).expect("the server answered").is_ok());
    }
}

#[test]
fn nobody_listens_is_said_at_once() {
    let (folder, address) = place();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let nobody = ConnectError::NobodyListens { address: address.to_string() };
    assert_eq!(connect(&address, &gate).unwrap_err(), nobody);
    // A file that no live server has.
    drop(std::os::unix::net::UnixListener::bind(path_of(&address)).unwrap());
    let error = connect(&address, &gate).unwrap_err();
    // Another kind of socket is refused before it is found to be dead.
    assert!(matches!(error, ConnectError::Foreign { .. } | ConnectError::NobodyListens { .. }), "{error}");
    drop(folder);
    let listener = {
        let (folder, address) = place();
        let mut listener = listen(&address);
        let mut connecting = connect(&address, &gate).unwrap();
        assert!(connecting.poll(Duration::ZERO).is_none());
        assert!(listener.accept(Duration::ZERO).unwrap().is_some());
        drop(listener);
        let error = connecting.poll(30 * SECOND).unwrap().unwrap_err();
        assert!(
            matches!(error, ConnectError::Rejected { reason: RejectReason::Overloaded, .. }),
            "a request that is dropped says why: {error}"
        );
        assert!(connecting.poll(SECOND).is_none(), "after an outcome there is none");
        (folder, address)
    };
    assert!(matches!(connect(&listener.1, &gate), Err(ConnectError::NobodyListens { .. })));
}

#[test]
fn a_server_that_leaves_before_it_answers_is_nobody() {
    let (_folder, address) = place();
    let listener = listen(&address);
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let mut connecting = connect(&address, &gate).unwrap();
    drop(listener);
    let error = connecting.poll(30 * SECOND).unwrap().unwrap_err();
    assert_eq!(error, ConnectError::NobodyListens { address: address.to_string() });
}

#[test]
fn a_silent_server_and_a_full_backlog_end_at_the_deadline() {
    let (_folder, address) = place();
    let _listener = Shm.listen(&address, &ListenOptions { backlog: 1, ..patient_listen() }).unwrap();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let timeout = Duration::from_millis(60);
    let options = ConnectOptions { connect_timeout: timeout, ..patient_connect() };
    let attempts: Vec<_> = (0..4).map(|_| Shm.connect(&address, &gate, &options).unwrap()).collect();
    let mut steps = Vec::new();
    for mut attempt in attempts {
        let started = Instant::now();
        match attempt.poll(60 * SECOND) {
            Some(Err(ConnectError::Timeout { step, timeout: told, .. })) => {
                assert_eq!(told, timeout);
                steps.push(step);
            }
            other => panic!("{other:?}"),
        }
        assert!(started.elapsed() < 30 * SECOND);
    }
    assert_eq!(steps[0], "waiting for its hello");
    assert_eq!(steps[3], "waiting for a place in its backlog");
}

#[test]
fn reasons_travel_both_ways() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    for reason in [RejectReason::Application { code: 42 }, RejectReason::ShuttingDown] {
        let mut connecting = connect(&address, &gate).unwrap();
        let incoming = listener.accept(30 * SECOND).unwrap().unwrap();
        assert_eq!(incoming.hello().ring_bytes, 4096);
        assert!(incoming.peer().contains(&std::process::id().to_string()));
        incoming.reject(reason);
        let error = connecting.poll(30 * SECOND).unwrap().unwrap_err();
        assert_eq!(error, ConnectError::Rejected { address: address.to_string(), reason, data: Vec::new() });
    }
    assert_eq!(listener.rejections().count(), 0, "these were handed out");
    // A client that gave up.
    let connecting = connect(&address, &gate).unwrap();
    let incoming = listener.accept(30 * SECOND).unwrap().unwrap();
    drop(connecting);
    let error = incoming.accept(&gate).unwrap_err();
    assert!(matches!(error, AcceptError::Gone { .. }), "{error}");
}

#[test]
fn foreign_clients_are_answered_and_counted() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let mut other_version = good_hello().encode();
    other_version[4] = 9;
    let mut bad_ring = good_hello();
    bad_ring.ring_bytes = 5000;
    let cases: [(&[u8], RejectReason); 4] = [
        (b"GET / HTTP/1.1\r\n\r\n", RejectReason::NotOurs),
        (&[7; 300], RejectReason::NotOurs),
        (&other_version, RejectReason::Version { ours: 9, theirs: VERSION }),
        (&bad_ring.encode(), RejectReason::BadHello { field: 1 }),
    ];
    for (number, (bytes, reason)) in cases.into_iter().enumerate() {
        let client = raw_client(&address);
        socket::send(&client, bytes).unwrap();
        // What comes behind is read away: the answer still arrives.
        socket::send(&client, b"more").unwrap();
        assert!(listener.accept(Duration::ZERO).unwrap().is_none());
        assert_eq!(listener.rejections().count(), number as u64 + 1);
        let answer = socket::receive(&client).unwrap();
        assert_eq!(decode_reject(answer.bytes()), Some(reason));
    }
    // A good hello with a descriptor that nobody asked for.
    let client = raw_client(&address);
    socket::send_with(&client, &good_hello().encode(), client.as_fd()).unwrap();
    assert!(listener.accept(Duration::ZERO).unwrap().is_none());
    assert_eq!(listener.rejections().count(), 5);
}

#[test]
fn silent_clients_hold_nobody_up() {
    let (_folder, _silent, mut listener) = beside_silent_ones(60 * SECOND);
    let started = Instant::now();
    honest(&mut listener);
    assert!(started.elapsed() < 20 * SECOND, "{:?}", started.elapsed());
}

#[test]
fn silent_clients_run_out_at_their_own_time_while_nobody_else_comes() {
    let (_folder, silent, mut listener) = beside_silent_ones(2 * SECOND);
    honest(&mut listener);
    let started = Instant::now();
    assert!(listener.accept(3 * SECOND).unwrap().is_none());
    assert!(started.elapsed() >= 3 * SECOND);
    assert_eq!(listener.rejections().count(), silent.len() as u64);
    for client in silent {
        assert_eq!(decode_reject(socket::receive(&client).unwrap().bytes()), Some(RejectReason::Overloaded));
    }
}

/// A listener with more clients than may wait.
fn beside_silent_ones(handshake_timeout: Duration) -> (tempfile::TempDir, Vec<OwnedFd>, ShmListener) {
    const SILENT: usize = PLACES + 8;
    let (folder, address) = place();
    let options = ListenOptions { handshake_timeout, backlog: 2 * SILENT as u16, ..patient_listen() };
    let listener = Shm.listen(&address, &options).unwrap();
    // More than may wait, and one that went away again.
    let silent = (0..SILENT).map(|_| raw_client(&address)).collect();
    drop(raw_client(&address));
    (folder, silent, listener)
}

/// One that says hello at once is let in.
fn honest(listener: &mut ShmListener) {
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let mut connecting = connect(&listener.address(), &gate).unwrap();
    let incoming = listener.accept(SECOND.saturating_mul(30)).unwrap().expect("the honest one");
    let _link = incoming.accept(&gate).unwrap();
    connecting.poll(SECOND.saturating_mul(30)).unwrap().unwrap();
}

/// Another user fills all the places that it can have, with silence, again and again.
#[test]
fn a_user_fills_half_of_the_places_for_strangers() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (folder, address) = place();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = ListenOptions {
        backlog: 4 * PLACES as u16,
        allow: Allow::default().uid(0).uid(65534),
        ..patient_listen()
    };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let there = address.clone();
    let silent = |count: usize| {
        let address = there.clone();
        let other = std::thread::spawn(move || {
            let nobody = rustix::thread::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            (0..count).map(|_| raw_client(&address)).collect::<Vec<_>>()
        });
        other.join().unwrap()
    };
    let mut floods = Vec::new();
    for round in 1..=4 {
        floods.push(silent(PLACES_OF_ONE + 36));
        let mut connecting = connect(&address, &gate).unwrap();
        let started = Instant::now();
        let incoming = listener.accept(30 * SECOND).unwrap().expect("an honest client");
        assert!(started.elapsed() < 20 * SECOND, "round {round}: {:?}", started.elapsed());
        let _link = incoming.accept(&gate).unwrap();
        connecting.poll(30 * SECOND).unwrap().unwrap();
        // What is late makes room for newer ones, and everybody else is refused at once.
        let refused = round * (PLACES_OF_ONE + 36) - PLACES_OF_ONE;
        assert_eq!(listener.rejections().count(), refused as u64, "round {round}");
        std::thread::sleep(CHANCE);
    }
}

/// A stranger holds its socket and its hello until it has proved the key: the ring that it asks for is not made.
#[test]
fn strangers_hold_the_bytes_of_a_handshake() {
    let (_folder, address) = place();
    let key = Key::new(b"a key of this test, long enough to be one").unwrap();
    let options = ListenOptions { keys: vec![key.clone()], ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let mut hello = good_hello();
    hello.ring_bytes = 1 << 30;
    let _strangers: Vec<_> = (0..PLACES)
        .map(|number| {
            let client = raw_client(&address);
            hello.nonce = number as u128;
            socket::send(&client, &request(&mut hello, Some(&key))).unwrap();
            client
        })
        .collect();
    for _ in 0..4 {
        assert!(listener.accept(Duration::from_millis(5)).unwrap().is_none());
    }
    assert_eq!(listener.rejections().count(), 0, "all were asked for a proof");
    // Other tests make rings beside this one, but none of this size.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.contains("gimmal-ring")) {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        assert!(at(to) - at(from) < 1 << 28, "{line}");
    }
}

/// A client whose core was taken away between its socket and its hello, and many who come meanwhile.
#[test]
fn a_late_hello_beside_many_others_is_waited_for() {
    let (_folder, address) = place();
    let options = ListenOptions { backlog: 2 * PLACES as u16, ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let late = raw_client(&address);
    assert!(listener.accept(Duration::ZERO).unwrap().is_none());
    let hello = good_hello().encode();
    let others: Vec<_> = (0..PLACES + 8)
        .map(|_| {
            let client = raw_client(&address);
            socket::send(&client, &hello).unwrap();
            client
        })
        .collect();
    std::thread::sleep(CHANCE);
    for number in 0..others.len() {
        assert!(listener.accept(30 * SECOND).unwrap().is_some(), "number {number}");
    }
    socket::send(&late, &hello).unwrap();
    assert!(listener.accept(30 * SECOND).unwrap().is_some());
    assert_eq!(listener.rejections().count(), 0);
}

/// More clients of one user than have a place each wait with their hellos: a hello that is read takes no place.
#[test]
fn clients_of_one_user_that_have_said_hello_are_all_let_in() {
    const CLIENTS: usize = 100;
    const { assert!(CLIENTS > PLACES_OF_ONE) };
    let (_folder, address) = place();
    let own = rustix::process::getuid().as_raw();
    let options = ListenOptions {
        backlog: 2 * CLIENTS as u16,
        allow: Allow::default().uid(own).uid(65534),
        ..patient_listen()
    };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let hello = good_hello().encode();
    let clients = [(); CLIENTS].map(|()| raw_client(&address));
    for client in &clients {
        socket::send(client, &hello).unwrap();
    }
    for number in 0..CLIENTS {
        assert!(listener.accept(30 * SECOND).unwrap().is_some(), "number {number}");
    }
    assert_eq!(listener.rejections().count(), 0);
}

#[test]
fn a_grant_that_never_comes_ends_the_connection() {
    let (_folder, address) = place();
    let options = ListenOptions { handshake_timeout: Duration::from_millis(50), ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let port = Shm.open_port(&config(4096)).unwrap();
    let client = raw_client(&address);
    socket::send(&client, &good_hello().encode()).unwrap();
    let accepted = listener.accept(30 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
    let mut side = Side::adopt(port, accepted);
    assert_eq!(side.port.deadline(), Time(50_000_000));
    let started = Instant::now();
    assert_eq!(side.closed(), CloseReason::Handshake);
    assert!(started.elapsed() >= Duration::from_millis(45));
    assert_eq!(side.port.deadline(), Time::NEVER);
    assert!(!socket::receive(&client).unwrap().is_end(), "its hello");
    assert!(socket::receive(&client).unwrap().is_end(), "and then the end");
}

#[test]
fn bad_places_say_what_is_wrong() {
    let (folder, address) = place();
    let refused = |path: PathBuf| {
        let error = Shm.listen(&Address::Shm { path }, &patient_listen()).unwrap_err();
        assert!(matches!(error, ListenError::Address { .. }), "{error:?}");
        error.to_string()
    };
    assert!(refused(folder.path().join("missing/socket")).contains("does not exist; create it"));
    assert!(refused(folder.path().join("x".repeat(120))).contains("a socket's may have 107"));
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(refused(file.clone()).contains("no socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    assert!(refused(file.join("socket")).contains("file"));
    let wrong: Address = "rdma://127.0.0.1:1".parse().unwrap();
    assert!(matches!(Shm.listen(&wrong, &patient_listen()), Err(ListenError::Address { .. })));
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    assert!(matches!(connect(&wrong, &gate), Err(ConnectError::Address { .. })));
    let bad = Shm.open_port(&config(5000)).unwrap_err();
    assert!(matches!(bad, PortError::Field { field: "port.ring_bytes", value: 5000, .. }), "{bad}");
    let listener = listen(&address);
    let mode = std::fs::metadata(path_of(&address)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    drop(listener);
    assert_eq!(files_in(folder.path()), 1, "the file alone");
}

/// R76, the folder's half: our own is made, and refused when others can enter it or it is only a link.
#[test]
fn r76_the_runtime_folder_is_ours_alone() {
    let (outer, _) = place();
    let folder = outer.path().join("gimmal");
    let socket = folder.join("s");
    check_folder(&socket, &folder, true).unwrap();
    let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    check_folder(&socket, &folder, true).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o710)).unwrap();
    let error = check_folder(&socket, &folder, true).unwrap_err();
    assert!(matches!(&error, ListenError::Folder { why, .. } if why.contains("0710")), "{error}");
    check_folder(&socket, &folder, false).unwrap();
    let link = outer.path().join("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    let error = check_folder(&socket, &link, true).unwrap_err();
    assert!(matches!(&error, ListenError::Folder { why, .. } if why.contains("no folder")), "{error}");
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
        let error = check_folder(&socket, &folder, true).unwrap_err();
        assert!(matches!(&error, ListenError::Folder { why, .. } if why.contains("65534")), "{error}");
    }
}

/// R76: another user is kept out by the socket's mode; and by its credentials, if the mode were open.
#[test]
fn r76_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (folder, address) = place();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut listener = listen(&address);
    let attempt = |address: Address| {
        std::thread::spawn(move || {
            let gate = Shm.open_port(&config(4096)).unwrap().gate();
            let nobody = rustix::thread::Uid::from_raw(65534);
            // This thread alone: the system call, not the C library's wrapper.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            connect(&address, &gate)?.poll(30 * SECOND).expect("an outcome").map(drop)
        })
    };
    let error = attempt(address.clone()).join().unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::Denied { .. }), "{error}");
    let shown = format!("{} belongs to uid 0 and has mode 0600", path_of(&address).display());
    let text = error.to_string();
    assert!(text.contains(&shown) && text.contains("this process is of uid 65534"), "{text}");
    assert!(text.contains("allow-list"), "{text}");
    std::fs::set_permissions(path_of(&address), std::fs::Permissions::from_mode(0o666)).unwrap();
    let thread = attempt(address.clone());
    let until = Instant::now() + 30 * SECOND;
    while listener.rejections().count() == 0 {
        assert!(listener.accept(Duration::from_millis(5)).unwrap().is_none());
        assert!(Instant::now() < until, "nobody was refused");
    }
    assert_eq!(listener.rejections().count(), 1);
    let error = thread.join().unwrap().unwrap_err();
    assert!(
        matches!(error, ConnectError::Rejected { reason: RejectReason::NotAllowed { uid: 65534 }, .. }),
        "{error}"
    );
}

/// R78: a socket that nobody serves is replaced, one that somebody serves is not.
#[test]
fn r78_a_stale_socket_is_replaced_and_a_live_one_is_in_use() {
    let (folder, address) = place();
    // What a killed server leaves.
    drop(std::os::unix::net::UnixListener::bind(path_of(&address)).unwrap());
    std::fs::write(folder.path().join("socket.lock"), "").unwrap();
    let mut listener = listen(&address);
    let error = Shm.listen(&address, &patient_listen()).unwrap_err();
    let by = format!("process {}", std::process::id());
    assert_eq!(error, ListenError::InUse { address: address.to_string(), by });
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let _links = links(&mut listener, &gate, &gate);
    drop(listener);
    assert_eq!(files_in(folder.path()), 0);
    drop(listen(&address));
}

/// Many servers race for one place: exactly one has it at any time, and nothing is left.
#[test]
fn r78_racing_servers_take_turns() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (folder, address) = place();
    let holders = AtomicUsize::new(0);
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    match Shm.listen(&address, &patient_listen()) {
                        Ok(listener) => {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                            taken.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(listener);
                        }
                        Err(ListenError::InUse { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(taken.into_inner() > 0);
    drop(listen(&address));
    assert_eq!(files_in(folder.path()), 0);
}
