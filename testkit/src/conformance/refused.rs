//! Clause 7: what is refused costs nothing: no error of the connection, no lost buffer, no moved position.

use super::{
    bench::Bench,
    case::{ANY, BULK, Case},
    outcome::{Outcome, ensure},
    rig::pattern,
};
use gimmal_transport::{
    Chain, CloseReason, ConnId, Gate, Loan, Offer, Port, Provider, Refused, Tag, Transfer,
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "refused_full_comes_back", needs: ANY, run: full_comes_back },
        Case { name: "refused_full_moves_nothing", needs: ANY, run: full_moves_nothing },
        Case { name: "refused_too_large_harms_nothing", needs: ANY, run: too_large },
        Case { name: "refused_pull_leaves_the_offer", needs: BULK, run: pull_leaves_the_offer },
        Case { name: "refused_offer_leaves_the_loan", needs: BULK, run: offer_leaves_the_loan },
        Case { name: "refused_foreign_loan_harms_nothing", needs: BULK, run: foreign_loan },
        Case { name: "refused_unknown_connection", needs: ANY, run: unknown_connection },
        Case { name: "refused_closing_connection", needs: ANY, run: closing_connection },
    ]
}

/// A short send queue and a sender that never waits: every frame arrives once, in order.
fn full_comes_back<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open_with(|_, config| {
        (config.sends, config.signal_interval) = (16, 4);
    })?;
    bench.stream(&mut rig, &mut duo, 200, usize::MAX, |_| 12)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn full_moves_nothing<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open_with(|_, config| {
        (config.sends, config.signal_interval, config.arrivals) = (8, 4, 64);
    })?;
    let mut sent = 0;
    while sent < 64 && duo.commit(&mut rig, 0, &pattern(sent, 12), Tag(0), Chain::Begin)?.is_some() {
        sent += 1;
    }
    for _ in 0..1000 {
        match rig.ports[0].compose(duo.ids[0], 12, |_| None) {
            Ok(_) | Err(Refused::Full) => {}
            Err(refused) => return Err(refused.into()),
        }
    }
    let stranger = rig.ports[0].compose(ConnId::new(30, 9), 12, |_| None);
    ensure!(stranger == Err(Refused::Closed), "{stranger:?} for a stranger");
    rig.ports[0].flush();
    for got in 0..sent {
        bench.expect(&mut rig, &mut duo, 1, &pattern(got, 12), Tag(0))?;
    }
    bench.exchange(&mut rig, &mut duo, 2)
}

fn too_large<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for bytes in [duo.terms[0].frame_bytes_max as usize, 1 << 30, usize::MAX - 64] {
        let refused = rig.ports[0].compose(duo.ids[0], bytes, |_| None);
        ensure!(matches!(refused, Err(Refused::TooLarge { .. })), "{bytes} bytes: {refused:?}");
    }
    bench.exchange(&mut rig, &mut duo, 1)
}

fn pull_leaves_the_offer<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let huge = Offer { address: 0, key: 0, len: u64::MAX };
    let refused = rig.pull(1, duo.ids[1], huge, 1);
    ensure!(matches!(refused, Err(Refused::TooLarge { .. })), "{refused:?}");
    bench.exchange(&mut rig, &mut duo, 1)?;
    let mut loan = rig.ports[0].gate().allocate(duo.ids[0], 2000)?;
    loan.fill(3);
    let offer = rig.ports[0].offer(duo.ids[0], &loan)?;
    let stale = rig.pull(1, ConnId::new(29, 3), offer, 2);
    ensure!(stale == Err(Refused::Closed), "{stale:?}");
    rig.pull(1, duo.ids[1], offer, 3)?;
    let (token, result) = bench.pulled(&mut rig, &duo, 1)?;
    ensure!(token == 3 && result.as_deref() == Ok(&[3; 2000][..]), "pull {token} after a refused one");
    drop(result);
    bench.linger(&mut rig);
    drop(loan);
    Ok(())
}

fn offer_leaves_the_loan<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let mut loan = rig.ports[0].gate().allocate(duo.ids[0], 3000)?;
    loan.fill(8);
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    let refused = rig.ports[0].offer(duo.ids[0], &loan);
    ensure!(refused == Err(Refused::Closed), "{refused:?}");
    bench.closed(&mut rig, 0, duo.ids[0])?;
    loan[2999] = 9;
    ensure!(loan[0] == 8 && loan[2999] == 9, "the loan is not ours any more");
    Ok(())
}

/// A loan of the other port, and one of no port: refused by name, and both sides go on.
fn foreign_loan<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let theirs = rig.ports[1].gate().allocate(duo.ids[1], 3000)?;
    let ours = rig.ports[0].gate().allocate(duo.ids[0], 3000)?;
    let nobodys = Loan::anonymous(3000, ours.ticket())?;
    for (side, foreign) in [(0, &theirs), (0, &nobodys), (1, &ours), (1, &nobodys)] {
        let refused = rig.ports[side].offer(duo.ids[side], foreign);
        ensure!(refused == Err(Refused::Foreign), "{refused:?} of side {side}");
    }
    rig.ports[0].offer(duo.ids[0], &ours)?;
    drop((theirs, ours, nobodys));
    bench.exchange(&mut rig, &mut duo, 1)
}

fn unknown_connection<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let id = duo.ids[0];
    let strangers = [ConnId::new(id.index(), id.generation().wrapping_add(1)), ConnId::new(12_345, 0)];
    for stranger in strangers {
        let port = &mut rig.ports[0];
        let refused = port.compose(stranger, 8, |_| None);
        ensure!(refused == Err(Refused::Closed), "{refused:?} for {stranger:?}");
        let pull = port.pull(stranger, Offer { address: 0, key: 0, len: 1 }, 1);
        ensure!(matches!(pull, Err(Refused::Closed)), "{pull:?} for {stranger:?}");
        ensure!(
            port.credit(stranger).completed.0 == 0 && port.credit(stranger).peer.is_none(),
            "{stranger:?} has credit"
        );
        ensure!(port.counters(stranger) == Default::default(), "{stranger:?} has counters");
        port.return_credit(stranger, Default::default());
        let now = bench.now();
        rig.ports[0].close(stranger, CloseReason::Local, now);
    }
    bench.linger(&mut rig);
    bench.exchange(&mut rig, &mut duo, 1)
}

fn closing_connection<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    let refused = rig.ports[0].compose(duo.ids[0], 8, |_| None);
    ensure!(refused == Err(Refused::Closed), "{refused:?} after close");
    let refused = rig.pull(0, duo.ids[0], Offer { address: 0, key: 0, len: 1 }, 1);
    ensure!(refused == Err(Refused::Closed), "{refused:?} after close");
    bench.closed(&mut rig, 0, duo.ids[0])?;
    Ok(())
}
