//! Sleeping and waking: nothing is lost, and nobody is rung who is awake.

use super::*;
use crate::Instant;

#[test]
fn a_frame_a_credit_a_close_and_a_waker_wake_a_sleeper() {
    let (mut server, mut client) = pair(4096);
    assert!(!server.sleep(Duration::from_millis(20)), "nothing happened yet");
    client.send(b"wake", 0);
    assert!(server.sleep(30 * SECOND));
    let frame = server.frame();

    // Credit wakes a sender that waits for it.
    assert!(client.port.arm());
    server.give_back(frame);
    server.port.flush();
    assert!(readable(client.port.wait_fd(), SECOND));
    client.port.disarm();
    assert_eq!(client.port.credit(client.conn).peer.unwrap().bytes.0, 16);
    assert!(!client.sleep(Duration::from_millis(20)), "told once");

    // The port's waker, from another thread.
    let waker = server.port.waker();
    assert!(server.port.arm());
    std::thread::spawn(move || waker.ring()).join().unwrap();
    assert!(readable(server.port.wait_fd(), SECOND));
    server.port.disarm();
    assert!(!server.sleep(Duration::from_millis(20)));

    assert!(server.port.arm());
    drop(client);
    assert!(readable(server.port.wait_fd(), SECOND));
    server.port.disarm();
    assert_eq!(server.closed(), CloseReason::Peer);
}

#[test]
fn arming_says_no_when_something_is_there() {
    let (mut server, mut client) = pair(4096);
    client.send(b"early", 0);
    assert!(!server.port.arm());
    let frame = server.frame();
    assert!(server.port.arm());
    server.port.disarm();
    server.give_back(frame);
    server.port.flush();
    assert!(!client.port.arm(), "credit came");
    assert!(client.port.arm(), "and is told once");
    client.port.disarm();
}

#[test]
fn a_sleeper_is_rung_once_and_an_awake_one_never() {
    let (mut server, mut client) = pair(16 << 10);
    let conn = server.conn;
    for _ in 0..100 {
        client.send(b"awake", 0);
    }
    assert!(!readable(server.port.wait_fd(), Duration::ZERO), "no byte for one who is awake");
    let mut frames = 0;
    while frames < 100 {
        frames += server.wait().len();
    }
    assert!(server.port.arm());
    for _ in 0..100 {
        client.send(b"asleep", 0);
    }
    assert!(readable(server.port.wait_fd(), SECOND));
    let super::super::table::Stage::Live(live) = &server.port.table.slots[conn.index() as usize].stage else {
        panic!()
    };
    let mut bytes = 0;
    while socket::receive(&live.end.socket).is_ok() {
        bytes += 1;
    }
    assert_eq!(bytes, 1);
    server.port.disarm();
}

/// Every wait is a sleep on both sides, but for some rounds that spin; a lost wake-up hangs and fails.
#[test]
fn a_hundred_thousand_ping_pongs_with_sleep_in_between() {
    const COUNT: u32 = 100_000;
    fn next(side: &mut Side, round: u32) -> RxFrame {
        let until = Instant::now() + 30 * SECOND;
        loop {
            let mut events = side.poll();
            if let Some(event) = events.pop() {
                let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
                return frame;
            }
            assert!(Instant::now() < until, "a wake-up was lost in round {round}");
            if !round.is_multiple_of(7) {
                assert!(side.sleep(30 * SECOND), "a wake-up was lost in round {round}");
            } else {
                std::thread::yield_now();
            }
        }
    }
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let server = std::thread::spawn(move || {
        let port = Shm.open_port(&config(4096)).unwrap();
        let accepted = listener.accept(30 * SECOND).unwrap().unwrap().accept(&port.gate()).unwrap();
        let mut side = Side::adopt(port, accepted);
        side.opened();
        for round in 0..COUNT {
            let frame = next(&mut side, round);
            side.commit(&frame, round);
            side.give_back(frame);
            side.port.flush();
        }
        // Alive until the client has read the last answer.
        assert_eq!(side.closed(), CloseReason::Peer);
    });
    let port = Shm.open_port(&config(4096)).unwrap();
    let connected = connect(&address, &port.gate()).unwrap().poll(30 * SECOND).unwrap().unwrap();
    let mut side = Side::adopt(port, connected);
    side.opened();
    for round in 0..COUNT {
        side.send(&round.to_le_bytes(), round);
        let frame = next(&mut side, round);
        assert_eq!(*frame, round.to_le_bytes());
        side.give_back(frame);
    }
    drop(side);
    server.join().unwrap();
}

