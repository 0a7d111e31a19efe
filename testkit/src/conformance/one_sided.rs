//! Clause 8: memory is exposed and shown, the peer uses it by itself, and every operation ends once.

use super::{
    bench::{Bench, same},
    case::{ANY, Case, Needs},
    outcome::{Outcome, ensure},
    rig::{Duo, Rig, pattern},
};
use gimmal_transport::{
    AccessError, Accessed, CloseReason, Exposed, Gate, Loan, OneSided, Port, Provider, Remote, Transfer,
    testing::Came,
};

const ONE_SIDED: Needs = Needs { bulk: true, ..ANY };
const ATOMICS: Needs = Needs { bulk: true, atomics: true, ..ANY };

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "one_sided_writes_are_read_back", needs: ONE_SIDED, run: writes_are_read_back },
        Case { name: "one_sided_touches_nothing_beside", needs: ONE_SIDED, run: touches_nothing_beside },
        Case { name: "one_sided_sees_what_its_owner_wrote", needs: ONE_SIDED, run: sees_its_owner },
        Case { name: "one_sided_more_than_the_depth", needs: ONE_SIDED, run: more_than_the_depth },
        Case { name: "one_sided_beside_frames_and_bulk", needs: ONE_SIDED, run: beside_frames },
        Case { name: "one_sided_compare_and_swap", needs: ATOMICS, run: compare_and_swap },
        Case { name: "one_sided_adds_add_up", needs: ATOMICS, run: adds_add_up },
        Case { name: "one_sided_refused_before_it_leaves", needs: ONE_SIDED, run: refused },
        Case { name: "one_sided_without_reads_is_off", needs: ANY, run: without_reads },
        Case { name: "one_sided_withdrawn_is_out_of_reach", needs: ONE_SIDED, run: withdrawn },
        Case { name: "one_sided_ends_with_the_connection", needs: ONE_SIDED, run: ends_with_connection },
    ]
}

/// Side 1 exposes `bytes`, side 0 is shown them.
fn exposed<P: Provider>(rig: &mut Rig<P>, duo: &Duo, bytes: usize) -> Outcome<(Exposed, Remote)> {
    let exposed = rig.ports[1].gate().expose(duo.ids[1], bytes)?;
    ensure!(exposed.len() == bytes as u64, "{} bytes exposed for {bytes}", exposed.len());
    let remote = rig.ports[1].show(duo.ids[1], &exposed)?;
    ensure!(remote.len() == bytes as u64, "{} bytes shown", remote.len());
    ensure!(Remote::decode(&remote.encode()) == Ok(remote), "what is shown does not survive its encoding");
    Ok((exposed, remote))
}

fn loan<P: Provider>(rig: &Rig<P>, duo: &Duo, bytes: &[u8]) -> Outcome<Loan> {
    let mut loan = rig.ports[0].gate().allocate(duo.ids[0], bytes.len())?;
    loan.copy_from_slice(bytes);
    Ok(loan)
}

/// Starts an operation of side 0, when there is room for it.
fn start<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    duo: &Duo,
    remote: Remote,
    op: OneSided,
    token: u64,
) -> Outcome {
    let mut waiting = Some(op);
    bench.wait("room for an operation", |now| {
        let Some(op) = waiting.take() else { return Ok(Some(())) };
        match rig.ports[0].access(duo.ids[0], remote, op, token) {
            Ok(()) => Ok(Some(())),
            Err((AccessError::Full, op)) => {
                waiting = Some(op);
                rig.poll(now);
                Ok(None)
            }
            Err((error, _)) => Err(error.into()),
        }
    })
}

/// The next operation of side 0 that ends.
fn ended<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    duo: &Duo,
) -> Outcome<(u64, Result<Accessed, AccessError>)> {
    let wanted = |event: &Came| matches!(event, Came::Accessed { .. });
    match bench.event(rig, 0, duo.ids[0], "end of an operation", wanted)? {
        Came::Accessed { token, result, .. } => Ok((token, result)),
        other => Err(format!("{other:?} in place of Accessed").into()),
    }
}

