//! Clause 6: a loan is offered, pulled, and free afterwards; never more READs than were granted.

use super::{
    bench::{Bench, same},
    case::{ANY, BULK, Case, Needs},
    outcome::{Outcome, ensure},
    rig::{Duo, Rig, pattern},
};
use gimmal_transport::{
    Bulk, BulkError, CloseReason, Gate, Loan, LoanError, Offer, Port, PortError, Provider, Refused, Tag,
    Transfer, testing::Came,
};

const READS: Needs = Needs { reads: true, ..ANY };
const IN_PLACE: Needs = Needs { in_place: true, bulk: true, ..ANY };

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "bulk_sizes_are_exact", needs: BULK, run: sizes_are_exact },
        Case { name: "bulk_in_any_order", needs: BULK, run: in_any_order },
        Case { name: "bulk_both_directions", needs: BULK, run: both_directions },
        Case { name: "bulk_many_at_once_keep_their_tokens", needs: BULK, run: many_at_once },
        Case { name: "bulk_ends_once", needs: BULK, run: ends_once },
        Case { name: "bulk_beside_frames", needs: BULK, run: beside_frames },
        Case { name: "bulk_depth_one_is_enough", needs: BULK, run: depth_one },
        Case { name: "bulk_depth_zero_is_no_reads", needs: ANY, run: depth_zero },
        Case { name: "bulk_above_the_limit_is_refused", needs: BULK, run: above_the_limit },
        Case {
            name: "bulk_of_a_connection_is_bounded",
            needs: BULK,
            run: a_connection_has_so_many_bytes_of_bulk_and_no_more,
        },
        Case { name: "bulk_false_offer_brings_nothing", needs: BULK, run: false_offer },
        Case { name: "bulk_loan_is_ours_again", needs: BULK, run: loan_is_ours_again },
        Case { name: "bulk_survives_the_close", needs: BULK, run: survives_the_close },
        Case { name: "bulk_pull_ends_with_the_connection", needs: BULK, run: ends_with_connection },
        Case { name: "bulk_read_is_counted_and_ours", needs: READS, run: counted_and_ours },
        Case { name: "bulk_in_place_says_when_it_is_free", needs: IN_PLACE, run: says_when_free },
    ]
}

pub(super) fn loan<P: Provider>(
    rig: &mut Rig<P>,
    duo: &Duo,
    side: usize,
    bytes: &[u8],
) -> Outcome<(Loan, Offer)> {
    let mut loan = rig.ports[side].gate().allocate(duo.ids[side], bytes.len())?;
    ensure!(loan.len() == bytes.len(), "{} bytes lent for {}", loan.len(), bytes.len());
    loan.copy_from_slice(bytes);
    let offer = rig.ports[side].offer(duo.ids[side], &loan)?;
    ensure!(offer.len == bytes.len() as u64, "the offer says {} bytes", offer.len);
    ensure!(Offer::decode(&offer.encode()) == Ok(offer), "the offer does not survive its encoding");
    Ok((loan, offer))
}

/// `from` offers, the other side pulls, the bytes are compared.
fn bring<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    duo: &Duo,
    from: usize,
    bytes: &[u8],
) -> Outcome<(Loan, Bulk)> {
    let (loan, offer) = loan(rig, duo, from, bytes)?;
    rig.pull(1 - from, duo.ids[1 - from], offer, 77)?;
    let (token, result) = bench.pulled(rig, duo, 1 - from)?;
    ensure!(token == 77, "token {token}");
    let bulk = result?;
    same(&bulk, bytes)?;
    Ok((loan, bulk))
}

fn sizes_are_exact<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let piece = bench.harness.config().bulk_piece_bytes as usize;
    for bytes in [1, 63, 4096, piece - 1, piece, piece + 1, 5 * piece + 13, 1 << 20] {
        let (loan, bulk) = bring(bench, &mut rig, &duo, 0, &pattern(bytes, bytes))?;
        drop(bulk);
        bench.linger(&mut rig);
        drop(loan);
    }
    Ok(())
}

fn in_any_order<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open_with(|_, config| config.relaxed_ordering = true)?;
    for bytes in [1, 5000, 1 << 20] {
        let (loan, bulk) = bring(bench, &mut rig, &duo, 0, &pattern(bytes, bytes))?;
        drop(bulk);
        bench.linger(&mut rig);
        drop(loan);
    }
    Ok(())
}

