//! Descriptors, file sizes and memory that are short for a while. Limits are the process's, so each test runs in one of its own.

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{skip, *};
use crate::{
    AcceptError, Gate, LoanError, PortError, RejectReason,
    mem::{Access, Holder, Region},
    reception::LACK_PATIENCE,
    testing::process::{ROLE, alone, role, this_binary},
};

/// Sets the soft limit; the old one, to be set again.
fn limit(resource: Resource, value: Option<u64>) -> Option<u64> {
    let old = getrlimit(resource);
    setrlimit(resource, Rlimit { current: value, maximum: old.maximum }).unwrap();
    old.current
}

/// Takes all descriptors that are left below a small limit.
fn take_descriptors() -> Vec<File> {
    limit(Resource::Nofile, Some(64));
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(!taken.is_empty());
    taken
}

/// Processor time of this thread.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

#[test]
#[ignore = "the other process of another test"]
fn child_listener() {
    let Some(_) = role() else { return };
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    // Nobody is there: nothing is short.
    let taken = take_descriptors();
    for _ in 0..3 {
        assert!(listener.accept(Duration::from_millis(20)).unwrap().is_none());
    }
    assert_eq!(listener.rejections().count(), 0);
    drop(taken);
    let mut waiting = connect(&address, &gate).unwrap();
    let mut later = connect(&address, &gate).unwrap();
    let taken = take_descriptors();
    // For a moment: the client waits in the backlog, and nobody turns round and round meanwhile.
    listener.reception.lack_patience = 60 * SECOND;
    let started = busy();
    assert!(listener.accept(Duration::from_millis(40)).unwrap().is_none());
    assert!(busy() - started < Duration::from_millis(20), "it spins");
    drop(taken);
    assert!(listener.accept(30 * SECOND).unwrap().is_some());
    assert_eq!(listener.rejections().count(), 0, "it had only to wait");
    let _ = waiting.poll(Duration::ZERO);
    assert!(listener.accept(30 * SECOND).unwrap().is_some());
    let _ = later.poll(Duration::ZERO);
    // For long: it is told no, by name.
    listener.reception.lack_patience = LACK_PATIENCE;
    let mut refused = connect(&address, &gate).unwrap();
    let taken = take_descriptors();
    let until = Instant::now() + 30 * SECOND;
    while listener.rejections().count() == 0 {
        assert!(listener.accept(Duration::from_millis(20)).unwrap().is_none());
        assert!(Instant::now() < until, "nobody is refused");
    }
    assert_eq!(listener.rejections().last(), Some(RejectReason::Overloaded));
    let error = refused.poll(30 * SECOND).unwrap().unwrap_err();
    let reason = RejectReason::Overloaded;
    assert_eq!(error, ConnectError::Rejected { address: address.to_string(), reason, data: Vec::new() });
    drop(taken);
    // And it goes on.
    let mut welcome = connect(&address, &gate).unwrap();
    let port = Shm.open_port(&config(4096)).unwrap();
    let accepted = listener.accept(30 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
    welcome.poll(30 * SECOND).unwrap().unwrap();
    drop(accepted);
}

#[test]
fn a_listener_outlives_a_shortage_of_descriptors() {
    alone("shm::tests::shortage::child_listener");
}

#[test]
#[ignore = "the other process of another test"]
fn child_hello() {
    let Some(_) = role() else { return };
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let (server, client) = (Shm.open_port(&config(4096)).unwrap(), Shm.open_port(&config(4096)).unwrap());
    let mut connecting = connect(&address, &client.gate()).unwrap();
    let accepted = listener.accept(30 * SECOND).unwrap().unwrap().accept(&server.gate()).unwrap();
    let taken = take_descriptors();
    let error = connecting.poll(30 * SECOND).unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::Port(PortError::System { step: "recvmsg", .. })), "{error}");
    assert!(error.to_string().contains("RLIMIT_NOFILE is 64"), "{error}");
    drop((taken, accepted));
}

