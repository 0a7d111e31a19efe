//! Clause 5: two cumulative counters are enough: the ring can be full, nothing is written over, nothing meets an RNR.

use std::time::Duration;

use super::{
    bench::{Bench, same},
    case::{ANY, Case, Needs},
    outcome::{Outcome, ensure},
    rig::pattern,
};
use gimmal_transport::{
    Chain, Credit, Limit, Look, Port, Position, Provider, SharedReceives, Tag, frame::span,
};

const RING: Needs = Needs { ring: true, ..ANY };
const ARRIVALS: Needs = Needs { arrivals: true, ..ANY };
const SHARED: Needs = Needs { shared: true, ..ARRIVALS };

/// Long enough for all that was flushed to arrive, on most devices.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "credit_starts_as_negotiated", needs: ARRIVALS, run: starts_as_negotiated },
        Case { name: "credit_every_posted_receive_can_be_used", needs: ARRIVALS, run: every_receive },
        Case { name: "credit_every_guaranteed_receive_can_be_used", needs: ARRIVALS, run: every_guarantee },
        Case { name: "credit_a_used_up_guarantee_grows", needs: SHARED, run: guarantee_grows },
        Case { name: "credit_arrivals_come_back", needs: ARRIVALS, run: arrivals_come_back },
        Case { name: "credit_a_chain_costs_one_arrival", needs: ARRIVALS, run: chain_costs_one },
        Case { name: "credit_ring_can_be_full", needs: RING, run: ring_can_be_full },
        Case { name: "credit_released_space_is_used_again", needs: ANY, run: space_is_used_again },
        Case { name: "credit_completed_only_grows", needs: ANY, run: completed_only_grows },
        Case { name: "credit_rare_signals_do_not_stall", needs: ANY, run: rare_signals },
        Case { name: "credit_words_as_negotiated", needs: ANY, run: words_as_negotiated },
        Case { name: "credit_slow_receiver_loses_nothing", needs: ANY, run: slow_receiver },
    ]
}

fn starts_as_negotiated<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    for side in 0..2 {
        let (ours, theirs) = (&duo.terms[side], &duo.terms[1 - side]);
        ensure!(ours.rx_arrivals == theirs.tx_arrivals, "side {side} grants what the peer does not see");
        let posted = rig.ports[side].credit(duo.ids[side]).arrivals;
        ensure!(posted >= ours.rx_arrivals.into(), "{posted} receives posted of {}", ours.rx_arrivals);
    }
    Ok(())
}

fn every_receive<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let granted = rig.ports[1].credit(duo.ids[1]).arrivals;
    let mut sent = 0;
    while duo.flows[0].chains < granted {
        duo.commit(&mut rig, 0, &pattern(sent, 16), Tag(0), Chain::Begin)?.ok_or("no credit")?;
        rig.ports[0].flush();
        sent += 1;
    }
    for round in 0..sent {
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 16), Tag(0))?;
    }
    bench.exchange(&mut rig, &mut duo, 1)
}

/// Of several connections at once, while their peer does not look: where they share their receives, more than are made at a time.
fn every_guarantee<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open_with(|_, config| {
        let shared =
            SharedReceives { guaranteed: 126, most: 126, common: 16, common_max: 16, ..config.shared };
        config.shared = SharedReceives { sends: 256, ..shared };
        (config.arrivals, config.sends) = (128, 256);
    })?;
    let mut duos = vec![duo];
    while duos.len() < 4 {
        duos.push(bench.connect(&mut rig)?);
    }
    for duo in &mut duos {
        let granted = rig.ports[1].credit(duo.ids[1]).arrivals;
        ensure!(granted >= 128, "{granted} receives of 128 granted");
        for seed in 0..usize::try_from(granted)? {
            duo.commit(&mut rig, 0, &pattern(seed, 16), Tag(0), Chain::Begin)?.ok_or("no credit")?;
        }
        rig.ports[0].flush();
    }
    for duo in &mut duos {
        for seed in 0..usize::try_from(duo.flows[0].chains)? {
            bench.expect(&mut rig, duo, 1, &pattern(seed, 16), Tag(0))?;
        }
    }
    Ok(())
}

/// The chains of one turn are in use together, although each is read before the next one is looked at.
fn guarantee_grows<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    // One side alone may share its receives.
    let to = usize::from(duo.terms[1].rx_shared);
    let from = 1 - to;
    let start = rig.ports[to].credit(duo.ids[to]).arrivals;
    let mut looked = bench.now();
    bench.wait("receives beyond the guarantee", |now| {
        while duo.commit(&mut rig, from, &[7; 16], Tag(0), Chain::Begin)?.is_some() {}
        rig.ports[from].flush();
        rig.poll_side(from, now);
        if now.since(looked) < PAUSE {
            return Ok(None);
        }
        looked = now;
        while let Look::Run(mut run) = rig.ports[to].next_run(Limit::Frames(64)) {
            while run.next_frame().is_some() {}
            rig.ports[to].end_run(&mut run, false);
        }
        rig.ports[to].poll(now, &mut rig.batch);
        rig.batch.drain().for_each(drop);
        Ok((rig.ports[to].credit(duo.ids[to]).arrivals > start + duo.flows[from].chains).then_some(()))
    })
}