fn both_directions<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let payloads = [pattern(1, 100_000), pattern(2, 70_001)];
    let first = loan(&mut rig, &duo, 0, &payloads[0])?;
    let second = loan(&mut rig, &duo, 1, &payloads[1])?;
    rig.pull(1, duo.ids[1], first.1, 1)?;
    rig.pull(0, duo.ids[0], second.1, 2)?;
    for (side, payload) in payloads.iter().enumerate() {
        let (_, result) = bench.pulled(&mut rig, &duo, 1 - side)?;
        same(&result?, payload)?;
    }
    bench.linger(&mut rig);
    Ok(())
}

fn many_at_once<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let mut loans = Vec::new();
    for number in 0..24 {
        let bytes = pattern(number, 3000 * number + 1);
        let (loan, offer) = loan(&mut rig, &duo, 1, &bytes)?;
        loans.push(loan);
        let mut waiting = true;
        while waiting {
            waiting = match rig.pull(0, duo.ids[0], offer, number as u64) {
                Ok(()) => false,
                Err(Refused::Full) => {
                    let now = bench.now();
                    rig.poll(now);
                    bench.harness.step();
                    true
                }
                Err(refused) => return Err(refused.into()),
            };
        }
    }
    let mut seen = [false; 24];
    for _ in 0..24 {
        let (token, result) = bench.pulled(&mut rig, &duo, 0)?;
        let number = usize::try_from(token)?;
        ensure!(!std::mem::replace(&mut seen[number], true), "token {token} twice");
        same(&result?, &pattern(number, 3000 * number + 1))?;
    }
    bench.linger(&mut rig);
    drop(loans);
    Ok(())
}

fn ends_once<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let payloads = [pattern(1, 5000), pattern(2, 70_000)];
    let (mut loans, mut ended) = (Vec::new(), Vec::new());
    for (token, payload) in (0..).zip(&payloads) {
        let (loan, offer) = loan(&mut rig, &duo, 0, payload)?;
        rig.pull(1, duo.ids[1], offer, token)?;
        loans.push(loan);
    }
    while ended.len() < 2 {
        ended.push(bench.pulled(&mut rig, &duo, 1)?);
    }
    ended.sort_by_key(|(token, _)| *token);
    for ((wanted, payload), (token, result)) in (0..).zip(&payloads).zip(ended) {
        ensure!(token == wanted, "token {token} in place of {wanted}");
        same(&result?, payload)?;
    }
    bench.linger(&mut rig);
    let more = rig.take(1, |event| matches!(event, Came::Pulled { .. }));
    ensure!(more.is_none(), "a pull ended twice: {more:?}");
    drop(loans);
    Ok(())
}

fn beside_frames<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let bytes = pattern(9, 1 << 20);
    let (loan, offer) = loan(&mut rig, &duo, 0, &bytes)?;
    rig.pull(1, duo.ids[1], offer, 3)?;
    for round in 0..30 {
        bench.exchange(&mut rig, &mut duo, round)?;
    }
    same(&bench.pulled(&mut rig, &duo, 1)?.1?, &bytes)?;
    bench.linger(&mut rig);
    drop(loan);
    Ok(())
}

fn depth_one<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open_with(|side, config| {
        config.initiator_depth = 1;
        config.responder_resources = if side == 0 { 1 } else { 16 };
    })?;
    for side in 0..2 {
        let depth = duo.terms[side].initiator_depth.granted;
        ensure!(depth == 1, "side {side} was granted {depth}");
        let (loan, bulk) = bring(bench, &mut rig, &duo, side, &pattern(side, 200_000))?;
        drop(bulk);
        bench.linger(&mut rig);
        drop(loan);
    }
    Ok(())
}

fn depth_zero<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open_with(|side, config| {
        if side == 1 {
            config.initiator_depth = 0;
        }
    })?;
    let granted = duo.terms[1].initiator_depth.granted;
    ensure!(granted == 0, "0 was asked and {granted} granted");
    let resources = duo.terms[0].responder_resources.granted;
    ensure!(resources == 0, "the other side still reserves {resources}");
    let refused = rig.pull(1, duo.ids[1], Offer { address: 0, key: 0, len: 8 }, 1);
    ensure!(refused == Err(Refused::NoReads), "{refused:?}");
    bench.exchange(&mut rig, &mut duo, 1)
}

