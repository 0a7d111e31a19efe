//! A peer that lies: in its words, in its descriptors, in its packets.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::Ordering,
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
    mm::{MapFlags, MprotectFlags, ProtFlags},
};

use super::{
    super::{
        segment::{SEALS, Segment, control_bytes},
        socket,
    },
    *,
};
use crate::{
    FrameWord, Instant, RejectReason, Violation,
    hello::{HELLO_BYTES, VERSION, encode_reject},
};

/// A server with an open connection to a peer whose memory the test writes.
fn victim(ring_bytes: u32) -> (Side, ShmLink) {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let port = Shm.open_port(&config(ring_bytes)).unwrap();
    let client = Shm.open_port(&config(ring_bytes)).unwrap();
    let (accepted, peer) = links(&mut listener, &port.gate(), &client.gate());
    let mut side = Side::adopt(port, accepted);
    side.opened();
    (side, peer)
}

/// A server that waits for the grant of a client that the test plays, with the server's hello and segment.
fn waiting() -> (Side, OwnedFd, OwnedFd) {
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let mut listener = listen(&address);
    let client = socket::open().unwrap();
    rustix::net::connect(&client, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    socket::send(&client, &super::super::link::hello(&config(4096), 1).encode()).unwrap();
    let port = Shm.open_port(&config(4096)).unwrap();
    let accepted = listener.accept(SECOND.saturating_mul(30)).unwrap().unwrap().accept(&port.gate()).unwrap();
    let packet = socket::receive(&client).unwrap();
    assert_eq!(packet.bytes().len(), HELLO_BYTES);
    (Side::adopt(port, accepted), client, packet.fd.expect("the server's segment"))
}

/// A memfd of `bytes` with `seals`, its pages allocated if `whole`.
fn memfd(bytes: usize, seals: SealFlags, whole: bool) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    if whole {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64).unwrap();
    }
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn malformed(what: &'static str) -> CloseReason {
    CloseReason::Violation(Violation::Malformed { what })
}

/// R66, R67: a credit that runs ahead, back or wraps never makes us write over what the peer has not given back.
#[test]
fn r66_r67_a_lying_credit_frees_nothing() {
    let (mut side, peer) = victim(4096);
    let mut sent = 0;
    while side.has_room(1000).is_ok() {
        side.commit(&[0; 1000], 0);
        sent += 1;
    }
    assert_eq!(sent, 4);
    let head = side.port.credit(side.conn).completed.0;
    for lie in [head + 1, head + 4096, u64::MAX, u64::MAX - 4095, 1 << 63] {
        peer.end.own.consumed().store(lie, Ordering::Release);
        assert_eq!(side.has_room(1000), Err(Refused::Full), "{lie}");
        // The engine hears the lie as it is, and closes.
        assert_eq!(side.port.credit(side.conn).peer.unwrap().bytes.0, lie);
    }
    peer.end.own.consumed().store(head, Ordering::Release);
    side.commit(&[0; 1000], 0);
    // Backwards: what was given back stays given back, nothing more.
    peer.end.own.consumed().store(0, Ordering::Release);
    for _ in 0..3 {
        side.commit(&[0; 1000], 0);
    }
    assert_eq!(side.has_room(1000), Err(Refused::Full));
}

/// R66: a peer that publishes more than the ring it was granted.
#[test]
fn r66_an_overrun_is_a_violation() {
    let (mut side, peer) = victim(4096);
    let word = FrameWord::new(1000, Tag(0)).bits();
    for frame in 0..4 {
        peer.end.own.word(frame * 1008).store(word, Ordering::Release);
    }
    let mut frames = Vec::new();
    while frames.len() < 4 {
        frames.extend(side.wait());
    }
    // Nothing was given back; the next one lies over the first.
    peer.end.own.word(4 * 1008).store(word, Ordering::Release);
    let reason = side.closed();
    assert_eq!(reason, CloseReason::Violation(Violation::Overrun { bytes: 5 * 1008 - 4096 }));
    // What was lent is still readable.
    let Some(Came::Frame { frame, .. }) = frames.pop() else { panic!() };
    assert_eq!(frame.len(), 1000);
}