fn arrivals_come_back<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let start = rig.ports[1].credit(duo.ids[1]).arrivals;
    let count = 4 * u64::from(duo.terms[0].tx_arrivals);
    for round in 0..usize::try_from(count)? {
        bench.send(&mut rig, &mut duo, 0, &pattern(round, 30), Tag(0))?;
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 30), Tag(0))?;
    }
    bench.wait("return of the receives", |now| {
        rig.poll(now);
        Ok((rig.ports[1].credit(duo.ids[1]).arrivals >= start + count).then_some(()))
    })
}

fn chain_costs_one<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let chains = usize::try_from(rig.ports[1].credit(duo.ids[1]).arrivals)?;
    for chain in 0..chains {
        for frame in 0..4 {
            let kind = if frame == 0 { Chain::Begin } else { Chain::Extend };
            duo.commit(&mut rig, 0, &pattern(chain * 4 + frame, 20), Tag(0), kind)?.ok_or("no credit")?;
        }
        rig.ports[0].flush();
    }
    for frame in 0..4 * chains {
        bench.expect(&mut rig, &mut duo, 1, &pattern(frame, 20), Tag(0))?;
    }
    Ok(())
}

/// All but the last 16 bytes, which some media need to keep the ends apart.
fn ring_can_be_full<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let quarter = duo.terms[0].tx_ring_bytes as usize / 4 - 8;
    let bytes = |number: usize| if number == 3 { quarter - 16 } else { quarter };
    for lap in 0..6 {
        let mut held = Vec::new();
        for number in 0..4 {
            bench.send(&mut rig, &mut duo, 0, &pattern(lap * 4 + number, bytes(number)), Tag(0))?;
        }
        let more = duo.has_credit(&mut rig, 0, 16, Chain::Extend);
        ensure!(!more, "the ring is full and credit allows more");
        for number in 0..4 {
            let frame = bench.frame(&mut rig, &duo, 1)?;
            same(&frame, &pattern(lap * 4 + number, bytes(number)))?;
            held.push(frame);
        }
        for (number, frame) in held.iter().enumerate() {
            same(frame, &pattern(lap * 4 + number, bytes(number)))?;
        }
        for frame in held {
            duo.release(&mut rig, 1, frame);
        }
    }
    Ok(())
}

fn space_is_used_again<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let volume = 10 * u64::from(duo.terms[1].tx_ring_bytes);
    let bytes = duo.terms[1].frame_bytes_max as usize / 2;
    let mut seed = 0;
    while duo.flows[1].sent.0 < volume {
        bench.send(&mut rig, &mut duo, 1, &pattern(seed, bytes), Tag(0))?;
        bench.expect(&mut rig, &mut duo, 0, &pattern(seed, bytes), Tag(0))?;
        seed += 1;
    }
    Ok(())
}

fn completed_only_grows<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let mut last = Position(0);
    for round in 0..150 {
        bench.send(&mut rig, &mut duo, 0, &pattern(round, 100), Tag(0))?;
        let done = rig.ports[0].credit(duo.ids[0]).completed;
        ensure!(done >= last && done <= duo.flows[0].sent, "completed went from {last:?} to {done:?}");
        last = done;
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 100), Tag(0))?;
    }
    ensure!(last > Position(0), "nothing ever completed");
    Ok(())
}

fn rare_signals<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open_with(|_, config| {
        (config.sends, config.signal_interval) = (128, 64);
        config.ring_bytes = 8192;
        config.slot_bytes = 2048;
    })?;
    let bytes = duo.terms[0].frame_bytes_max as usize - 8;
    for round in 0..40 {
        bench.send(&mut rig, &mut duo, 0, &pattern(round, bytes), Tag(0))?;
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, bytes), Tag(0))?;
    }
    Ok(())
}

fn words_as_negotiated<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let words = duo.terms[0].credit_words;
    ensure!(words == duo.terms[1].credit_words, "the sides disagree about credit words");
    bench.send(&mut rig, &mut duo, 0, &[5; 24], Tag(0))?;
    bench.expect(&mut rig, &mut duo, 1, &[5; 24], Tag(0))?;
    let credit =
        Credit { bytes: Position(span(24) as u64), arrivals: rig.ports[1].credit(duo.ids[1]).arrivals };
    rig.ports[1].return_credit(duo.ids[1], credit);
    if !words {
        bench.linger(&mut rig);
        let seen = rig.ports[0].credit(duo.ids[0]).peer;
        ensure!(seen.is_none(), "{seen:?} without credit words");
        return Ok(());
    }
    bench.wait("credit word", |now| {
        rig.poll(now);
        let seen = rig.ports[0].credit(duo.ids[0]).peer.ok_or("no credit word")?;
        Ok((seen.bytes == credit.bytes).then_some(()))
    })
}

fn slow_receiver<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    bench.stream(&mut rig, &mut duo, 300, 1, |_| 150)
}