/// Makes one operation and waits for it.
fn make<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    duo: &Duo,
    remote: Remote,
    op: OneSided,
) -> Outcome<Accessed> {
    start(bench, rig, duo, remote, op, 5)?;
    let (token, result) = ended(bench, rig, duo)?;
    ensure!(token == 5, "token {token}");
    Ok(result?)
}

/// Makes sure that what was written is in place: an answer of the same connection says so.
fn settle<P: Provider>(bench: &mut Bench<'_, P>, rig: &mut Rig<P>, duo: &Duo, remote: Remote) -> Outcome {
    let into = loan(rig, duo, &[0])?;
    make(bench, rig, duo, remote, OneSided::Read { at: 0, into })?;
    Ok(())
}

fn loan_of(accessed: Accessed) -> Outcome<Loan> {
    match accessed {
        Accessed::Loan(loan) => Ok(loan),
        Accessed::Word(word) => Err(format!("the word {word} in place of a loan").into()),
    }
}

fn word_of(accessed: Accessed) -> Outcome<u64> {
    match accessed {
        Accessed::Word(word) => Ok(word),
        Accessed::Loan(loan) => Err(format!("{loan:?} in place of a word").into()),
    }
}

fn writes_are_read_back<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let piece = bench.harness.config().bulk_piece_bytes as usize;
    let (exposed, remote) = exposed(&mut rig, &duo, 3 * piece)?;
    for (at, bytes) in [(0, 1), (8, 64), (4096, 5000), (0, piece), (100, 2 * piece + 13)] {
        let bytes = pattern(bytes, bytes);
        let from = loan(&rig, &duo, &bytes)?;
        let from = loan_of(make(bench, &mut rig, &duo, remote, OneSided::Write { at, from })?)?;
        same(&from, &bytes)?;
        let into = loan(&rig, &duo, &vec![0xEE; bytes.len()])?;
        let into = loan_of(make(bench, &mut rig, &duo, remote, OneSided::Read { at, into })?)?;
        same(&into, &bytes)?;
        let mut seen = vec![0; bytes.len()];
        exposed.read(at, &mut seen)?;
        same(&seen, &bytes)?;
    }
    let counted = rig.ports[0].counters(duo.ids[0]).accesses;
    ensure!(counted >= 10, "{counted} operations counted of 10 and more");
    Ok(())
}

fn touches_nothing_beside<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 200)?;
    for (at, len) in [(0, 1), (3, 2), (7, 2), (5, 16), (13, 100), (199, 1), (0, 200), (200, 0)] {
        exposed.write(0, &[0xEE; 200])?;
        let bytes = pattern(len + 1, len);
        let from = loan(&rig, &duo, &bytes)?;
        make(bench, &mut rig, &duo, remote, OneSided::Write { at, from })?;
        settle(bench, &mut rig, &duo, remote)?;
        let mut wanted = vec![0xEE; 200];
        let first = usize::try_from(at)?;
        wanted[first..first + len].copy_from_slice(&bytes);
        let mut all = [0; 200];
        exposed.read(0, &mut all)?;
        same(&all, &wanted)?;
    }
    Ok(())
}

fn sees_its_owner<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 64)?;
    for number in 1..20_u64 {
        exposed.write(9, &pattern(3, 30))?;
        exposed.store(56, number)?;
        let into = loan(&rig, &duo, &[0; 64])?;
        let into = loan_of(make(bench, &mut rig, &duo, remote, OneSided::Read { at: 0, into })?)?;
        same(&into[9..39], &pattern(3, 30))?;
        same(&into[56..], &number.to_ne_bytes())?;
        let from = loan(&rig, &duo, &(number + 100).to_ne_bytes())?;
        make(bench, &mut rig, &duo, remote, OneSided::Write { at: 48, from })?;
        settle(bench, &mut rig, &duo, remote)?;
        ensure!(exposed.load(48) == Ok(number + 100), "{:?} was written", exposed.load(48));
    }
    Ok(())
}