/// R68: every length that no frame can have.
#[test]
fn r68_impossible_lengths_are_violations() {
    for bits in [1, 7, 1025, 4096, 0xffff_ffff, 0x8000_0000, u64::MAX, 7 << 32 | 3] {
        let (mut side, peer) = victim(4096);
        peer.end.own.word(0).store(bits, Ordering::Release);
        let bytes = (bits & 0xffff_ffff) as usize;
        assert_eq!(
            side.closed(),
            CloseReason::Violation(Violation::FrameLength { bytes, limit: 1024 }),
            "{bits:#x}"
        );
    }
}

/// R69: the word changes while it is looked at; the one copy that was checked decides.
#[test]
fn r69_a_word_that_changes_is_read_once() {
    let (mut side, peer) = victim(4096);
    let words = [0, FrameWord::new(0, Tag(1)).bits(), FrameWord::new(1016, Tag(2)).bits(), 0xffff_ffff];
    let [stop, came] = [const { std::sync::atomic::AtomicBool::new(false) }; 2];
    let mut closed = None;
    let peer = &peer.end.own;
    std::thread::scope(|scope| {
        // Only the segment's memory is shared, as between two processes.
        struct Shared<'a>(&'a Segment<std::sync::Arc<crate::mem::Region>>);
        // SAFETY: the test touches the words as atomics only.
        unsafe impl Send for Shared<'_> {}
        let shared = Shared(peer);
        let (stop, came) = (&stop, &came);
        scope.spawn(move || {
            let shared = shared;
            let mut turn = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                // Frames come before the last word of all, which is rare.
                let is_last = turn % 997 == 996 && came.load(Ordering::Relaxed);
                let pick = if is_last { 3 } else { turn % 3 };
                for place in 0..256 {
                    shared.0.word(place * 16).store(words[pick], Ordering::Release);
                }
                turn += 1;
            }
        });
        let until = Instant::now() + 60 * SECOND;
        while closed.is_none() && Instant::now() < until {
            for event in side.poll() {
                match event {
                    Came::Frame { frame, .. } => {
                        assert!(
                            (frame.is_empty() && frame.tag() == Tag(1))
                                || (frame.len() == 1016 && frame.tag() == Tag(2)),
                            "a mixture: {} {:?}",
                            frame.len(),
                            frame.tag()
                        );
                        came.store(true, Ordering::Relaxed);
                        side.give_back(frame);
                    }
                    Came::Closed { reason, .. } => closed = Some(reason),
                    other => panic!("{other:?}"),
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(came.load(Ordering::Relaxed), "the race never happened");
    // A frame it was not granted, or a length that no frame has: both are in what it writes.
    let broke = |reason: &CloseReason| match reason {
        CloseReason::Violation(Violation::FrameLength { bytes, limit: 1024 }) => *bytes == 0xffff_ffff,
        CloseReason::Violation(Violation::Overrun { bytes }) => *bytes <= 1024,
        _ => false,
    };
    assert!(closed.as_ref().is_some_and(broke), "{closed:?}");
}

/// R71: a segment that lacks a seal could be cut or written under us, so it is refused.
#[test]
fn r71_a_missing_seal_is_refused() {
    let bytes = control_bytes() + 4096;
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL, SEALS] {
        let (mut side, client, _theirs) = waiting();
        let fd = memfd(bytes, SEALS.difference(missing), true);
        socket::send_grant(&client, fd.as_fd()).unwrap();
        assert_eq!(side.closed(), malformed("segment without its seals"), "{missing:?}");
    }
    // The same with all of them is taken, so it was the seals.
    let (mut side, client, _theirs) = waiting();
    socket::send_grant(&client, memfd(bytes, SEALS, true).as_fd()).unwrap();
    side.opened();
    // A pool segment is checked like a ring.
    send_pool(&client, 0, 4096, memfd(4096, SealFlags::SEAL, true).as_fd()).unwrap();
    assert_eq!(side.closed(), malformed("segment without its seals"));
}

/// R72: other descriptors than one sealed memfd of the right size; all of them are closed.
#[test]
fn r72_other_descriptors_are_refused_and_closed() {
    let bytes = control_bytes() + 4096;
    let device = rustix::fs::open("/dev/zero", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let no_memfd = "segment that is no memfd";
    let cases: [(OwnedFd, &str); 6] = [
        (rustix::pipe::pipe().unwrap().1, no_memfd),
        (device, no_memfd),
        (file, "segment without its seals"), // tmpfs and others answer F_GET_SEALS, with none or with SEAL
        (memfd(bytes - 4096, SEALS, true), "segment of another size"),
        (memfd(bytes + 4096, SEALS, true), "segment of another size"),
        (memfd(bytes, SEALS, false), "segment with holes"),
    ];
    for (fd, why) in cases {
        let (mut side, client, _theirs) = waiting();
        socket::send_grant(&client, fd.as_fd()).unwrap();
        let reason = side.closed();
        assert!(reason == malformed(why) || reason == malformed(no_memfd), "{reason}, not {why}");
    }

    // Two descriptors, three, none; in a packet too long; at the wrong time. A pipe tells whether they were closed.
    let odd = malformed("packet with other descriptors than one");
    let packet = malformed("packet on the rendezvous socket");
    let long = vec![b'x'; 1000];
    let cases: [(usize, &[u8], CloseReason); 7] = [
        (2, b"gmgrant1", odd.clone()),
        (3, b"gmgrant1", odd.clone()),
        (0, b"gmgrant1", packet.clone()),
        (1, b"gmgrant2", packet),
        (1, &long, odd),
        (1, &[b"gmpool_1", &[0; 16][..]].concat(), malformed("memory before the grant")),
        (1, &[b"gmexpos1", &[0; 16][..]].concat(), malformed("memory before the grant")),
    ];
    for (count, bytes, reason) in cases {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (mut side, client, _theirs) = waiting();
        send_many(&client, bytes, &vec![writer.as_fd(); count]);
        drop(writer);
        assert_eq!(side.closed(), reason);
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0), "somebody kept a descriptor");
    }
}

fn send_many(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

/// R72: the same from a server; the client says that it is no peer of ours.
#[test]
fn r72_a_server_with_a_bad_segment_is_foreign() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let Address::Shm { path } = &address else { panic!() };
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    // The listener is only a place here; the answers are the test's.
    drop(listener.accept(Duration::ZERO));
    drop(listener);
    let server = socket::open().unwrap();
    rustix::net::bind(&server, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&server, 8).unwrap();
    let hello = super::super::link::hello(&config(4096), 1).encode();
    let bytes = control_bytes() + 4096;
    let answer = |bytes: &[u8], fd: Option<OwnedFd>| {
        let mut connecting = connect(&address, &gate).unwrap();
        let client = rustix::net::accept(&server).unwrap();
        match fd {
            Some(fd) => socket::send_with(&client, bytes, fd.as_fd()).unwrap(),
            None => socket::send(&client, bytes).unwrap(),
        }
        connecting.poll(30 * SECOND).unwrap()
    };
    for (bytes, fd) in [
        (&hello[..], None),
        (&hello[..39], None),
        (b"HTTP/1.1 400 Bad", None),
        (b"HTTP/1.1 400 Bad Request", None),
        (&hello[..], Some(memfd(bytes, SealFlags::empty(), true))),
        (&hello[..], Some(memfd(bytes, SEALS, false))),
        (&hello[..], Some(rustix::pipe::pipe().unwrap().0)),
    ] {
        let error = answer(bytes, fd).unwrap_err();
        assert!(matches!(error, ConnectError::Foreign { .. }), "{error}");
    }
    for other in [VERSION - 1, VERSION + 1] {
        let mut theirs = hello;
        theirs[4] = other;
        let error = answer(&theirs, None).unwrap_err();
        let reason = RejectReason::Version { ours: VERSION, theirs: other };
        assert_eq!(error, ConnectError::Foreign { address: address.to_string(), reason });
        // It refuses our hello.
        let mut reject = encode_reject(RejectReason::Version { ours: other, theirs: VERSION });
        reject[4] = other;
        let error = answer(&reject, None).unwrap_err();
        let words = format!("protocol version {other} and this side {VERSION}; upgrade the older one");
        assert!(error.to_string().contains(&words), "{error}");
    }
    answer(&hello, Some(memfd(bytes, SEALS, true))).unwrap();
}

/// R73: whatever a peer tries with our segment, the kernel refuses to let it write. R79: its pages are there.
#[test]
fn r73_r79_the_peer_cannot_write_our_segment() {
    let (side, _client, theirs) = waiting();
    let bytes = control_bytes() + 4096;
    let map = |fd: &OwnedFd, protection| {
        // SAFETY: a new mapping wherever the kernel likes.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) }
    };
    assert_eq!(map(&theirs, ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
    let seen = map(&theirs, ProtFlags::READ).unwrap();
    // SAFETY: our own mapping, and the call must fail.
    let made_writable =
        unsafe { rustix::mm::mprotect(seen, bytes, MprotectFlags::READ | MprotectFlags::WRITE) };
    assert_eq!(made_writable, Err(Errno::ACCESS));
    // SAFETY: mapped above and not used any more.
    unsafe { rustix::mm::munmap(seen, bytes) }.unwrap();
    // A description of its own, by the back door.
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&theirs));
    let again = rustix::fs::open(name, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    for fd in [&theirs, &again] {
        assert_eq!(map(fd, ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 20), Err(Errno::PERM));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(fd, hole, 0, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    }
    let stat = rustix::fs::fstat(&theirs).unwrap();
    assert!(stat.st_blocks * 512 >= i64::try_from(bytes).unwrap());
    drop(side);
}

/// R74: a flood of doorbells costs a bounded piece of each look, and others are served meanwhile.
#[test]
fn r74_a_flood_of_doorbells_hurts_nobody() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let server = Shm.open_port(&config(4096)).unwrap();
    let port = Shm.open_port(&config(4096)).unwrap();
    let (accepted, flood) = links(&mut listener, &server.gate(), &port.gate());
    let mut server = Side::adopt(server, accepted);
    server.opened();
    let flooded = server.conn;
    let (accepted, connected) = links(&mut listener, &server.port.gate(), &port.gate());
    server.conn = server.port.adopt(accepted, Time(0)).unwrap();
    server.opened();
    let mut client = Side::adopt(port, connected);
    client.opened();
    for round in 0..200_u32 {
        while socket::send(&flood.end.socket, &[0]).is_ok() {}
        client.send(&round.to_le_bytes(), round);
        assert!(server.sleep(30 * SECOND));
        let frame = server.frame();
        assert_eq!(*frame, round.to_le_bytes());
        server.give_back(frame);
    }
    // Its own frames still come, and its bytes are read away.
    server.conn = flooded;
    flood.end.own.word(0).store(FrameWord::new(0, Tag(5)).bits(), Ordering::Release);
    assert_eq!(server.frame().tag(), Tag(5));
    while server.sleep(Duration::from_millis(5)) {
        assert!(server.poll().is_empty());
    }
}

/// R75: a peer that pretends to sleep and never reads its socket cannot make us block.
#[test]
fn r75_a_peer_that_never_reads_cannot_block_us() {
    let (mut side, peer) = victim(4096);
    let started = Instant::now();
    for round in 1..=20_000 {
        peer.end.own.armed().store(round, Ordering::SeqCst);
        peer.end.own.consumed().store(side.port.credit(side.conn).completed.0, Ordering::Release);
        side.send(b"are you there", 0);
    }
    assert!(started.elapsed() < 20 * SECOND);
    assert!(side.poll().is_empty(), "still open");
    let mut bytes = 0;
    while socket::receive(&peer.end.socket).is_ok_and(|packet| !packet.is_end()) {
        bytes += 1;
    }
    assert!((1..20_000).contains(&bytes), "{bytes} bytes were queued");
}

/// Packets that no connection may carry close it, whatever they are; random ones too.
#[test]
fn any_packet_is_answered_by_a_close() {
    let mut seed = 1_u64;
    for round in 0..200 {
        let (mut side, peer) = victim(4096);
        let mut bytes = vec![0; 2 + round * 7 % 300];
        for byte in &mut bytes {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (seed >> 56) as u8;
        }
        socket::send(&peer.end.socket, &bytes).unwrap();
        let reason = side.closed();
        assert!(matches!(reason, CloseReason::Violation(Violation::Malformed { .. })), "{reason}");
    }
    // A segment passed twice, one of no size, a second grant.
    for attack in 0..3 {
        let (mut side, peer) = victim(4096);
        let fd = memfd(4096, SEALS, true);
        match attack {
            0 => {
                send_pool(&peer.end.socket, 3, 4096, fd.as_fd()).unwrap();
                send_pool(&peer.end.socket, 3, 4096, fd.as_fd()).unwrap();
            }
            1 => send_pool(&peer.end.socket, 3, 0, fd.as_fd()).unwrap(),
            _ => socket::send_grant(&peer.end.socket, fd.as_fd()).unwrap(),
        }
        let reason = side.closed();
        assert!(matches!(reason, CloseReason::Violation(Violation::Malformed { .. })), "{reason}");
    }
}
