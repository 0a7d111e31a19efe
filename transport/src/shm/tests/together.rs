//! Answers to a peer that is far ahead are kept back, and shown before anybody can miss them.

use super::*;

/// Takes 80 bytes of the ring.
const LONG: [u8; 72] = [7; 72];

/// The next run, which is there.
fn run(side: &mut Side) -> Run {
    lent(side, Limit::Frames(64)).expect("frames wait")
}

fn end(side: &mut Side, mut run: Run) -> u32 {
    while run.next_frame().is_some() {}
    let taken = run.taken();
    side.port.end_run(&mut run, false);
    taken
}

/// How many frames come.
fn seen(side: &mut Side) -> usize {
    let mut seen = 0;
    loop {
        let events = side.poll();
        if events.is_empty() {
            return seen;
        }
        assert!(events.iter().all(|event| matches!(event, Came::Frame { .. })), "{events:?}");
        seen += events.len();
    }
}

/// A server and a client that has sent it 100 frames.
fn many() -> (Side, Side) {
    let (server, mut client) = pair(16 << 10);
    for _ in 0..100 {
        client.commit(b"many", 0);
    }
    client.port.flush();
    (server, client)
}

/// A pair whose sender is far ahead, and its next batch.
fn far_ahead() -> (Side, Side, Run) {
    let (mut server, client) = many();
    let taken = [(); 6].map(|()| {
        let run = run(&mut server);
        end(&mut server, run)
    });
    assert_eq!(taken, [1, 2, 4, 8, 8, 8]);
    let lent = run(&mut server);
    (server, client, lent)
}

#[test]
fn eight_messages_are_shown_together_and_what_is_left_when_the_run_ends() {
    let (mut server, mut client, lent) = far_ahead();
    for _ in 0..7 {
        server.commit(&LONG, 0);
        assert_eq!(seen(&mut client), 0);
    }
    server.commit(&LONG, 0);
    assert_eq!(seen(&mut client), 8);
    server.commit(&LONG, 0);
    server.commit(b"short", 0);
    assert_eq!(seen(&mut client), 0, "behind one that is kept back");
    end(&mut server, lent);
    assert_eq!(seen(&mut client), 2);
    // No run is lent: nobody would show it.
    server.commit(&LONG, 0);
    assert_eq!(seen(&mut client), 1);
}

#[test]
fn a_flush_shows_what_is_kept_back_and_then_looks_who_sleeps() {
    let (mut server, mut client, lent) = far_ahead();
    server.commit(&LONG, 0);
    assert!(client.port.arm(), "nothing is there to see");
    server.port.flush();
    assert!(readable(client.port.wait_fd(), SECOND));
    client.port.disarm();
    assert_eq!(seen(&mut client), 1);
    server.send(&LONG, 0);
    assert_eq!(seen(&mut client), 1, "and again, in the same run");
    end(&mut server, lent);
}

#[test]
fn what_is_kept_back_arrives_before_a_close() {
    let (mut server, mut client, _lent) = far_ahead();
    server.commit(&LONG, 0);
    server.port.close(server.conn, CloseReason::Local, Time(0));
    let events = client.wait();
    assert!(matches!(events[..], [Came::Frame { .. }]), "{events:?}");
    assert_eq!(client.closed(), CloseReason::Peer);
}

#[test]
fn frames_within_a_line_are_shown_at_once() {
    let (mut server, mut client, lent) = far_ahead();
    server.commit(b"short", 0);
    assert_eq!(seen(&mut client), 1);
    end(&mut server, lent);
}

#[test]
fn who_takes_frames_one_by_one_keeps_nothing_back() {
    let (mut server, mut client) = many();
    let mut left = 100;
    while left > 0 {
        let run = lent(&mut server, Limit::One).expect("frames wait");
        server.commit(&LONG, 0);
        assert_eq!(seen(&mut client), 1);
        left -= end(&mut server, run);
    }
}

#[test]
fn a_peer_that_waits_is_shown_each_at_once() {
    let (mut server, mut client, lent) = far_ahead();
    let mut left = 100 - 31 - end(&mut server, lent);
    while left > 0 {
        let lent = run(&mut server);
        left -= end(&mut server, lent);
    }
    // The first is of the turn that took runs.
    assert!(server.poll().is_empty() && server.poll().is_empty());
    client.send(b"one", 0);
    let lent = run(&mut server);
    server.commit(&LONG, 0);
    assert_eq!(seen(&mut client), 1);
    end(&mut server, lent);
}

#[test]
fn one_that_is_far_ahead_finds_its_frames_at_every_place_in_the_ring() {
    let (mut server, mut client) = pair(4096);
    let (mut sent, mut echoed, mut received) = (0, 0, 0);
    while received < 5000 {
        while sent < 5000 && sent - received < 24 {
            client.commit(&pattern(sent, sent as usize % 120), sent);
            sent += 1;
        }
        client.port.flush();
        while let Some(mut run) = lent(&mut server, Limit::Frames(64)) {
            let mut end = run.end();
            while let Some(frame) = run.next_frame() {
                let (payload, tag) = (frame.payload().to_vec(), frame.tag().0);
                end = frame.end();
                server.commit(&payload, tag);
                echoed += 1;
            }
            server.port.end_run(&mut run, false);
            server.port.return_credit(server.conn, Credit { bytes: end, arrivals: 0 });
        }
        server.port.flush();
        for event in client.poll() {
            let Came::Frame { frame, .. } = event else { panic!("{event:?}") };
            assert_eq!(
                (frame.tag(), &*frame),
                (Tag(received), &pattern(received, received as usize % 120)[..])
            );
            client.give_back(frame);
            received += 1;
        }
    }
    assert_eq!((sent, echoed), (5000, 5000));
}