#[test]
fn a_hello_without_a_descriptor_names_the_limit() {
    alone("shm::tests::shortage::child_hello");
}

#[test]
#[ignore = "the other process of another test"]
fn child_grant() {
    let Some(_) = role() else { return };
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let (server, client) = (Shm.open_port(&config(4096)).unwrap(), Shm.open_port(&config(4096)).unwrap());
    let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, connected));
    client.opened();
    let taken = take_descriptors();
    ends_by_lack(&mut server, &mut client);
    drop(taken);
}

/// `side` lacks a descriptor for what `peer` passes it: both are told so.
fn ends_by_lack(side: &mut Side, peer: &mut Side) {
    let ours = side.closed();
    assert!(matches!(ours, CloseReason::Port(_)), "{ours}");
    assert!(ours.to_string().contains("RLIMIT_NOFILE is 64"), "{ours}");
    let theirs = peer.closed();
    assert!(theirs.to_string().contains("the peer ran out of descriptors, memory or mappings"), "{theirs}");
}

#[test]
fn a_grant_without_a_descriptor_ends_both_sides_with_the_cause() {
    alone("shm::tests::shortage::child_grant");
}

#[test]
#[ignore = "the other process of another test"]
fn child_pool() {
    let Some(_) = role() else { return };
    let (mut server, mut client) = pair(4096);
    let loan = client.port.gate().allocate(client.conn, 100).unwrap();
    client.port.offer(client.conn, &loan).unwrap();
    let taken = take_descriptors();
    ends_by_lack(&mut server, &mut client);
    drop((taken, loan));
}

#[test]
fn a_pool_segment_without_a_descriptor_ends_both_sides_with_the_cause() {
    alone("shm::tests::shortage::child_pool");
}

/// epoll_ctl(2) lacks memory or watches: the peer is told, and the place is free for the next one.
#[test]
fn an_adopt_that_fails_leaves_no_place_taken_and_tells_the_peer() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let one = PortConfig { connections: 1, ..config(4096) };
    let (mut server, client) = (Shm.open_port(&one).unwrap(), Shm.open_port(&config(4096)).unwrap());
    let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
    let mut client = Side::adopt(client, connected);
    client.opened();
    let no_epoll = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let epoll = std::mem::replace(&mut server.table.epoll, no_epoll);
    let error = server.adopt(accepted, Time(0)).unwrap_err();
    assert!(matches!(error, PortError::System { step: "epoll_ctl", .. }), "{error}");
    assert_eq!(client.closed(), CloseReason::PeerLacks);
    server.table.epoll = epoll;
    let (accepted, connected) = links(&mut listener, &server.gate(), &client.port.gate());
    let mut server = Side::adopt(server, accepted);
    client.conn = client.port.adopt(connected, Time(0)).unwrap();
    client.opened();
    server.opened();
}

/// Takes mappings until the kernel gives none; of one file with access by turns, so that neighbours are not made one.
fn take_mappings() -> Vec<Region> {
    let file = crate::kernel::memory_file("taken", 4096, rustix::fs::MemfdFlags::empty()).unwrap();
    let mut taken = Vec::new();
    for access in [Access::ReadOnly, Access::ReadWrite].into_iter().cycle() {
        match Region::file(file.as_fd(), 4096, access) {
            Ok(region) => taken.push(region),
            Err(_) => return taken,
        }
    }
    taken
}

