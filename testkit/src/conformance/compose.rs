//! Clause 1: a frame is composed in our own memory, and nobody sees it before it is committed.

use super::{
    bench::{Bench, same},
    case::{ANY, Case},
    outcome::{Outcome, ensure},
    rig::pattern,
};
use gimmal_transport::{
    Chain, CloseReason, ConnId, Port, Position, Provider, Refused, Staged, Tag,
    frame::{FRAME_WORD_BYTES, span},
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "compose_lends_what_was_asked", needs: ANY, run: lends_what_was_asked },
        Case { name: "compose_largest_frame_and_no_more", needs: ANY, run: largest_and_no_more },
        Case { name: "compose_given_up_sends_nothing", needs: ANY, run: given_up_sends_nothing },
        Case { name: "compose_frame_may_be_shorter", needs: ANY, run: frame_may_be_shorter },
        Case { name: "compose_again_after_one_given_up", needs: ANY, run: again_after_one_given_up },
        Case { name: "compose_of_more_than_was_lent_is_nothing", needs: ANY, run: more_than_was_lent },
        Case { name: "compose_next_frame_leaves_the_last_alone", needs: ANY, run: next_leaves_last_alone },
        Case { name: "compose_bytes_beyond_a_frame_are_no_frame", needs: ANY, run: beyond_is_no_frame },
        Case { name: "compose_on_two_connections_is_apart", needs: ANY, run: two_connections_apart },
        Case { name: "compose_finds_nothing_of_another_connection", needs: ANY, run: nothing_of_another },
    ]
}

fn lends_what_was_asked<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    for side in 0..2 {
        let most = duo.terms[side].frame_bytes_max as usize - FRAME_WORD_BYTES;
        for bytes in [0, 1, 7, 8, 9, 100, most - 1, most] {
            let mut lent = 0;
            rig.ports[side].compose(duo.ids[side], bytes, |room| {
                lent = room.len();
                None
            })?;
            ensure!(lent >= bytes, "{lent} bytes lent for {bytes}");
        }
    }
    Ok(())
}

fn largest_and_no_more<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let most = duo.terms[0].frame_bytes_max as usize - FRAME_WORD_BYTES;
    let refused = rig.ports[0].compose(duo.ids[0], most + 1, |_| None).map(|_| ());
    ensure!(
        refused == Err(Refused::TooLarge { bytes: most + 1, limit: most }),
        "{refused:?} for one byte above {most}"
    );
    let payload = pattern(1, most);
    bench.send(&mut rig, &mut duo, 0, &payload, Tag(1))?;
    bench.expect(&mut rig, &mut duo, 1, &payload, Tag(1))
}

fn given_up_sends_nothing<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    duo.scribble(&mut rig, 0, 64, 0xff)?;
    rig.ports[0].flush();
    bench.linger(&mut rig);
    ensure!(rig.inbox[1].is_empty(), "{:?} arrived", rig.inbox[1]);
    bench.exchange(&mut rig, &mut duo, 5)
}

/// A frame of `payload_bytes` that begins a chain.
const fn staged(payload_bytes: usize, tag: u32) -> Option<Staged> {
    Some(Staged { payload_bytes, tag: Tag(tag), chain: Chain::Begin })
}

fn frame_may_be_shorter<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let payload = pattern(3, 10);
    let end = rig.ports[0].compose(duo.ids[0], 500, |room| {
        room[..10].copy_from_slice(&payload);
        staged(10, 3)
    })?;
    ensure!(end == Some(Position(span(10) as u64)), "a frame of 10 bytes ends at {end:?}");
    rig.ports[0].flush();
    let frame = bench.frame(&mut rig, &duo, 1)?;
    same(&frame, &payload)?;
    rig.ports[1].release(duo.ids[1], frame);
    Ok(())
}

fn again_after_one_given_up<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    duo.scribble(&mut rig, 0, 200, 1)?;
    let end = rig.ports[0].compose(duo.ids[0], 20, |room| {
        room.fill(2);
        staged(20, 0)
    })?;
    rig.ports[0].flush();
    ensure!(end == Some(Position(span(20) as u64)), "it ends at {end:?}");
    let frame = bench.frame(&mut rig, &duo, 1)?;
    same(&frame, &[2; 20])?;
    rig.ports[1].release(duo.ids[1], frame);
    Ok(())
}

