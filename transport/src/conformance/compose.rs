//! Clause 1: a frame is composed in our own memory, and nobody sees it before it is committed.

use super::{
    ANY, Case, Outcome,
    bench::{Bench, same},
    ensure,
    rig::pattern,
};
use crate::{
    Chain, CloseReason, ConnId, Port, Position, Provider, Refused, Tag,
    frame::{FRAME_WORD_BYTES, span},
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "compose_lends_what_was_asked", needs: ANY, run: lends_what_was_asked },
        Case { name: "compose_largest_frame_and_no_more", needs: ANY, run: largest_and_no_more },
        Case { name: "compose_reservation_alone_sends_nothing", needs: ANY, run: reservation_alone },
        Case { name: "compose_commit_may_be_shorter", needs: ANY, run: commit_may_be_shorter },
        Case { name: "compose_last_reservation_counts", needs: ANY, run: last_reservation_counts },
        Case { name: "compose_commit_needs_a_reservation", needs: ANY, run: commit_needs_a_reservation },
        Case { name: "compose_next_frame_leaves_the_last_alone", needs: ANY, run: next_leaves_last_alone },
        Case { name: "compose_flush_ends_a_reservation", needs: ANY, run: flush_ends_a_reservation },
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
            let lent = rig.ports[side].reserve(duo.ids[side], bytes)?.len();
            ensure!(lent >= bytes, "{lent} bytes lent for {bytes}");
        }
    }
    Ok(())
}

fn largest_and_no_more<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let most = duo.terms[0].frame_bytes_max as usize - FRAME_WORD_BYTES;
    let refused = rig.ports[0].reserve(duo.ids[0], most + 1).map(|_| ());
    ensure!(
        refused == Err(Refused::TooLarge { bytes: most + 1, limit: most }),
        "{refused:?} for one byte above {most}"
    );
    let payload = pattern(1, most);
    bench.send(&mut rig, &mut duo, 0, &payload, Tag(1))?;
    bench.expect(&mut rig, &mut duo, 1, &payload, Tag(1))
}

fn reservation_alone<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    rig.ports[0].reserve(duo.ids[0], 64)?.fill(0xff);
    rig.ports[0].flush();
    bench.linger(&mut rig);
    ensure!(rig.inbox[1].is_empty(), "{:?} arrived", rig.inbox[1]);
    bench.exchange(&mut rig, &mut duo, 5)
}

fn commit_may_be_shorter<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let payload = pattern(3, 10);
    rig.ports[0].reserve(duo.ids[0], 500)?[..10].copy_from_slice(&payload);
    let end = rig.ports[0].commit(duo.ids[0], 10, Tag(3), Chain::Begin);
    ensure!(end == Position(span(10) as u64), "a frame of 10 bytes ends at {end:?}");
    rig.ports[0].flush();
    let frame = bench.frame(&mut rig, &duo, 1)?;
    same(&frame, &payload)?;
    rig.ports[1].release(duo.ids[1], frame);
    Ok(())
}

fn last_reservation_counts<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    rig.ports[0].reserve(duo.ids[0], 200)?.fill(1);
    rig.ports[0].reserve(duo.ids[0], 20)?[..20].fill(2);
    let end = rig.ports[0].commit(duo.ids[0], 20, Tag(0), Chain::Begin);
    rig.ports[0].flush();
    ensure!(end == Position(span(20) as u64), "it ends at {end:?}");
    let frame = bench.frame(&mut rig, &duo, 1)?;
    same(&frame, &[2; 20])?;
    rig.ports[1].release(duo.ids[1], frame);
    Ok(())
}

fn commit_needs_a_reservation<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    bench.exchange(&mut rig, &mut duo, 2)?;
    let end = rig.ports[0].commit(duo.ids[0], 8, Tag(0), Chain::Begin);
    ensure!(end == duo.flows[0].sent, "a commit of nothing moved the position to {end:?}");
    let stranger = ConnId::new(31, 77);
    rig.ports[0].reserve(duo.ids[0], 8)?[..8].fill(9);
    rig.ports[0].commit(stranger, 8, Tag(0), Chain::Begin);
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
        rig.ports[0].reserve(duo.ids[0], 100)?.fill(0xee);
    }
    for round in 0..rounds {
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 100), Tag(0))?;
    }
    Ok(())
}

fn flush_ends_a_reservation<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    rig.ports[0].reserve(duo.ids[0], 64)?.fill(0xff);
    rig.ports[0].flush();
    let end = rig.ports[0].commit(duo.ids[0], 64, Tag(0), Chain::Begin);
    ensure!(end == duo.flows[0].sent, "a reservation from before the flush moved the position to {end:?}");
    bench.exchange(&mut rig, &mut duo, 5)
}

/// Who fills a frame has more room than it takes, and may have used it: on every lap.
fn beyond_is_no_frame<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let room = (duo.terms[0].frame_bytes_max as usize - FRAME_WORD_BYTES).min(700);
    for round in 0..200 {
        if let Ok(lent) = rig.ports[0].reserve(duo.ids[0], room) {
            lent.fill(0xff);
        }
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
            if let Ok(lent) = rig.ports[1].reserve(id, most) {
                let others = lent.iter().filter(|byte| (0xA0..own).contains(*byte)).count();
                ensure!(others == 0, "{others} bytes of another connection in the {most} that were lent");
                lent.fill(own);
                looks += 1;
            }
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
