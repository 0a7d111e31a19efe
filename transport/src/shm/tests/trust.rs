//! Peers that are not trusted: what was lent stays as it was checked, whatever they write afterwards.

use std::{ptr::NonNull, sync::atomic::Ordering};

use super::*;
use crate::{FrameWord, Position, Trust, Violation};

/// A server that trusts nobody, with an open connection to a peer whose memory the test writes.
fn doubter() -> (Side, ShmLink) {
    trusting(Trust::None)
}

fn trusting(trust: Trust) -> (Side, ShmLink) {
    let (_folder, address) = place();
    let options = ListenOptions { trust, ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let port = Shm.open_port(&config(4096)).unwrap();
    let client = Shm.open_port(&config(4096)).unwrap();
    let (accepted, peer) = links(&mut listener, &port.gate(), &client.gate());
    let in_place = (accepted.negotiated.bulk_in_place, peer.negotiated.bulk_in_place);
    assert_eq!(in_place, (trust == Trust::Peer, true), "each side chooses for itself");
    let mut side = Side::adopt(port, accepted);
    side.opened();
    (side, peer)
}

fn write(place: NonNull<u8>, bytes: &[u8]) {
    // SAFETY: inside the peer's ring, whose only writer this test is; the victim reads it by atomics alone.
    unsafe { place.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn publish(peer: &ShmLink, position: u64, bytes: &[u8]) {
    write(peer.end.own.payload(position), bytes);
    peer.end.own.word(position).store(FrameWord::new(bytes.len(), Tag(7)).bits().to_le(), Ordering::Release);
}

#[test]
fn what_was_lent_does_not_change() {
    let (mut side, peer) = doubter();
    publish(&peer, 0, b"as it was checked");
    let frame = side.frame();
    write(peer.end.own.payload(0), b"something else is");
    peer.end.own.word(0).store(0xffff_ffff, Ordering::Release);
    assert_eq!((&*frame, frame.tag()), (&b"as it was checked"[..], Tag(7)));
    side.give_back(frame);
    publish(&peer, 32, b"and it goes on");
    assert_eq!(&*side.frame(), b"and it goes on");
}

/// A peer may use what it was given back while a run is open: what lies beyond the run is then no overrun.
#[test]
fn credit_given_during_a_run_counts() {
    for trust in [Trust::Peer, Trust::None] {
        let (mut side, peer) = trusting(trust);
        let frame = |number: u8| publish(&peer, u64::from(number) * 1008, &[number; 1000]);
        (0..3).for_each(frame);
        // Runs grow by being read to their end: this one has room for more than the frame that is there.
        while lent(&mut side, Limit::Frames(8)).map(|mut run| {
            while run.next_frame().is_some() {}
            let end = run.end().0;
            side.port.end_run(&mut run, false);
            end
        }) != Some(3 * 1008)
        {}
        frame(3);
        let mut run = lent(&mut side, Limit::Frames(8)).unwrap();
        assert_eq!(run.next_frame().unwrap().payload(), [3; 1000]);
        side.port.return_credit(side.conn, Credit { bytes: Position(3 * 1008), arrivals: 0 });
        frame(4);
        assert!(run.next_frame().is_none(), "it ends where the peer might write when it began");
        side.port.end_run(&mut run, false);
        drop(run);
        assert_eq!(*side.frame(), [4; 1000], "{trust:?}");
    }
}

/// R66: more than was given back closes the connection, and nothing lies over what is still lent.
#[test]
fn an_overrun_is_not_copied() {
    let (mut side, peer) = doubter();
    let mut frames = Vec::new();
    for number in 0..4_u8 {
        publish(&peer, u64::from(number) * 1008, &[number; 1000]);
        frames.push(side.frame());
    }
    publish(&peer, 4 * 1008, &[9; 1000]);
    assert_eq!(side.closed(), CloseReason::Violation(Violation::Overrun { bytes: 5 * 1008 - 4096 }));
    for (number, frame) in (0..4).zip(&frames) {
        assert_eq!(**frame, [number; 1000]);
    }
}

/// R68: what no frame can be is no frame of the copy either.
#[test]
fn impossible_lengths_are_violations() {
    for bits in [1, 1025, 0xffff_ffff, u64::MAX] {
        let (mut side, peer) = doubter();
        peer.end.own.word(0).store(bits, Ordering::Release);
        let bytes = (bits & 0xffff_ffff) as usize;
        assert_eq!(side.closed(), CloseReason::Violation(Violation::FrameLength { bytes, limit: 1024 }));
    }
}

/// A peer reads all of our segment, and nothing but what was composed for it ever lay there.
#[test]
fn a_peer_reads_nothing_of_another_connection() {
    const PATTERN: u64 = 0xAAAA_AAAA_AAAA_AAAA;
    const RING: u64 = 16 << 10;
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let mut server = Shm.open_port(&config(RING as u32)).unwrap();
    let mut client = Shm.open_port(&config(RING as u32)).unwrap();
    for round in 0..3 {
        let (accepted, connected) = links(&mut listener, &server.gate(), &client.gate());
        let (mut ours, mut theirs) = (Side::adopt(server, accepted), Side::adopt(client, connected));
        theirs.opened();
        ours.opened();
        let Some(live) = theirs.port.table.live(theirs.conn) else { panic!("it is open") };
        let found = (0..RING).step_by(16).filter(|at| live.peer_word(*at) == PATTERN).count();
        assert_eq!(found, 0, "words of the connections before number {round}");
        let most = RING as usize / 4 - 8;
        for _ in 0..3 {
            // Filled, and given up; then sent.
            ours.scribble(&vec![0xAA; most]);
            ours.send(&vec![0xAA; most], 1);
        }
        let Some(live) = theirs.port.table.live(theirs.conn) else { panic!("it is open") };
        let found = (0..RING).step_by(16).filter(|at| live.peer_word(*at) == PATTERN).count();
        assert!(found > 100, "the pattern is seen where it may be: {found}");
        let now = ours.now();
        ours.port.close(ours.conn, CloseReason::Local, now);
        let until = Instant::now() + 30 * SECOND;
        while !theirs.poll().iter().any(|event| matches!(event, Came::Closed { .. })) {
            assert!(Instant::now() < until, "it was not closed");
        }
        ours.closed();
        (server, client) = (ours.port, theirs.port);
    }
}