#[test]
#[ignore = "the other process of another test"]
fn child_mappings() {
    let Some(_) = role() else { return };
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 300_000 {
        return skip("vm.max_map_count is too large to be used up");
    }
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let (server, client) = (Shm.open_port(&config(4096)).unwrap(), Shm.open_port(&config(4096)).unwrap());
    let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, connected));
    client.opened();
    let mut connecting = connect(&address, &client.port.gate()).unwrap();
    let incoming = listener.accept(30 * SECOND).unwrap().unwrap();
    let (mut one, mut other) = pair(4096);
    one.send(b"held", 0);
    let frame = other.frame();
    let mut holder = Holder::of(&frame);
    let mut taken = take_mappings();
    assert!(holder.hold(&frame, 0).is_none(), "it is copied");
    let name = format!("vm.max_map_count is {limit}");
    // The peer's grant cannot be mapped.
    let ours = server.closed();
    assert!(ours.to_string().contains(&name), "{ours}");
    assert_eq!(client.closed(), CloseReason::PeerLacks);
    // Nor a segment of our own.
    taken.extend(take_mappings());
    let error = incoming.accept(&server.port.gate()).unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
    let refused = connecting.poll(30 * SECOND).unwrap().unwrap_err();
    assert!(matches!(refused, ConnectError::Rejected { reason: RejectReason::Overloaded, .. }), "{refused}");
    drop(taken);
    assert_eq!(&*holder.hold(&frame, 0).expect("there is room again"), b"held");
    let (accepted, connected) = links(&mut listener, &server.port.gate(), &client.port.gate());
    server.conn = server.port.adopt(accepted, Time(0)).unwrap();
    client.conn = client.port.adopt(connected, Time(0)).unwrap();
    client.opened();
    server.opened();
}

#[test]
fn a_lack_of_mappings_is_named_and_passes() {
    alone("shm::tests::shortage::child_mappings");
}

#[test]
#[ignore = "the other process of another test"]
fn child_file_size() {
    let Some(_) = role() else { return };
    let (mut server, mut client) = pair(4096);
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let big = Shm.open_port(&config(1 << 20)).unwrap();
    let mut connecting = connect(&address, &big.gate()).unwrap();
    let incoming = listener.accept(30 * SECOND).unwrap().unwrap();
    limit(Resource::Fsize, Some(100_000));
    let named = |error: &dyn std::fmt::Display| {
        assert!(error.to_string().contains("RLIMIT_FSIZE, which is 100000 bytes"), "{error}");
    };
    let error = client.port.gate().allocate(client.conn, 1 << 20).unwrap_err();
    assert!(matches!(error, LoanError::Port(_)));
    named(&error);
    named(&client.port.gate().expose(client.conn, 1 << 20).unwrap_err());
    // A server is not ended by a client that asks for a large ring.
    let error = incoming.accept(&server.port.gate()).unwrap_err();
    assert!(matches!(error, AcceptError::Port(_)));
    named(&error);
    let refused = connecting.poll(30 * SECOND).unwrap().unwrap_err();
    assert!(matches!(refused, ConnectError::Rejected { reason: RejectReason::Overloaded, .. }), "{refused}");
    // What was there goes on.
    client.send(b"still", 1);
    assert_eq!(&*server.frame(), b"still");
    limit(Resource::Fsize, None);
    client.port.gate().allocate(client.conn, 1 << 20).unwrap();
}

/// Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which would end the process.
#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_signal() {
    alone("shm::tests::shortage::child_file_size");
}

#[test]
#[ignore = "the other process of another test"]
fn child_port() {
    let Some(_) = role() else { return };
    let (folder, address) = place();
    let taken = take_descriptors();
    for error in [
        Shm.open_port(&config(4096)).unwrap_err().to_string(),
        Shm.listen(&address, &patient_listen()).unwrap_err().to_string(),
    ] {
        assert!(error.contains("RLIMIT_NOFILE is 64"), "{error}");
    }
    drop(taken);
    let mut listener = listen(&address);
    let port = Shm.open_port(&config(4096)).unwrap();
    let taken = take_descriptors();
    let error = connect(&address, &port.gate()).unwrap_err();
    assert!(error.to_string().contains("RLIMIT_NOFILE is 64"), "{error}");
    drop((taken, folder));
    assert!(listener.accept(Duration::ZERO).unwrap().is_none());
}