fn more_than_the_depth<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open_with(|_, config| {
        (config.initiator_depth, config.responder_resources) = (2, 2);
    })?;
    let (_exposed, remote) = exposed(&mut rig, &duo, 100 * 64)?;
    for number in 0..100_u64 {
        let from = loan(&rig, &duo, &pattern(usize::try_from(number)?, 64))?;
        start(bench, &mut rig, &duo, remote, OneSided::Write { at: 64 * number, from }, number)?;
    }
    let mut seen = [false; 100];
    for _ in 0..100 {
        let (token, result) = ended(bench, &mut rig, &duo)?;
        result?;
        ensure!(!std::mem::replace(&mut seen[usize::try_from(token)?], true), "token {token} twice");
    }
    for number in 0..100_usize {
        let into = loan(&rig, &duo, &[0; 64])?;
        let op = OneSided::Read { at: 64 * number as u64, into };
        same(&loan_of(make(bench, &mut rig, &duo, remote, op)?)?, &pattern(number, 64))?;
    }
    bench.linger(&mut rig);
    let more = rig.take(0, |event| matches!(event, Came::Accessed { .. }));
    ensure!(more.is_none(), "{more:?} once more");
    Ok(())
}

fn beside_frames<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 100_000)?;
    let from = loan(&rig, &duo, &pattern(1, 100_000))?;
    start(bench, &mut rig, &duo, remote, OneSided::Write { at: 0, from }, 1)?;
    let mut lent = rig.ports[1].gate().allocate(duo.ids[1], 70_000)?;
    lent.copy_from_slice(&pattern(2, 70_000));
    let offer = rig.ports[1].offer(duo.ids[1], &lent)?;
    rig.pull(0, duo.ids[0], offer, 2)?;
    for seed in 0..10 {
        bench.exchange(&mut rig, &mut duo, seed)?;
    }
    let (token, result) = bench.pulled(&mut rig, &duo, 0)?;
    ensure!(token == 2, "token {token} was pulled");
    same(&result?, &pattern(2, 70_000))?;
    let (token, result) = ended(bench, &mut rig, &duo)?;
    ensure!(token == 1, "token {token} ended");
    result?;
    settle(bench, &mut rig, &duo, remote)?;
    let mut seen = vec![0; 100_000];
    exposed.read(0, &mut seen)?;
    same(&seen, &pattern(1, 100_000))?;
    bench.linger(&mut rig);
    Ok(())
}

fn compare_and_swap<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 24)?;
    exposed.store(8, 7)?;
    let mut swap = |bench: &mut Bench<'_, P>, expected, new| {
        word_of(make(bench, &mut rig, &duo, remote, OneSided::CompareSwap { at: 8, expected, new })?)
    };
    let found = swap(bench, 6, 9)?;
    ensure!(
        (found, exposed.load(8)) == (7, Ok(7)),
        "another value was swapped: {found}, {:?}",
        exposed.load(8)
    );
    let found = swap(bench, 7, u64::MAX)?;
    ensure!((found, exposed.load(8)) == (7, Ok(u64::MAX)), "not swapped: {found}, {:?}", exposed.load(8));
    ensure!((exposed.load(0), exposed.load(16)) == (Ok(0), Ok(0)), "its neighbours changed");
    Ok(())
}

fn adds_add_up<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 8)?;
    exposed.store(0, u64::MAX - 2)?;
    for token in 0..50 {
        start(bench, &mut rig, &duo, remote, OneSided::FetchAdd { at: 0, add: 3 }, token)?;
    }
    let mut befores = Vec::new();
    for _ in 0..50 {
        befores.push(word_of(ended(bench, &mut rig, &duo)?.1?)?.wrapping_add(3) / 3);
    }
    befores.sort_unstable();
    ensure!(befores.iter().copied().eq(0..50), "each saw another value: {befores:?}");
    ensure!(exposed.load(0) == Ok(147), "{:?} at the end", exposed.load(0));
    Ok(())
}