fn above_the_limit<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let limit = 100_000_u64;
    let (mut rig, mut duo) = bench.open_with(|side, config| {
        if side == 1 {
            config.bulk_bytes_max = limit;
        }
    })?;
    let above = usize::try_from(limit)? + 1;
    let refused = rig.ports[1].gate().allocate(duo.ids[1], above).map(|_| ());
    ensure!(
        matches!(refused, Err(LoanError::TooLarge { bytes, limit: seen }) if bytes == limit + 1 && seen == limit),
        "allocate above the limit: {refused:?}"
    );
    let (loan, offer) = loan(&mut rig, &duo, 0, &pattern(1, above))?;
    let refused = rig.pull(1, duo.ids[1], offer, 1);
    ensure!(matches!(refused, Err(Refused::TooLarge { .. })), "pull above the limit: {refused:?}");
    bench.exchange(&mut rig, &mut duo, 1)?;
    drop(loan);
    let (loan, bulk) = bring(bench, &mut rig, &duo, 0, &pattern(2, above - 1))?;
    drop(bulk);
    bench.linger(&mut rig);
    drop(loan);
    Ok(())
}

/// What a connection has of our memory is bounded: loans, and what was pulled. It comes back, and others have their own.
fn a_connection_has_so_many_bytes_of_bulk_and_no_more<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    const PIECE: usize = 128 << 10;
    let (mut rig, duo) = bench.open_with(|side, config| {
        if side == 0 {
            config.loan_bytes_max = 8 * PIECE as u64;
        }
    })?;
    let other = bench.connect(&mut rig)?;
    let (gate, conn) = (rig.ports[0].gate(), duo.ids[0]);
    let mut loans = (0..8).map(|_| gate.allocate(conn, PIECE)).collect::<Result<Vec<_>, _>>()?;
    let is_lack = |error: &LoanError| {
        matches!(error, LoanError::Port(PortError::Limit { field: "port.loan_bytes_max", .. }))
    };
    let refused = gate.allocate(conn, 1);
    ensure!(refused.as_ref().is_err_and(is_lack), "a loan more: {refused:?}");
    let counters = rig.ports[0].counters(conn);
    let shown = (counters.loan_bytes, counters.loans_refused);
    ensure!(shown == (8 * PIECE as u64, 1), "counted {shown:?}");
    drop(gate.allocate(other.ids[0], PIECE)?);
    loans.pop();
    loans.push(gate.allocate(conn, PIECE)?);
    // Bulk that comes into our own memory counts, until it is dropped. In place it is the peer's.
    let (theirs, offer) = loan(&mut rig, &duo, 1, &pattern(2, PIECE))?;
    rig.pull(0, conn, offer, 1)?;
    let (_, pulled) = bench.pulled(&mut rig, &duo, 0)?;
    if duo.terms[0].bulk_in_place {
        same(&pulled?, &theirs)?;
    } else {
        ensure!(
            matches!(&pulled, Err(BulkError::Memory(error)) if is_lack(error)),
            "a pull more: {pulled:?}"
        );
        loans.pop();
        rig.pull(0, conn, offer, 2)?;
        let bulk = bench.pulled(&mut rig, &duo, 0)?.1?;
        same(&bulk, &theirs)?;
        ensure!(gate.allocate(conn, 1).is_err(), "what was pulled is not counted");
        drop(bulk);
        loans.push(gate.allocate(conn, PIECE)?);
    }
    drop((loans, gate));
    bench.linger(&mut rig);
    ensure!(rig.ports[0].counters(conn).loan_bytes == 0, "it does not come back");
    Ok(())
}

/// Refused, a pull that fails, or the end of this connection: anything but bytes, and nothing for the others.
fn false_offer<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let mut other = bench.connect(&mut rig)?;
    let (loan, offer) = loan(&mut rig, &duo, 0, &pattern(1, 5000))?;
    let lie = Offer { key: offer.key ^ 0x5a5a_5a5a, address: offer.address.wrapping_add(1 << 30), ..offer };
    if rig.pull(1, duo.ids[1], lie, 5).is_ok() {
        let wanted = |event: &Came| matches!(event, Came::Pulled { token: 5, .. });
        let event = bench.wait("end of the pull", |now| {
            rig.poll(now);
            Ok(rig.take(1, wanted))
        })?;
        let failed = matches!(event, Came::Pulled { result: Err(_), .. });
        ensure!(failed, "a false offer brought {event:?}");
    }
    bench.exchange(&mut rig, &mut other, 1)?;
    drop(loan);
    Ok(())
}