fn more_than_was_lent<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    bench.exchange(&mut rig, &mut duo, 2)?;
    let end = rig.ports[0].compose(duo.ids[0], 8, |_| staged(9, 0))?;
    ensure!(end == Some(duo.flows[0].sent), "9 bytes in 8 moved the position to {end:?}");
    let stranger = rig.ports[0].compose(ConnId::new(31, 77), 8, |_| staged(8, 0));
    ensure!(stranger == Err(Refused::Closed), "{stranger:?} for a stranger");
    rig.ports[0].flush();
    bench.linger(&mut rig);
    ensure!(rig.inbox[1].is_empty(), "{:?} arrived", rig.inbox[1]);
    bench.exchange(&mut rig, &mut duo, 4)
}

fn next_leaves_last_alone<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    // As many as a peer that shares its receives gives at first.
    let rounds = usize::try_from(duo.terms[0].tx_arrivals)?.min(8);
    for round in 0..rounds {
        let payload = pattern(round, 100);
        ensure!(
            duo.commit(&mut rig, 0, &payload, Tag(0), Chain::Begin)?.is_some(),
            "no credit for frame {round}"
        );
        rig.ports[0].flush();
        duo.scribble(&mut rig, 0, 100, 0xee)?;
    }
    for round in 0..rounds {
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 100), Tag(0))?;
    }
    Ok(())
}

/// A composer has more room than its frame, and may have written there: on every lap.
fn beyond_is_no_frame<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let room = (duo.terms[0].frame_bytes_max as usize - FRAME_WORD_BYTES).min(700);
    for round in 0..200 {
        // The peer's credit may not have come yet.
        let _ = duo.scribble(&mut rig, 0, room, 0xff);
        let payload = pattern(round, round % 150);
        bench.send(&mut rig, &mut duo, 0, &payload, Tag(3))?;
        bench.expect(&mut rig, &mut duo, 1, &payload, Tag(3))?;
    }
    bench.linger(&mut rig);
    ensure!(rig.inbox[1].is_empty(), "{:?} arrived", rig.inbox[1]);
    bench.exchange(&mut rig, &mut duo, 6)
}

fn two_connections_apart<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut first) = bench.open()?;
    let mut second = bench.connect(&mut rig)?;
    for round in 0..20 {
        let (one, two) = (pattern(round, 30), pattern(round + 1000, 60));
        bench.send(&mut rig, &mut first, 0, &one, Tag(1))?;
        bench.send(&mut rig, &mut second, 0, &two, Tag(2))?;
        bench.expect(&mut rig, &mut second, 1, &two, Tag(2))?;
        bench.expect(&mut rig, &mut first, 1, &one, Tag(1))?;
    }
    Ok(())
}

/// Each connection in turn fills all that it is lent with a byte of its own, and sends little of it; then it ends. What is lent to
/// the next, over more than its ring, has none of these bytes: whatever leaves with a frame, they do not.
fn nothing_of_another<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    // With the last connection a port may give its memory back, and the next gets it anew.
    let (mut rig, _stays) = bench.open()?;
    for own in [0xA0, 0xA1, 0xA2] {
        let mut duo = bench.connect(&mut rig)?;
        let (id, terms) = (duo.ids[1], &duo.terms[1]);
        let most = terms.frame_bytes_max as usize - FRAME_WORD_BYTES;
        let (end, mut looks) = (2 * u64::from(terms.tx_ring_bytes), 0);
        while duo.flows[1].sent.0 < end {
            let mut others = 0;
            rig.ports[1].credit(id);
            let lent = rig.ports[1].compose(id, most, |lent| {
                others = lent.iter().filter(|byte| (0xA0..own).contains(*byte)).count();
                lent.fill(own);
                None
            });
            ensure!(others == 0, "{others} bytes of another connection in the {most} that were lent");
            looks += usize::from(lent.is_ok());
            let sent = vec![own; most / 3];
            bench.send(&mut rig, &mut duo, 1, &sent, Tag(0))?;
            bench.expect(&mut rig, &mut duo, 0, &sent, Tag(0))?;
        }
        ensure!(looks > 3, "{looks} looks");
        let now = bench.now();
        rig.ports[1].close(id, CloseReason::Local, now);
        bench.closed(&mut rig, 1, id)?;
        bench.closed(&mut rig, 0, duo.ids[0])?;
    }
    Ok(())
}