fn refused<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 100)?;
    let atomics = duo.terms[0].atomics;
    let outside = |at, bytes| AccessError::Outside { at, bytes, len: 100 };
    let word = |error| if atomics { error } else { AccessError::NoAtomics };
    let ops = [
        (OneSided::Read { at: 0, into: loan(&rig, &duo, &[0; 101])? }, outside(0, 101)),
        (OneSided::Write { at: 100, from: loan(&rig, &duo, &[1])? }, outside(100, 1)),
        (OneSided::Write { at: u64::MAX, from: loan(&rig, &duo, &[1, 1])? }, outside(u64::MAX, 2)),
        (OneSided::FetchAdd { at: 4, add: 1 }, word(AccessError::Misaligned { at: 4 })),
        (OneSided::CompareSwap { at: 96, expected: 0, new: 1 }, word(outside(96, 8))),
    ];
    for (op, wanted) in ops {
        match rig.ports[0].access(duo.ids[0], remote, op, 1) {
            Err((error, _)) if error == wanted => {}
            other => return Err(format!("{other:?} in place of {wanted:?}").into()),
        }
    }
    let foreign = rig.ports[0].show(duo.ids[0], &exposed);
    ensure!(foreign == Err(AccessError::NotExposed), "{foreign:?} of another port's memory");
    bench.exchange(&mut rig, &mut duo, 3)?;
    ensure!(
        rig.take(0, |event| matches!(event, Came::Accessed { .. })).is_none(),
        "an end of what never began"
    );
    Ok(())
}

fn without_reads<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open_with(|side, config| {
        if side == 0 {
            config.initiator_depth = 0;
        }
    })?;
    let (_exposed, remote) = exposed(&mut rig, &duo, 64)?;
    let from = loan(&rig, &duo, &[0; 8])?;
    match rig.ports[0].access(duo.ids[0], remote, OneSided::Write { at: 0, from }, 1) {
        Err((AccessError::Off, _)) => Ok(()),
        other => Err(format!("{other:?} in place of Off").into()),
    }
}

/// It ends the connection, or is refused: it never succeeds.
fn withdrawn<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (exposed, remote) = exposed(&mut rig, &duo, 4096)?;
    let from = loan(&rig, &duo, &[1; 64])?;
    make(bench, &mut rig, &duo, remote, OneSided::Write { at: 0, from })?;
    drop(exposed);
    let into = loan(&rig, &duo, &[2; 64])?;
    start(bench, &mut rig, &duo, remote, OneSided::Read { at: 0, into }, 5)?;
    let result = bench.wait("end of the operation", |now| {
        let event = rig.take(0, |event| matches!(event, Came::Accessed { .. }));
        rig.poll(now);
        Ok(event)
    })?;
    match result {
        Came::Accessed { token: 5, result: Err(AccessError::NotExposed | AccessError::Closed), .. } => Ok(()),
        other => Err(format!("{other:?} of withdrawn memory").into()),
    }
}

fn ends_with_connection<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (_exposed, remote) = exposed(&mut rig, &duo, 1 << 20)?;
    for token in 0..5 {
        let into = loan(&rig, &duo, &vec![0; 1 << 20])?;
        start(bench, &mut rig, &duo, remote, OneSided::Read { at: 0, into }, token)?;
    }
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    // It checks that nothing comes after it.
    bench.closed(&mut rig, 0, duo.ids[0])?;
    let mut tokens: Vec<u64> = Vec::new();
    while let Some(event) = rig.take(0, |event| event.conn() == duo.ids[0]) {
        if let Came::Accessed { token, .. } = event {
            tokens.push(token);
        }
    }
    tokens.sort_unstable();
    ensure!(tokens == [0, 1, 2, 3, 4], "these ended: {tokens:?}");
    let gone = rig.ports[0].access(duo.ids[0], remote, OneSided::FetchAdd { at: 0, add: 1 }, 9);
    ensure!(matches!(gone, Err((AccessError::Closed, _))), "{gone:?} after the end");
    Ok(())
}
