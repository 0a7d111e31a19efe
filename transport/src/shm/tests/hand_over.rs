//! A connection that one port gives up and another adopts, as it stands.

use super::*;
use crate::{Gate, Offer, Trust};

/// A server with a second port, and the client.
struct Three {
    server: Side,
    other: ShmPort,
    client: Side,
}

impl Three {
    fn new(trust: Trust) -> Self {
        let (_folder, address) = place();
        let mut listener =
            Shm.listen(&address, &ListenOptions { trust, ..ListenOptions::default() }).unwrap();
        let [server, other, client] = [(); 3].map(|()| Shm.open_port(&config(4096)).unwrap());
        let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
        let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, connected));
        client.opened();
        server.opened();
        Self { server, other, client }
    }

    /// The link, and the side whose port gave it up: it has the other port from now on.
    fn give_up(&mut self) -> ShmLink {
        let (conn, frames) = (self.server.conn, self.server.port.counters(self.server.conn).frames_received);
        let (link, told) = self.server.port.give_up(conn, || Some(frames)).expect("it is at rest");
        assert_eq!(told, frames);
        assert!(self.server.port.give_up(conn, || Some(())).is_none(), "it is gone");
        assert!(self.server.poll().is_empty(), "and nothing says so");
        std::mem::swap(&mut self.server.port, &mut self.other);
        link
    }

    fn hand_over(&mut self) {
        let link = self.give_up();
        let before = link.standing.as_ref().unwrap().counters;
        self.server.conn = self.server.port.adopt(link, Time(0)).unwrap();
        assert_eq!(self.server.port.counters(self.server.conn), before);
    }
}

/// Frames that nobody has read yet, and credit that nobody was given, go along.
#[test]
fn frames_go_on_where_they_were() {
    for trust in [Trust::Peer, Trust::None] {
        let mut three = Three::new(trust);
        let (mut sent, mut read, mut echoed) = (0, 0, 0);
        let mut owed = Vec::new();
        for round in 0..2000 {
            for _ in 0..round % 4 {
                three.client.send(&pattern(sent, 80), sent);
                sent += 1;
            }
            if round % 3 == 0 {
                three.hand_over();
            }
            while read < sent {
                for event in three.server.wait() {
                    let Event::Frame { frame, .. } = event else { panic!("{event:?}") };
                    assert_eq!((&*frame, frame.tag()), (&pattern(read, 80)[..], Tag(read)));
                    three.server.send(&frame, read);
                    read += 1;
                    owed.push(Credit { bytes: frame.end(), arrivals: 0 });
                    three.server.port.release(three.server.conn, frame);
                }
            }
            if round % 5 == 0
                && let Some(credit) = owed.drain(..).next_back()
            {
                three.server.port.return_credit(three.server.conn, credit);
                three.server.port.flush();
            }
            while echoed < sent {
                for event in three.client.wait() {
                    let Event::Frame { frame, .. } = event else { panic!("{event:?}") };
                    assert_eq!((&*frame, frame.tag()), (&pattern(echoed, 80)[..], Tag(echoed)));
                    echoed += 1;
                    three.client.give_back(frame);
                }
            }
        }
        assert_eq!((read, echoed), (3000, 3000));
        assert_eq!(three.server.port.counters(three.server.conn).frames_received, 3000);
    }
}

/// The first port has slept often, and the peer has rung for its last sleep; the second one sleeps for the first time.
#[test]
fn a_peer_rings_wherever_it_is() {
    let mut three = Three::new(Trust::Peer);
    for number in 0..20 {
        for _ in 0..number % 4 {
            three.client.send(b"wake", 0);
            assert!(three.server.sleep(SECOND));
            let frame = three.server.frame();
            three.server.give_back(frame);
        }
        three.server.port.flush();
        three.hand_over();
        assert!(three.server.port.arm(), "nothing is there");
        three.client.send(b"there", 0);
        assert!(readable(three.server.port.wait_fd(), SECOND), "not rung after {number} moves");
        three.server.port.disarm();
        let frame = three.server.frame();
        three.server.give_back(frame);
        three.server.port.flush();
    }
}

#[test]
fn what_is_in_use_stays() {
    let mut three = Three::new(Trust::Peer);
    let Three { server, client, .. } = &mut three;
    let conn = server.conn;
    server.commit(b"staged", 1);
    assert!(server.port.give_up(conn, || Some(())).is_none(), "a frame is staged");
    server.port.flush();
    let frame = client.frame();
    client.give_back(frame);
    client.send(b"kept", 2);
    let frame = server.frame();
    assert!(server.port.give_up(conn, || Some(())).is_none(), "a frame is kept");
    server.give_back(frame);
    assert!(server.port.give_up(conn, || Some(())).is_none(), "who waits for credit was not rung");
    server.port.flush();
    assert!(server.port.give_up(conn, || None::<()>).is_none(), "its owner said so");
    client.send(b"it goes on here", 3);
    let frame = server.frame();
    assert_eq!(&*frame, b"it goes on here");
    server.give_back(frame);
    server.port.flush();
    three.hand_over();
}

/// Each port has a pool of its own, whose segments the peer knows by other names.
#[test]
fn loans_of_either_port_arrive() {
    let mut three = Three::new(Trust::Peer);
    for round in 0..6 {
        let Three { server, client, .. } = &mut three;
        let mut loan = server.port.gate().allocate(server.conn, 5000).unwrap();
        loan.copy_from_slice(&pattern(round, 5000));
        let offer = server.port.offer(server.conn, &loan).unwrap();
        server.send(&offer.encode(), 0);
        let frame = client.frame();
        client.port.pull(client.conn, Offer::decode(&frame).unwrap(), 9).unwrap();
        client.give_back(frame);
        client.port.flush();
        let (_, result) = client.port.next_pulled(client.conn).unwrap();
        assert!(*result.unwrap() == pattern(round, 5000)[..]);
        three.hand_over();
    }
    assert_eq!(three.server.port.gate().pool().counts(), (1, 0));
}

#[test]
fn what_ends_on_the_way_ends_in_good_order() {
    let mut three = Three::new(Trust::Peer);
    drop(three.give_up());
    assert_eq!(three.client.closed(), CloseReason::Peer);
    // The peer leaves meanwhile: what it sent before is read first.
    let mut three = Three::new(Trust::Peer);
    let link = three.give_up();
    three.client.send(b"last", 0);
    let Three { mut server, client, .. } = three;
    drop(client);
    server.conn = server.port.adopt(link, Time(0)).unwrap();
    let frame = server.frame();
    assert_eq!(&*frame, b"last");
    server.give_back(frame);
    assert_eq!(server.closed(), CloseReason::Peer);
    assert!(server.port.gate().allocate(server.conn, 1).is_err(), "nothing is lent for it any more");
}
