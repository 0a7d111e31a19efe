//! Callers that use a port wrongly: nothing that somebody can still read is given to the peer.

use super::*;
use crate::{Position, Run, mem::Holder};

/// Bytes that the peer was given back.
fn credited(side: &mut Side) -> u64 {
    side.port.credit(side.conn).peer.unwrap().bytes.0
}

fn run(side: &mut Side) -> Run {
    lent(side, Limit::Frames(64)).expect("frames wait")
}

fn credit(side: &mut Side, bytes: u64) {
    side.port.return_credit(side.conn, Credit { bytes: Position(bytes), arrivals: 0 });
}

#[test]
fn credit_is_given_for_nothing_that_may_still_be_read() {
    let (mut server, mut client) = pair(4096);
    client.send(&[1; 40], 0);
    client.send(&[2; 40], 0);
    // A run that has not ended.
    let mut first = run(&mut server);
    let lent = first.next_frame().unwrap();
    let (payload, end) = (lent.payload(), lent.end().0);
    credit(&mut server, end);
    assert_eq!((payload, credited(&mut client)), (&[1; 40][..], 0));
    server.port.end_run(&mut first, false);
    drop(first);
    credit(&mut server, end);
    assert_eq!(credited(&mut client), end);
    // What is beyond everything.
    for bytes in [end + 16, u64::MAX] {
        credit(&mut server, bytes);
        assert_eq!(credited(&mut client), end);
    }
    // A frame that is kept, and one that is held, released or not.
    let kept = server.frame();
    let last = kept.end().0;
    credit(&mut server, last);
    assert_eq!((&*kept, credited(&mut client)), (&[2; 40][..], end));
    let mut holder = Holder::of(&kept);
    let buf = holder.hold(&kept, 0).unwrap();
    server.port.release(server.conn, kept);
    credit(&mut server, last);
    assert_eq!((&*buf, credited(&mut client)), (&[2; 40][..], end));
}

#[test]
fn a_kept_frame_that_is_released_is_credited() {
    let (mut server, mut client) = pair(4096);
    for number in 0..3_u8 {
        client.send(&[number; 40], 0);
    }
    let mut frames = Vec::new();
    while frames.len() < 3 {
        frames.extend(server.wait().into_iter().map(|event| match event {
            Came::Frame { frame, .. } => Some(frame),
            other => panic!("{other:?}"),
        }));
    }
    let ends: Vec<_> = frames.iter().flatten().map(|frame| frame.end().0).collect();
    for (back, given) in [(1, 0), (0, ends[1]), (2, ends[2])] {
        server.port.release(server.conn, frames[back].take().unwrap());
        credit(&mut server, given);
        assert_eq!(credited(&mut client), given);
    }
}

#[test]
fn there_is_one_run_of_a_connection_at_a_time() {
    let (mut server, mut client) = pair(4096);
    let (mut other, mut elsewhere) = pair(4096);
    client.send(&[1; 40], 0);
    elsewhere.send(&[2; 40], 0);
    let mut first = run(&mut server);
    assert_eq!(first.next_frame().unwrap().payload(), [1; 40]);
    for _ in 0..4 {
        assert!(lent(&mut server, Limit::Frames(64)).is_none());
    }
    // Ended at a port that it is not of, it ends nowhere.
    let mut second = run(&mut other);
    assert_eq!(second.next_frame().unwrap().payload(), [2; 40]);
    let end = second.end().0;
    server.port.end_run(&mut second, false);
    credit(&mut server, end);
    assert_eq!(credited(&mut client), 0);
    server.port.end_run(&mut first, false);
    assert!(lent(&mut other, Limit::Frames(64)).is_none());
    // Dropped, it comes again.
    drop(second);
    let mut second = run(&mut other);
    assert_eq!(second.next_frame().unwrap().payload(), [2; 40]);
    other.port.end_run(&mut second, false);
    assert!(second.next_frame().is_none());
    assert!(lent(&mut other, Limit::Frames(64)).is_none());
}
