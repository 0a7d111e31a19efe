//! Frames there and back: every size, every place in the ring, many connections.

use super::*;
use crate::frame::span;

#[test]
fn both_sides_negotiate_the_same_geometry() {
    let (server, client) = pair_of(&config(8 << 10), &config(64 << 10));
    let (at_server, at_client) = (&server.port, &client.port);
    assert_eq!(at_server.counters(server.conn), at_client.counters(client.conn));
    drop((server, client));
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let (server, client) =
        (Shm.open_port(&config(8 << 10)).unwrap(), Shm.open_port(&config(64 << 10)).unwrap());
    let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
    assert_eq!(accepted.negotiated.tx_ring_bytes, 64 << 10);
    assert_eq!(accepted.negotiated.rx_ring_bytes, 8 << 10);
    assert_eq!(connected.negotiated.tx_ring_bytes, 8 << 10);
    assert_eq!(connected.negotiated.frame_bytes_max, 2 << 10);
    assert!(connected.negotiated.peer.contains(&std::process::id().to_string()));
    assert!(connected.negotiated.to_string().contains("shared words"));
}

#[test]
fn every_size_wraps_at_every_place() {
    let (mut server, mut client) = pair(4096);
    let mut seed = 0;
    // Sizes around each multiple of the alignment; odd spans walk through all places of the ring.
    for round in 0..3 {
        for size in (0..=40).chain([111, 112, 113, 119, 120, 121, 500, 1000, 1015, 1016]) {
            seed += 1;
            let payload = pattern(seed, size);
            client.send(&payload, seed);
            let frame = server.frame();
            assert_eq!((&*frame, frame.tag()), (&payload[..], Tag(seed)), "size {size}, round {round}");
            // Answered from where it landed, before its credit goes back.
            server.send(&frame, seed);
            server.give_back(frame);
            let answer = client.frame();
            assert_eq!((&*answer, answer.tag()), (&payload[..], Tag(seed)), "size {size}, round {round}");
            client.give_back(answer);
        }
    }
    assert_eq!(client.port.counters(client.conn).frames_received, u64::from(seed));
    assert_eq!(server.port.counters(server.conn).doorbells, u64::from(seed));
}

#[test]
fn a_window_fills_the_ring_but_for_the_next_word() {
    let (mut server, mut client) = pair(4096);
    for round in 0..20_u64 {
        // One flush for all of it; 16-byte frames leave room for all but one.
        let mut sent = 0_u64;
        while client.has_room(8).is_ok() {
            client.commit(&(round * 1000 + sent).to_le_bytes(), 0);
            sent += 1;
        }
        assert_eq!(sent, 4096 / 16 - 1);
        assert_eq!(client.has_room(0), Err(Refused::Full));
        client.port.flush();
        let mut received = Vec::new();
        while received.len() < sent as usize {
            received.extend(server.wait());
        }
        for (number, event) in received.into_iter().enumerate() {
            let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
            assert_eq!(*frame, (round * 1000 + number as u64).to_le_bytes());
            server.give_back(frame);
        }
        server.port.flush();
        assert!(server.poll().is_empty());
    }
    assert_eq!(client.port.counters(client.conn).doorbells, 20);
}

#[test]
fn refusals_name_their_limit_and_leave_nothing_behind() {
    let (mut server, mut client) = pair(4096);
    let limit = 1024 - 8;
    assert_eq!(client.has_room(limit + 1), Err(Refused::TooLarge { bytes: limit + 1, limit }));
    let at = client.port.credit(client.conn).completed;
    // What is given up, or longer than what was lent, is no frame.
    client.scribble(b"given up");
    let staged = |payload_bytes| Some(Staged { payload_bytes, tag: Tag(1), chain: Chain::Begin });
    assert_eq!(client.port.compose(client.conn, 8, |_| staged(9)), Ok(Some(at)));
    client.port.flush();
    assert!(server.poll().is_empty());
    // Less than was lent is fine.
    let end = client.port.compose(client.conn, limit, |room| {
        room[..3].copy_from_slice(b"abc");
        staged(3)
    });
    assert_eq!(end, Ok(Some(at.plus(span(3) as u64))));
    client.port.flush();
    assert_eq!(&*server.frame(), b"abc");
    // A connection that never was, and one that was.
    assert_eq!(stage(&mut client.port, ConnId::new(7, 1), b"x", 0), Err(Refused::Closed));
    let conn = client.conn;
    client.port.close(conn, CloseReason::Local, Time(0));
    assert_eq!(client.has_room(8), Err(Refused::Closed));
    assert_eq!(client.port.credit(conn).peer, None);
    client.port.close(conn, CloseReason::Local, Time(0));
    assert_eq!(client.closed(), CloseReason::Local);
}

#[test]
fn credit_is_what_the_peer_gave_back() {
    let (mut server, mut client) = pair(4096);
    for number in 1..=2 {
        client.send(b"one", 0);
        assert_eq!(client.port.credit(client.conn).peer.unwrap().bytes.0, 16 * (number - 1));
        let frame = server.frame();
        server.give_back(frame);
        assert_eq!(client.port.credit(client.conn).peer.unwrap().bytes.0, 16 * number);
    }
}