/// Everything that makes system calls, at the path that it is told.
#[test]
#[ignore = "the other process of another test"]
fn child_whole() {
    let Some(path) = role() else { return };
    let key = crate::Key::new(&[7; 32]).unwrap();
    let listening = ListenOptions { keys: vec![key.clone()], ..patient_listen() };
    let mut listener = Shm.listen(&Address::Shm { path: path.into() }, &listening).unwrap();
    let (server, client) = (Shm.open_port(&config(4096)).unwrap(), Shm.open_port(&config(4096)).unwrap());
    let options = ConnectOptions { key: Some(key), ..patient_connect() };
    let mut connecting = Shm.connect(&listener.address(), &client.gate(), &options).unwrap();
    let until = Instant::now() + 30 * SECOND;
    let incoming = loop {
        if let Some(incoming) = listener.accept(Duration::from_millis(5)).unwrap() {
            break incoming;
        }
        assert!(connecting.poll(Duration::from_millis(5)).is_none(), "nobody answered");
        assert!(Instant::now() < until, "nobody came");
    };
    let accepted = incoming.accept(&server.gate()).unwrap();
    let connected = connecting.poll(30 * SECOND).unwrap().unwrap();
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, connected));
    client.opened();
    server.opened();
    let loan = client.port.gate().allocate(client.conn, 1 << 20).unwrap();
    let offer = client.port.offer(client.conn, &loan).unwrap();
    client.send(&offer.encode(), 0);
    let frame = server.frame();
    server.give_back(frame);
    server.pulled(offer, 1).unwrap();
    assert!(server.port.arm(), "nothing is left to do");
    client.send(b"wake", 0);
    server.port.disarm();
    assert_eq!(&*server.frame(), b"wake");
    client.port.close(client.conn, CloseReason::Local, Time(0));
    assert_eq!(server.closed(), CloseReason::Peer);
}

/// Runs `child_whole` with every second `call` failing with `error`; `false` where that cannot be.
fn injected(call: &str, error: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(folder.path().join("trace"));
    strace.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:error={error}:when=1+2")]);
    if call.contains("open") {
        // Not those of the loader, which does not try again.
        strace.arg("-P").arg(folder.path().join("socket.lock"));
    }
    let child = this_binary("shm::tests::shortage::child_whole", path.to_str().unwrap());
    strace.arg(child.get_program()).args(child.get_args()).env(ROLE, &path);
    let output = match strace.output() {
        Ok(output) => output,
        Err(error) => {
            skip(&format!("strace does not run: {error}"));
            return false;
        }
    };
    let erred = String::from_utf8_lossy(&output.stderr);
    if erred.contains("strace: ") {
        skip("strace cannot trace here");
        return false;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{call} {error}: {said}\n{erred}");
    let trace = std::fs::read_to_string(folder.path().join("trace")).unwrap();
    assert!(trace.contains("INJECTED"), "{call} {error} was never injected: {trace}");
    true
}

#[test]
fn calls_that_a_signal_interrupts_are_made_again() {
    let calls = [
        "accept4",
        "connect",
        "sendto",
        "sendmsg",
        "recvmsg",
        "ppoll",
        "?epoll_pwait2,?epoll_wait,epoll_pwait",
        "memfd_create",
        "ftruncate",
        "fallocate",
        "flock",
        "?open,openat",
        "getrandom",
    ];
    for call in calls {
        if !injected(call, "EINTR") {
            return;
        }
    }
}

#[test]
fn a_listener_outlives_every_passing_errno() {
    for error in ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EPERM", "ECONNABORTED", "EPROTO"] {
        if !injected("accept4", error) {
            return;
        }
    }
    injected("ppoll", "ENOMEM");
}

#[test]
fn a_port_without_a_descriptor_names_the_limit() {
    alone("shm::tests::shortage::child_port");
}
