//! Closing: one `Closed` with the first cause, ids that are stale at once, frames that outlive it all.

use super::{
    bench::{Bench, same},
    case::{ANY, Case},
    outcome::{Outcome, ensure},
    patience,
    rig::pattern,
};
use gimmal_transport::{CloseReason, Port, Provider, Refused, Tag, Violation, testing::Came};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "close_is_told_once_at_both_ends", needs: ANY, run: told_once },
        Case { name: "close_keeps_the_first_cause", needs: ANY, run: first_cause },
        Case { name: "close_by_both_sides_at_once", needs: ANY, run: by_both },
        Case { name: "close_makes_ids_stale", needs: ANY, run: ids_stale },
        Case { name: "close_leaves_lent_frames", needs: ANY, run: leaves_lent_frames },
        Case { name: "close_leaves_other_connections", needs: ANY, run: leaves_others },
        Case { name: "close_keeps_counters", needs: ANY, run: keeps_counters },
        Case { name: "close_before_open", needs: ANY, run: before_open },
        Case { name: "close_by_a_dropped_port", needs: ANY, run: dropped_port },
        Case { name: "close_frees_its_place", needs: ANY, run: frees_its_place },
    ]
}

fn told_once<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    for side in 0..2 {
        let (mut rig, duo) = bench.open()?;
        let now = bench.now();
        rig.ports[side].close(duo.ids[side], CloseReason::Local, now);
        let ours = bench.closed(&mut rig, side, duo.ids[side])?;
        ensure!(ours == CloseReason::Local, "the closing side saw {ours:?}");
        let theirs = bench.closed(&mut rig, 1 - side, duo.ids[1 - side])?;
        // A CM tells a good end from a dead process only by what an engine says before it.
        let heard = matches!(theirs, CloseReason::Peer | CloseReason::PeerGone { .. });
        ensure!(heard, "the other side saw {theirs:?}");
        bench.linger(&mut rig);
        ensure!(rig.inbox.iter().all(|inbox| inbox.is_empty()), "{:?} after Closed", rig.inbox);
    }
    Ok(())
}

fn first_cause<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let cause = CloseReason::Violation(Violation::Overrun { bytes: 5 });
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], cause.clone(), now);
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    let seen = bench.closed(&mut rig, 0, duo.ids[0])?;
    ensure!(seen == cause, "{seen:?} in place of {cause:?}");
    bench.closed(&mut rig, 1, duo.ids[1])?;
    Ok(())
}

fn by_both<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let now = bench.now();
    for side in 0..2 {
        rig.ports[side].close(duo.ids[side], CloseReason::Local, now);
    }
    for side in 0..2 {
        bench.closed(&mut rig, side, duo.ids[side])?;
    }
    bench.linger(&mut rig);
    ensure!(rig.inbox.iter().all(|inbox| inbox.is_empty()), "{:?} after Closed", rig.inbox);
    Ok(())
}

fn ids_stale<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let old = duo.ids[0];
    let now = bench.now();
    rig.ports[0].close(old, CloseReason::Local, now);
    bench.closed(&mut rig, 0, old)?;
    bench.closed(&mut rig, 1, duo.ids[1])?;
    let mut next = bench.connect(&mut rig)?;
    ensure!(next.ids[0] != old, "{old:?} was given again");
    let refused = rig.ports[0].compose(old, 8, |_| None);
    ensure!(refused == Err(Refused::Closed), "a stale id composes: {refused:?}");
    let now = bench.now();
    rig.ports[0].close(old, CloseReason::Local, now);
    bench.linger(&mut rig);
    ensure!(rig.inbox.iter().all(|inbox| inbox.is_empty()), "a stale id closed {:?}", rig.inbox);
    bench.exchange(&mut rig, &mut next, 1)
}

fn leaves_lent_frames<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let mut held = Vec::new();
    for seed in 0..4 {
        bench.send(&mut rig, &mut duo, 0, &pattern(seed, 600), Tag(0))?;
        held.push(bench.frame(&mut rig, &duo, 1)?);
    }
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    bench.closed(&mut rig, 1, duo.ids[1])?;
    for (seed, frame) in held.iter().enumerate() {
        same(frame, &pattern(seed, 600))?;
    }
    let last = held.pop().ok_or("no frame")?;
    rig.ports[1].release(duo.ids[1], last);
    drop(rig);
    for (seed, frame) in held.iter().enumerate() {
        same(frame, &pattern(seed, 600))?;
    }
    Ok(())
}

fn leaves_others<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let mut duos = Vec::new();
    for _ in 0..4 {
        duos.push(bench.connect(&mut rig)?);
    }
    let dead = duos.remove(1);
    let now = bench.now();
    rig.ports[1].close(dead.ids[1], CloseReason::Local, now);
    bench.closed(&mut rig, 0, dead.ids[0])?;
    bench.closed(&mut rig, 1, dead.ids[1])?;
    for (seed, duo) in duos.iter_mut().enumerate() {
        bench.exchange(&mut rig, duo, seed)?;
    }
    let over = rig.inbox.iter().flatten().any(|event| matches!(event, Came::Closed { .. }));
    ensure!(!over, "another connection closed too: {:?}", rig.inbox);
    Ok(())
}

fn keeps_counters<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for seed in 0..10 {
        bench.exchange(&mut rig, &mut duo, seed)?;
    }
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    for side in 0..2 {
        bench.closed(&mut rig, side, duo.ids[side])?;
        let counters = rig.ports[side].counters(duo.ids[side]);
        let seen = (counters.frames_sent, counters.frames_received);
        ensure!(seen == (10, 10), "side {side} counts {seen:?} after Closed");
    }
    Ok(())
}

fn before_open<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let [active, passive] = bench.links(&mut rig, &patience::connecting())?;
    let now = bench.now();
    let active = rig.ports[0].adopt(active, now)?;
    rig.ports[0].close(active, CloseReason::Local, now);
    let reason = bench.closed(&mut rig, 0, active)?;
    ensure!(reason == CloseReason::Local, "{reason:?}");
    let now = bench.now();
    let passive = rig.ports[1].adopt(passive, now)?;
    bench.closed(&mut rig, 1, passive)?;
    bench.linger(&mut rig);
    let again = rig.inbox.iter().flatten().any(|event| matches!(event, Came::Closed { .. }));
    ensure!(!again, "{:?} after Closed", rig.inbox);
    Ok(())
}

fn dropped_port<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    for side in 0..2 {
        let (mut rig, mut duo) = bench.open()?;
        bench.exchange(&mut rig, &mut duo, 1)?;
        let replacement = rig.providers[side].open_port(&bench.harness.config())?;
        drop(std::mem::replace(&mut rig.ports[side], replacement));
        let reason = bench.closed(&mut rig, 1 - side, duo.ids[1 - side])?;
        let gone = matches!(reason, CloseReason::Peer | CloseReason::PeerGone { .. });
        ensure!(gone, "the survivor saw {reason:?}");
        let mut next = bench.connect(&mut rig)?;
        bench.exchange(&mut rig, &mut next, 2)?;
    }
    Ok(())
}

fn frees_its_place<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut config = bench.harness.config();
    config.connections = 2;
    let mut rig = bench.rig_with([config.clone(), config])?;
    for round in 0..10 {
        let mut duo = bench.connect(&mut rig)?;
        bench.exchange(&mut rig, &mut duo, round)?;
        let now = bench.now();
        rig.ports[round % 2].close(duo.ids[round % 2], CloseReason::Local, now);
        for side in 0..2 {
            bench.closed(&mut rig, side, duo.ids[side])?;
        }
    }
    Ok(())
}
