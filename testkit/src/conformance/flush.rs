//! Clause 3: only a peer that reads our memory sees frames before the flush. After it all are seen, in order, for
//! one doorbell.

use super::{
    bench::Bench,
    case::{ANY, Case},
    outcome::{Outcome, ensure},
    rig::{Duo, pattern},
};
use gimmal_transport::{Chain, CloseReason, Port, Provider, Tag, testing::Came};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "flush_nothing_before_unless_shown", needs: ANY, run: nothing_before },
        Case { name: "flush_all_at_once", needs: ANY, run: all_at_once },
        Case { name: "flush_covers_every_connection", needs: ANY, run: every_connection },
        Case { name: "flush_without_frames_is_harmless", needs: ANY, run: without_frames },
        Case { name: "flush_keeps_the_order", needs: ANY, run: keeps_the_order },
        Case { name: "flush_one_doorbell_for_a_chain", needs: ANY, run: one_doorbell },
        Case { name: "flush_close_loses_what_was_not_seen", needs: ANY, run: close_loses_unseen },
    ]
}

fn nothing_before<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let payload = pattern(1, 48);
    ensure!(duo.commit(&mut rig, 0, &payload, Tag(1), Chain::Begin)?.is_some(), "no credit at the start");
    bench.linger(&mut rig);
    let (is_shown, inbox) = (!rig.inbox[1].is_empty(), &rig.inbox[1]);
    let shown = may_be_shown::<P>(&duo);
    ensure!(shown.is_none_or(|shown| is_shown == shown), "{inbox:?} arrived before the flush, not {shown:?}");
    rig.ports[0].flush();
    bench.expect(&mut rig, &mut duo, 1, &payload, Tag(1))
}

/// Whether a peer sees a frame before it is flushed; `None`: it may.
fn may_be_shown<P: Provider>(duo: &Duo) -> Option<bool> {
    match (P::Port::IN_MEMORY, duo.terms[0].credit_words) {
        (true, _) => Some(true),
        (false, true) => None,
        (false, false) => Some(false),
    }
}

fn all_at_once<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    // As many as a peer that shares its receives gives at first.
    let rounds = usize::try_from(duo.terms[0].tx_arrivals)?.min(8);
    for round in 0..rounds {
        ensure!(
            duo.commit(&mut rig, 0, &pattern(round, 32), Tag(0), Chain::Begin)?.is_some(),
            "no credit for frame {round}"
        );
    }
    rig.ports[0].flush();
    for round in 0..rounds {
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 32), Tag(0))?;
    }
    Ok(())
}

fn every_connection<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let mut duos = Vec::new();
    for _ in 0..4 {
        duos.push(bench.connect(&mut rig)?);
    }
    for (seed, duo) in duos.iter_mut().enumerate() {
        duo.commit(&mut rig, 0, &pattern(seed, 80), Tag(0), Chain::Begin)?.ok_or("no credit")?;
    }
    rig.ports[0].flush();
    for (seed, duo) in duos.iter_mut().enumerate().rev() {
        bench.expect(&mut rig, duo, 1, &pattern(seed, 80), Tag(0))?;
    }
    Ok(())
}

fn without_frames<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let before = rig.ports[0].counters(duo.ids[0]).doorbells;
    for _ in 0..10 {
        rig.ports[0].flush();
    }
    bench.linger(&mut rig);
    let after = rig.ports[0].counters(duo.ids[0]).doorbells;
    ensure!(after == before, "{} doorbells for nothing", after - before);
    bench.exchange(&mut rig, &mut duo, 1)
}

fn keeps_the_order<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    bench.stream(&mut rig, &mut duo, 200, 3, |number| number % 70)
}

fn one_doorbell<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let before = rig.ports[0].counters(duo.ids[0]);
    for round in 0..8 {
        let chain = if round == 0 { Chain::Begin } else { Chain::Extend };
        duo.commit(&mut rig, 0, &pattern(round, 24), Tag(0), chain)?.ok_or("no credit")?;
    }
    rig.ports[0].flush();
    let after = rig.ports[0].counters(duo.ids[0]);
    let (doorbells, frames) = (after.doorbells - before.doorbells, after.frames_sent - before.frames_sent);
    ensure!((doorbells, frames) == (1, 8), "{doorbells} doorbells for {frames} frames of one chain");
    for round in 0..8 {
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 24), Tag(0))?;
    }
    Ok(())
}

fn close_loses_unseen<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    duo.commit(&mut rig, 0, &[1; 16], Tag(0), Chain::Begin)?.ok_or("no credit")?;
    let (now, shown) = (bench.now(), may_be_shown::<P>(&duo));
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    rig.ports[0].flush();
    bench.closed(&mut rig, 0, duo.ids[0])?;
    bench.closed(&mut rig, 1, duo.ids[1])?;
    let frame = rig.take(1, |event| matches!(event, Came::Frame { .. }));
    let is_shown = frame.is_some();
    ensure!(shown.is_none_or(|shown| is_shown == shown), "{frame:?} was never flushed, not {shown:?}");
    Ok(())
}
