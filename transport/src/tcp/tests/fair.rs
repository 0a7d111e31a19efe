//! Rounds that leave nobody out, and cost what they have to.

use super::{super::table::REST_AFTER, idle::lives, *};
use crate::{
    Gate, OneSided, Transfer, Wait, kernel,
    mem::Accessed,
    tcp::{socket, table::SEARCHES, wire::Wire},
};

fn resident(side: &Side) -> usize {
    lives(side).map(|live| live.rx.resident() + live.out.resident()).sum()
}

/// Frames that were flushed arrive, although a record that left in part goes on before them: the goodbye does not.
#[test]
fn goodbye_leaves_behind_flushed_frames() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    let (mut side, _client) = open(64 << 10);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    let live = side.port.table.slots[0].live.as_mut().unwrap();
    live.wire = Wire::Plain(ours);
    // Until the kernel takes no more, which it does not do at the end of a record.
    let mut said = 0;
    let filler = Record::End { id: 0, status: 0 };
    live.out.say(Record::Data { id: 0, bytes: 5 }, &[1; 5]);
    while live.out.unsent_bytes() == 0 || said == 0 {
        for _ in 0..1000 {
            live.out.say(filler, &[]);
            said += 1;
        }
        live.out.send(&mut live.wire).unwrap();
    }
    for tag in 0..3 {
        live.out.place(8).unwrap().copy_from_slice(&[2; 8]);
        live.out.commit(8, Tag(tag));
    }
    live.out.flush();
    live.say_goodbye(&CloseReason::Local);
    let (mut got, mut bytes, until) = (Vec::new(), vec![0; 1 << 20], Instant::now() + LONG);
    while !live.push_last() {
        assert!(Instant::now() < until, "not all leaves");
        if let Ok(count) = rustix::io::read(&theirs, &mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
    }
    while let Ok(count @ 1..) = rustix::io::read(&theirs, &mut bytes) {
        got.extend_from_slice(&bytes[..count]);
    }
    let word = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().unwrap());
    let (mut at, mut frames, mut goodbyes) = (16 + 5, 0, 0);
    while at < got.len() {
        if word(at) & u64::from(u32::MAX) == 0 {
            let record = Record::decode(word(at), word(at + 8)).unwrap();
            if let Record::Goodbye { .. } = record {
                assert_eq!(frames, 3, "they come before the goodbye");
                goodbyes += 1;
            } else {
                assert_eq!(record, filler, "at {at}");
            }
        } else {
            assert_eq!(got[at..at + 16], frame(&[2; 8], frames), "at {at}");
            frames += 1;
        }
        at += 16;
    }
    assert_eq!((frames, goodbyes), (3, 1));
}

/// A worker that sleeps before the grant comes, and longer than a connection has to rest.
#[test]
fn a_connection_whose_grant_comes_late_gives_its_pages_back() {
    let mut listener = listen(&patient_listen());
    let port = Tcp.open_port(&config(64 << 10)).unwrap();
    let mut client = dial(&listener);
    client.write_all(&hello(&config(64 << 10), 1).encode()).unwrap();
    let accepted = listener.accept(LONG).unwrap().unwrap().accept(&port.gate()).unwrap();
    client.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    let mut side = Side::adopt(port, accepted);
    assert!(side.port.arm(), "nothing is there");
    let mut now = Time(0).plus(2 * REST_AFTER);
    assert!(testing::poll(&mut side.port, now, &mut side.batch).is_empty());
    client.write_all(&Record::Grant.encode()).unwrap();
    client.write_all(&frame(&[7; 9000], 1)).unwrap();
    let (mut frames, until) = (0, Instant::now() + LONG);
    while frames == 0 {
        for came in testing::poll(&mut side.port, now, &mut side.batch) {
            if let Came::Frame { conn, frame } = came {
                let end = frame.end();
                side.port.release(conn, frame);
                side.port.return_credit(conn, Credit { bytes: end, arrivals: 0 });
                frames += 1;
            }
        }
        assert!(Instant::now() < until, "no frame came");
    }
    assert!(resident(&side) >= 9000);
    for _ in 0..100 {
        side.port.flush();
        if side.port.arm() {
            side.port.disarm();
        }
        now = now.plus(REST_AFTER);
        testing::poll(&mut side.port, now, &mut side.batch);
    }
    assert_eq!(resident(&side), 0);
}

