//! Idle connections are not polled, and nothing is lost by that.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::Instant;

const MS: u64 = 1_000_000;
/// A peer's ring is noticed within this.
const LOOK: u64 = 50_000;

/// A port with `count` connections, each to a client of its own, and its own ids of them.
pub(super) fn crowd(count: usize) -> (ShmPort, Vec<ConnId>, Vec<Side>) {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let mut port = Shm.open_port(&config(4096)).unwrap();
    let mut clients = Vec::new();
    let mut conns = Vec::new();
    for _ in 0..count {
        let client = Shm.open_port(&config(4096)).unwrap();
        let (theirs, ours) = links(&mut listener, &port.gate(), &client.gate());
        conns.push(port.adopt(theirs, Time(0)).unwrap());
        let mut client = Side::adopt(client, ours);
        client.opened();
        clients.push(client);
    }
    let (mut opened, mut polls) = (0, 0);
    while opened < count {
        opened += poll(&mut port, 0).len();
        polls += 1;
        assert!(polls < 1_000_000, "{opened} of {count} opened");
    }
    (port, conns, clients)
}

fn poll(port: &mut ShmPort, now: u64) -> Vec<Came> {
    testing::poll(port, Time(now), &mut Batch::new(64))
}

/// Polls at times so far apart that each brings a look around.
pub(super) fn look_often(port: &mut ShmPort, now: &mut u64) {
    for _ in 0..6 {
        *now += 100 * MS;
        assert!(poll(port, *now).is_empty());
    }
}

#[test]
fn the_idle_leave_the_polled_set_and_come_back_by_a_ring_or_by_a_send() {
    let (mut port, conns, mut clients) = crowd(20);
    let mut now = 0;
    look_often(&mut port, &mut now);
    assert_eq!((port.table.active.len(), port.table.parked), (2, 18));

    // The last one's client sends: its ring is seen by the next look at the parked, and it is polled again.
    clients[19].send(b"hello", 7);
    now += LOOK + 1;
    let mut events = poll(&mut port, now);
    events.extend(poll(&mut port, now));
    let [Came::Frame { conn, frame }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*conn, &frame[..], frame.tag()), (conns[19], &b"hello"[..], Tag(7)));
    assert_eq!(port.table.parked, 17);

    // We send on another one: its answer is looked for without a ring.
    let chosen = (0..20).find(|at| port.table.parked_conn(conns[*at])).unwrap();
    stage(&mut port, conns[chosen], b"ping", 1).unwrap();
    assert_eq!(port.table.parked, 16);
    port.flush();
    assert_eq!(&clients[chosen].frame()[..], b"ping");
    clients[chosen].send(b"pong", 2);
    assert!(!readable(port.wait_fd(), Duration::ZERO), "no byte for one who looks");
    let events = poll(&mut port, now);
    assert!(matches!(&events[..], [Came::Frame { conn, .. }] if *conn == conns[chosen]), "{events:?}");
}

#[test]
fn a_parked_peer_that_leaves_is_told() {
    let (mut port, conns, mut clients) = crowd(8);
    let mut now = 0;
    look_often(&mut port, &mut now);
    let chosen = (0..8).find(|at| port.table.parked_conn(conns[*at])).unwrap();
    clients.remove(chosen);
    let mut events = Vec::new();
    for _ in 0..20 {
        now += LOOK + 1;
        events.extend(poll(&mut port, now));
    }
    let [Came::Closed { conn, reason }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*conn, reason), (conns[chosen], &CloseReason::Peer));
    assert_eq!(port.table.active.len() + port.table.parked, 7);
    port.close(conns[(chosen + 1) % 8], CloseReason::Local, Time(now));
    assert_eq!(poll(&mut port, now).len(), 1);
    assert_eq!(port.table.active.len() + port.table.parked, 6);
}

/// R44: the peer writes at any moment of the parking, and is always heard.
#[test]
fn no_frame_is_lost_between_polling_and_parking() {
    const ROUNDS: u64 = 20_000;
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let mut port = Shm.open_port(&config(4096)).unwrap();
    // One when all have opened, and one more for each frame.
    let heard = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| send_in_turn(&address, &heard, ROUNDS));
        let mut conns = Vec::new();
        while conns.len() < 3 {
            let incoming = listener.accept(30 * SECOND).unwrap().expect("a client is there");
            conns.push(port.adopt(incoming.accept(&port.gate()).unwrap(), Time(0)).unwrap());
        }
        // The time that is told below runs far ahead of the clients' handshakes.
        let (mut opened, until) = (0, Instant::now() + 30 * SECOND);
        while opened < 3 {
            opened += poll(&mut port, 0).iter().filter(|came| matches!(came, Came::Opened { .. })).count();
            assert!(Instant::now() < until, "{opened} have opened");
            std::thread::yield_now();
        }
        heard.store(1, Ordering::Release);
        let (mut now, mut from_parked) = (0, 0);
        for round in 0..ROUNDS {
            let until = Instant::now() + 30 * SECOND;
            let next = conns[(round % 3) as usize];
            let mut was_parked = false;
            loop {
                now += LOOK + 1;
                // Far more often than looks would: each round meets a connection that was just parked, or is being.
                port.table.park_idle();
                was_parked |= port.table.parked_conn(next);
                let frame = poll(&mut port, now).into_iter().find_map(|event| match event {
                    Came::Frame { conn, frame } => Some((conn, frame)),
                    _ => None,
                });
                if let Some((conn, frame)) = frame {
                    assert_eq!((conn, &frame[..]), (next, &round.to_le_bytes()[..]));
                    from_parked += u64::from(was_parked);
                    let bytes = frame.end();
                    drop(frame);
                    port.return_credit(conn, Credit { bytes, arrivals: 0 });
                    break;
                }
                assert!(Instant::now() < until, "round {round} was never heard");
                std::thread::yield_now();
            }
            heard.store(round + 2, Ordering::Release);
        }
        assert!(from_parked >= 10, "only {from_parked} frames came to a parked connection");
    });
}

/// Three clients that send one frame each, one after the other, each as soon as the one before was heard.
fn send_in_turn(address: &Address, heard: &AtomicU64, rounds: u64) {
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let port = Shm.open_port(&config(4096)).unwrap();
            let link =
                connect(address, &port.gate()).unwrap().poll(SECOND.saturating_mul(30)).unwrap().unwrap();
            let mut client = Side::adopt(port, link);
            client.opened();
            client
        })
        .collect();
    for round in 0..=rounds {
        // Longer than the other side waits, which says what is wrong.
        let until = Instant::now() + SECOND.saturating_mul(60);
        while heard.load(Ordering::Acquire) <= round {
            assert!(Instant::now() < until, "round {round} was given up");
            std::thread::yield_now();
        }
        if round < rounds {
            clients[(round % 3) as usize].send(&round.to_le_bytes(), 0);
        }
    }
}