fn loan_is_ours_again<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let unused = rig.ports[0].gate().allocate(duo.ids[0], 10_000)?;
    drop(unused);
    for round in 0..20 {
        let (mut loan, bulk) = bring(bench, &mut rig, &duo, 0, &pattern(round, 60_000))?;
        drop(bulk);
        bench.linger(&mut rig);
        loan.fill(0xaa);
        let other = std::thread::spawn(move || drop(loan));
        ensure!(other.join().is_ok(), "a loan cannot be dropped on another thread");
    }
    Ok(())
}

fn survives_the_close<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let bytes = pattern(4, 150_000);
    let (loan, bulk) = bring(bench, &mut rig, &duo, 0, &bytes)?;
    let now = bench.now();
    rig.ports[1].close(duo.ids[1], CloseReason::Local, now);
    bench.closed(&mut rig, 1, duo.ids[1])?;
    bench.closed(&mut rig, 0, duo.ids[0])?;
    same(&bulk, &bytes)?;
    let stale = rig.ports[0].gate().allocate(duo.ids[0], 10).map(|_| ());
    ensure!(stale == Err(LoanError::Closed), "allocate on a closed connection: {stale:?}");
    drop(rig);
    same(&bulk, &bytes)?;
    drop((bulk, loan));
    Ok(())
}

fn ends_with_connection<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (loan, offer) = loan(&mut rig, &duo, 0, &pattern(1, 1 << 20))?;
    rig.pull(1, duo.ids[1], offer, 8)?;
    let now = bench.now();
    rig.ports[1].close(duo.ids[1], CloseReason::Local, now);
    let start = bench.wait("Closed", |now| {
        rig.poll(now);
        Ok(rig.inbox[1].iter().position(|event| matches!(event, Came::Closed { .. })))
    })?;
    let ended = |event: &Came| matches!(event, Came::Pulled { token: 8, .. });
    let pulled = rig.inbox[1].iter().take(start).filter(|event| ended(event)).count();
    ensure!(pulled == 1, "{pulled} ends of the pull before Closed");
    // Where it came in place, at once, it is read until here.
    rig.inbox[1].clear();
    drop(loan);
    Ok(())
}

fn counted_and_ours<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let bytes = pattern(1, 100_000);
    let (mut loan, bulk) = bring(bench, &mut rig, &duo, 0, &bytes)?;
    ensure!(bulk.release().is_none(), "bytes of our own need no release");
    loan.fill(0);
    same(&bulk, &bytes)?;
    let counters = rig.ports[1].counters(duo.ids[1]);
    ensure!(counters.read_bytes == 100_000, "{} READ bytes counted", counters.read_bytes);
    let piece = u64::from(bench.harness.config().bulk_piece_bytes);
    ensure!(counters.reads >= 100_000 / piece, "{} READs of at most {piece}", counters.reads);
    Ok(())
}

fn says_when_free<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (loan, bulk) = bring(bench, &mut rig, &duo, 1, &pattern(6, 50_000))?;
    let release = bulk.release().ok_or("in place, but nothing to wait for")?;
    ensure!(!release.is_done(), "free while it is read");
    let reader = std::thread::spawn(move || drop(bulk));
    ensure!(reader.join().is_ok(), "a bulk cannot be dropped on another thread");
    ensure!(release.is_done(), "dropped, and not free");
    let counters = rig.ports[0].counters(duo.ids[0]);
    ensure!(counters.in_place_bytes == 50_000, "{} bytes counted", counters.in_place_bytes);
    bench.send_alive(&mut rig)?;
    drop(loan);
    Ok(())
}

impl<P: Provider> Bench<'_, P> {
    fn send_alive(&mut self, rig: &mut Rig<P>) -> Outcome {
        let mut duo = self.connect(rig)?;
        self.send(rig, &mut duo, 0, b"alive", Tag(0))?;
        self.expect(rig, &mut duo, 1, b"alive", Tag(0))
    }
}