/// A handshake that waits costs a look around nothing before it is late.
#[test]
fn slots_are_searched_for_late_handshakes_when_one_is_due() {
    let mut listener = listen(&patient_listen());
    let port = Tcp.open_port(&config(4096)).unwrap();
    let mut client = dial(&listener);
    client.write_all(&hello(&config(4096), 1).encode()).unwrap();
    let accepted = listener.accept(LONG).unwrap().unwrap().accept(&port.gate()).unwrap();
    let due = Time(0).plus(accepted.handshake_timeout);
    let mut side = Side::adopt(port, accepted);
    let before = SEARCHES.get();
    for at in 0..100 {
        side.port.table.look_around(Time(at));
    }
    assert_eq!(SEARCHES.get() - before, 0);
    let came = testing::poll(&mut side.port, due, &mut side.batch);
    let is_late = |came: &Came| matches!(came, Came::Closed { reason: CloseReason::Handshake, .. });
    assert!(came.iter().any(is_late), "{came:?}");
    assert_eq!(SEARCHES.get() - before, 1);
}

/// An event loop is told once of what the epoll set has, and one look takes a part of it: the owner does not sleep before the rest.
#[test]
fn a_port_does_not_sleep_before_it_has_seen_all_that_woke_it() {
    const CLIENTS: usize = 100;
    let mut listener = listen(&ListenOptions { backlog: 256, ..patient_listen() });
    let port = Tcp.open_port(&config(4096)).unwrap();
    let (accepted, client) = greet(&mut listener, &port, 4096);
    let (mut side, mut clients) = (Side::adopt(port, accepted), vec![client]);
    while clients.len() < CLIENTS {
        let (accepted, client) = greet(&mut listener, &side.port, 4096);
        side.port.adopt(accepted, Time(0)).unwrap();
        clients.push(client);
    }
    let until = Instant::now() + LONG;
    while side.port.table.parked < CLIENTS - 1 {
        testing::poll(&mut side.port, Time(0), &mut side.batch);
        assert!(Instant::now() < until, "{} are parked", side.port.table.parked);
    }
    while !side.port.arm() {
        testing::poll(&mut side.port, Time(0), &mut side.batch);
        assert!(Instant::now() < until, "it does not sleep");
    }
    for client in &mut clients {
        client.write_all(&Record::Credit { position: 0 }.encode()).unwrap();
    }
    lives(&side).for_each(|live| socket::wait(live.wire.socket(), false, until));
    // It wakes up, and turns until it may sleep.
    side.port.disarm();
    side.port.poll(Time(0), &mut side.batch);
    while !side.port.arm() {
        testing::poll(&mut side.port, Time(0), &mut side.batch);
        assert!(Instant::now() < until, "it does not sleep");
    }
    let is_unread = |live: &&super::super::live::Live| {
        kernel::wait_readable(std::os::fd::AsFd::as_fd(live.wire.socket()), Instant::now()) == Ok(true)
    };
    assert_eq!(lives(&side).filter(is_unread).count(), 0, "connections have bytes that nobody tells of");
}

/// What this side writes, again and again, does not keep the peer from what it pulls.
#[test]
fn a_pull_ends_beside_writes_that_never_do() {
    const BYTES: usize = 4 << 20;
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(64 << 10)).unwrap());
    let (accepted, made) = links(&mut listener, &server, &client);
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, made));
    server.opened();
    client.opened();
    let exposed = server.port.gate().expose(server.conn, BYTES).unwrap();
    let remote = server.port.show(server.conn, &exposed).unwrap();
    let gate = client.port.gate();
    let lent = gate.allocate(client.conn, BYTES).unwrap();
    let offer = client.port.offer(client.conn, &lent).unwrap();
    for token in 0..2 {
        let from = gate.allocate(client.conn, BYTES).unwrap();
        client.port.access(client.conn, remote, OneSided::Write { at: 0, from }, token).unwrap();
    }
    client.port.flush();
    assert!(server.port.pull(server.conn, offer, 7).unwrap().is_none());
    let (mut writes, mut is_pulled, until) = (0, false, Instant::now() + LONG);
    while !is_pulled {
        for came in client.poll() {
            let Came::Accessed { result: Ok(Accessed::Loan(from)), token, .. } = came else {
                panic!("{came:?}")
            };
            client.port.access(client.conn, remote, OneSided::Write { at: 0, from }, token).unwrap();
            writes += 1;
        }
        for came in server.poll() {
            let Came::Pulled { result, token: 7, .. } = came else { panic!("{came:?}") };
            assert_eq!(result.unwrap().len(), BYTES);
            is_pulled = true;
        }
        client.port.flush();
        server.port.flush();
        assert!(writes < 64 && Instant::now() < until, "the pull waits for {writes} writes");
    }
}