#[test]
fn a_grant_wakes_a_sleeping_server() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let server = Shm.open_port(&config(4096)).unwrap();
    let client = Shm.open_port(&config(4096)).unwrap();
    let mut connecting = connect(&address, &client.gate()).unwrap();
    let accepted = listener.accept(30 * SECOND).unwrap().unwrap().accept(&server.gate()).unwrap();
    let mut server = Side::adopt(server, accepted);
    assert_ne!(server.port.deadline(), Time::NEVER);
    assert!(server.port.arm());
    assert!(!readable(server.port.wait_fd(), Duration::from_millis(20)));
    let _link = connecting.poll(30 * SECOND).unwrap().unwrap();
    assert!(readable(server.port.wait_fd(), SECOND));
    server.port.disarm();
    server.opened();
    assert_eq!(server.port.deadline(), Time::NEVER);
}

/// There was no memory for the packet that wakes the peer: the next flush rings.
#[test]
fn a_doorbell_that_could_not_be_sent_is_sent_by_the_next_flush() {
    for errno in [Errno::NOBUFS, Errno::NOMEM] {
        let (mut server, mut client) = pair(4096);
        assert!(server.port.arm());
        client.commit(b"wake", 0);
        // Once for the frame, and once more by the same flush.
        socket::fail_next(errno);
        client.port.flush();
        client.port.flush();
        assert!(readable(server.port.wait_fd(), SECOND), "{errno}");
        server.port.disarm();
        let frame = server.frame();

        // Credit alone.
        assert!(client.port.arm());
        socket::fail_next(errno);
        server.give_back(frame);
        server.port.flush();
        assert!(!readable(client.port.wait_fd(), Duration::ZERO), "{errno}: not injected");
        server.port.flush();
        assert!(readable(client.port.wait_fd(), SECOND), "{errno}");
        client.port.disarm();
        assert!(server.port.arm(), "nothing is left to be rung");
        server.port.disarm();
    }
}

/// A full socket holds doorbells that the peer has not read.
#[test]
fn a_doorbell_that_a_full_socket_refuses_is_not_sent_again() {
    let (mut server, mut client) = pair(4096);
    assert!(server.port.arm());
    socket::fail_next(Errno::AGAIN);
    client.send(b"wake", 0);
    client.port.flush();
    assert!(!readable(server.port.wait_fd(), Duration::ZERO));
    server.port.disarm();
}

/// A sleep costs what the polled connections cost: those that are parked are armed already, and their peers ring.
#[test]
fn parked_connections_take_no_part_in_a_sleep() {
    let (mut port, conns, mut clients) = park::crowd(8);
    let mut now = 0;
    park::look_often(&mut port, &mut now);
    let chosen = (0..8).find(|at| port.table.parked_conn(conns[*at])).unwrap();
    // Published, and not rung for.
    clients[chosen].commit(b"later", 0);
    assert!(port.arm(), "a parked connection was looked at");
    assert!(!readable(port.wait_fd(), Duration::ZERO));
    clients[chosen].port.flush();
    assert!(readable(port.wait_fd(), SECOND), "its peer's ring ends the sleep");
    port.disarm();
    let mut batch = Batch::new(64);
    let came: Vec<_> = (0..3).flat_map(|_| testing::poll(&mut port, Time(now), &mut batch)).collect();
    assert!(matches!(&came[..], [Came::Frame { conn, .. }] if *conn == conns[chosen]), "{came:?}");
    // One that is polled is looked at.
    let polled = (0..8).find(|at| !port.table.parked_conn(conns[*at]) && *at != chosen).unwrap();
    clients[polled].commit(b"now", 0);
    assert!(!port.arm());
}
