//! Runs: how long one is, and when the peer sees what answers it.

use super::*;

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

#[test]
fn a_run_has_eight_frames_and_each_answer_is_seen_at_once() {
    for (limit, most) in [(Limit::Frames(64), 8), (Limit::Frames(3), 3), (Limit::One, 8)] {
        let (mut server, mut client) = pair(16 << 10);
        for _ in 0..100 {
            client.commit(b"many", 0);
        }
        client.port.flush();
        let mut left = 100;
        while left > 0 {
            let mut run = lent(&mut server, limit).expect("frames wait");
            server.commit(&[7; 72], 0);
            assert_eq!(seen(&mut client), 1);
            server.commit(b"short", 0);
            assert_eq!(seen(&mut client), 1);
            while run.next_frame().is_some() {}
            assert_eq!(run.taken(), left.min(most));
            left -= run.taken();
            server.port.end_run(&mut run, false);
        }
    }
}

#[test]
fn a_window_of_answers_is_found_at_every_place_in_the_ring() {
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