/// A poll takes eight frames at most, however many wait.
#[test]
fn a_run_has_eight_frames_at_most() {
    let (mut server, mut client) = pair(16 << 10);
    for _ in 0..2 {
        for _ in 0..40 {
            client.commit(b"many", 0);
        }
        client.port.flush();
        let runs: Vec<_> = (0..6).map(|_| server.poll().len()).collect();
        assert_eq!(runs, [8, 8, 8, 8, 8, 0]);
    }
}

#[test]
fn what_was_committed_before_a_close_still_arrives() {
    let (mut server, mut client) = pair(4096);
    for number in 0..10 {
        client.send(&[number], number.into());
    }
    client.commit(&[10], 10);
    let conn = client.conn;
    client.port.close(conn, CloseReason::Local, Time(0));
    drop(client);
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Came::Closed { .. })) {
        events.extend(server.wait());
    }
    assert_eq!(events.len(), 12);
    for (number, event) in events.iter().take(11).enumerate() {
        let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
        assert_eq!(**frame, [number as u8]);
    }
    let Some(Came::Closed { reason, .. }) = events.last() else { panic!() };
    assert_eq!(*reason, CloseReason::Peer);
    // A frame outlives its connection and its port.
    drop(server);
    let Came::Frame { frame, .. } = events.swap_remove(3) else { panic!() };
    assert_eq!(*frame, [3]);
}

#[test]
fn one_port_serves_many_connections_fairly() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let mut server = Shm.open_port(&config(4096)).unwrap();
    let mut clients = Vec::new();
    for _ in 0..8 {
        let port = Shm.open_port(&config(4096)).unwrap();
        let (accepted, connected) = links(&mut listener, &server.gate(), &port.gate());
        server.adopt(accepted, Time(0)).unwrap();
        clients.push(Side::adopt(port, connected));
    }
    let mut batch = Batch::new(16);
    let mut open = 0;
    while open < 8 {
        server.poll(Time(0), &mut batch);
        open += batch.drain().filter(|event| matches!(event, crate::Event::Opened { .. })).count();
    }
    for client in &mut clients {
        client.opened();
        for number in 0..30 {
            client.commit(&[number], 0);
        }
        client.port.flush();
    }
    // 240 frames in batches of 16: nobody waits for more than all others' first turn.
    let mut first_seen = [None; 8];
    let (mut received, mut polls) = (0, 0);
    while received < 240 {
        for event in testing::poll(&mut server, Time(0), &mut batch) {
            let Came::Frame { conn, .. } = event else { panic!("{event:?}") };
            first_seen[conn.index() as usize].get_or_insert(polls);
            received += 1;
        }
        polls += 1;
    }
    assert!(first_seen.iter().all(|seen| seen.is_some_and(|poll| poll <= 16)), "{first_seen:?}");
}

#[test]
fn a_stale_id_is_refused_when_its_slot_is_used_again() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let mut server = Shm.open_port(&PortConfig { connections: 1, ..config(4096) }).unwrap();
    let client = Shm.open_port(&config(4096)).unwrap();
    let (accepted, _first) = links(&mut listener, &server.gate(), &client.gate());
    let old = server.adopt(accepted, Time(0)).unwrap();
    let (accepted, kept) = links(&mut listener, &server.gate(), &client.gate());
    let error = server.adopt(accepted, Time(0)).unwrap_err();
    assert_eq!(error, crate::PortError::Limit { field: "connections", value: 2, limit: 1 });
    server.close(old, CloseReason::Local, Time(0));
    let mut batch = Batch::new(4);
    while batch.is_empty() {
        server.poll(Time(0), &mut batch);
    }
    drop(kept);
    let (accepted, _second) = links(&mut listener, &server.gate(), &client.gate());
    let new = server.adopt(accepted, Time(0)).unwrap();
    assert_eq!((old.index(), new.index()), (0, 0));
    assert_ne!(old, new);
    assert_eq!(stage(&mut server, old, b"x", 0), Err(Refused::Closed));
    server.close(old, CloseReason::Local, Time(0));
    batch.drain();
    while batch.is_empty() {
        server.poll(Time(0), &mut batch);
    }
    assert!(matches!(batch.drain().next(), Some(crate::Event::Opened { conn, .. }) if conn == new));
}

#[test]
fn two_threads_echo_with_their_own_ports() {
    const COUNT: u32 = 20_000;
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let server = std::thread::spawn(move || {
        let port = Shm.open_port(&config(16 << 10)).unwrap();
        let accepted = listener.accept(30 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
        let mut side = Side::adopt(port, accepted);
        side.opened();
        let mut echoed = 0;
        while echoed < COUNT {
            for event in side.wait() {
                let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
                side.commit(&frame, frame.tag().0);
                side.give_back(frame);
                echoed += 1;
            }
            side.port.flush();
        }
        side.closed()
    });
    let port = Shm.open_port(&config(16 << 10)).unwrap();
    let connected = connect(&address, &port.gate()).unwrap().poll(30 * SECOND).unwrap().unwrap();
    let mut side = Side::adopt(port, connected);
    side.opened();
    let (mut sent, mut received) = (0, 0);
    while received < COUNT {
        while sent < COUNT && sent - received < 32 {
            side.commit(&pattern(sent, sent as usize % 200), sent);
            sent += 1;
        }
        side.port.flush();
        for event in side.wait() {
            let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
            assert_eq!(frame.tag(), Tag(received));
            assert_eq!(*frame, pattern(received, received as usize % 200));
            side.give_back(frame);
            received += 1;
        }
    }
    drop(side);
    assert_eq!(server.join().unwrap(), CloseReason::Peer);
}
