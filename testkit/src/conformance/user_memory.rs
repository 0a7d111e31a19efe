//! Clause 6, of memory that belongs to the user: it is brought as it lies or copied once, counted, and let go of once.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{
    bench::{Bench, same},
    case::{BULK, Case},
    outcome::{Outcome, ensure},
    rig::{Duo, Rig, pattern},
};
use gimmal_transport::{
    AccessError, Accessed, CloseReason, Gate, Loan, LoanError, Offer, OneSided, Port, Provider, Transfer,
    UserBytes, UserMemory, testing::Came,
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "user_memory_is_brought_wherever_it_lies", needs: BULK, run: brought },
        Case { name: "user_memory_lent_again_is_known", needs: BULK, run: lent_again },
        Case { name: "user_memory_for_several_peers", needs: BULK, run: several_peers },
        Case { name: "user_memory_owner_goes_once", needs: BULK, run: owner_goes_once },
        Case { name: "user_memory_forgotten_is_out_of_reach", needs: BULK, run: out_of_reach },
        Case { name: "user_memory_has_its_limits", needs: BULK, run: limits },
        Case { name: "user_memory_survives_the_close", needs: BULK, run: survives_the_close },
        Case { name: "user_memory_is_read_only", needs: BULK, run: read_only },
    ]
}

/// Bytes that say when they go.
struct Watched(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// Bytes, and how often their owner went.
fn watched(bytes: Vec<u8>) -> (UserBytes, impl Fn() -> usize) {
    let drops = Arc::new(AtomicUsize::new(0));
    let bytes = UserBytes::new(Watched(bytes, Arc::clone(&drops)));
    (bytes, move || drops.load(Ordering::Relaxed))
}

fn lend<P: Provider>(rig: &mut Rig<P>, duo: &Duo, bytes: &UserBytes) -> Outcome<(Loan, Offer)> {
    let loan = rig.ports[0].gate().lend(duo.ids[0], bytes)?;
    ensure!(loan.is_read_only(), "a loan of user memory can be written");
    same(&loan, bytes)?;
    let offer = rig.ports[0].offer(duo.ids[0], &loan)?;
    ensure!(offer.len == bytes.len() as u64, "the offer says {} bytes", offer.len);
    Ok((loan, offer))
}

/// Side 1 brings what side 0 offered.
fn pull<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    duo: &Duo,
    (loan, offer): (Loan, Offer),
) -> Outcome {
    rig.pull(1, duo.ids[1], offer, 4)?;
    let (_, result) = bench.pulled(rig, duo, 1)?;
    same(&result?, &loan)?;
    bench.linger(rig);
    Ok(())
}

fn counters<P: Provider>(rig: &Rig<P>) -> UserMemory {
    rig.ports[0].gate().user_memory()
}

fn brought<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let piece = bench.harness.config().bulk_piece_bytes as usize;
    static IN_THE_PROGRAM: [u8; 5000] = [7; 5000];
    let all = Arc::new(pattern(3, 1 << 20));
    struct Part(Arc<Vec<u8>>, std::ops::Range<usize>);
    impl AsRef<[u8]> for Part {
        fn as_ref(&self) -> &[u8] {
            &self.0[self.1.clone()]
        }
    }
    let part = |range| UserBytes::new(Part(Arc::clone(&all), range));
    let ranges = [0..1, 1..64, 4095..4097, 13..13 + piece, 1..5 * piece + 14, 0..1 << 20];
    let mut pieces: Vec<UserBytes> = ranges.map(part).into();
    pieces.extend([UserBytes::new(&IN_THE_PROGRAM[..]), UserBytes::new(Vec::new())]);
    for bytes in &pieces {
        let lent = lend(&mut rig, &duo, bytes)?;
        pull(bench, &mut rig, &duo, lent)?;
    }
    Ok(())
}

fn lent_again<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let shared: Arc<[u8]> = pattern(1, 100_000).into();
    ensure!(counters(&rig) == UserMemory::default(), "counted before: {:?}", counters(&rig));
    for _ in 0..3 {
        // Known by where it lies, not by who says it.
        let lent = lend(&mut rig, &duo, &UserBytes::new(Arc::clone(&shared)))?;
        pull(bench, &mut rig, &duo, lent)?;
    }
    let lent =
        UserMemory { hits: 2, misses: 1, pieces: 1, registered_bytes: 100_000, ..UserMemory::default() };
    let copied = UserMemory { copies: 3, copied_bytes: 300_000, ..UserMemory::default() };
    let seen = counters(&rig);
    ensure!(seen == lent || seen == copied, "after three loans: {seen:?}");
    ensure!(Arc::strong_count(&shared) == 1 + usize::from(seen == lent), "who keeps it?");
    Ok(())
}

fn several_peers<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, first) = bench.open()?;
    let second = bench.connect(&mut rig)?;
    let bytes = UserBytes::new(pattern(2, 60_000));
    let lent = [lend(&mut rig, &first, &bytes)?, lend(&mut rig, &second, &bytes)?];
    bytes.forget();
    for (lent, duo) in lent.into_iter().zip([&first, &second]) {
        pull(bench, &mut rig, duo, lent)?;
    }
    ensure!(counters(&rig).pieces == 0, "forgotten, and kept: {:?}", counters(&rig));
    Ok(())
}

fn owner_goes_once<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (bytes, drops) = watched(pattern(5, 70_000));
    let (loan, offer) = lend(&mut rig, &duo, &bytes)?;
    let is_copy = counters(&rig).copies > 0;
    bytes.forget();
    drop(bytes);
    ensure!(drops() == usize::from(is_copy), "gone {} times while it is lent", drops());
    rig.pull(1, duo.ids[1], offer, 4)?;
    let (_, result) = bench.pulled(&mut rig, &duo, 1)?;
    same(&result?, &loan)?;
    ensure!(drops() == usize::from(is_copy), "gone {} times before its loan was", drops());
    bench.linger(&mut rig);
    let done = std::thread::spawn(move || drop(loan));
    ensure!(done.join().is_ok(), "a loan cannot be dropped on another thread");
    ensure!(drops() == 1, "gone {} times", drops());
    Ok(())
}

/// After it was forgotten, an old offer brings nothing of it; where it was copied there is nothing to bring it from.
fn out_of_reach<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let mut other = bench.connect(&mut rig)?;
    let (bytes, drops) = watched(pattern(5, 70_000));
    let (loan, offer) = lend(&mut rig, &duo, &bytes)?;
    pull(bench, &mut rig, &duo, (loan, offer))?;
    bytes.forget();
    drop(bytes);
    ensure!(drops() == 1, "nobody uses it, and it is kept");
    if counters(&rig).copies == 0 {
        rig.pull(1, duo.ids[1], offer, 5)?;
        let event = bench.wait("end of the pull", |now| {
            rig.poll(now);
            Ok(rig.take(1, |event| matches!(event, Came::Pulled { token: 5, .. })))
        })?;
        let failed = matches!(event, Came::Pulled { result: Err(_), .. });
        ensure!(failed, "memory that is gone brought {event:?}");
    }
    bench.exchange(&mut rig, &mut other, 1)
}

fn limits<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open_with(|_, config| {
        config.user_bytes_max = 100_000;
        config.user_pieces_max = 3;
        config.bulk_bytes_max = 90_000;
    })?;
    let pieces: Vec<_> = (0..8).map(|seed| UserBytes::new(pattern(seed, 40_000))).collect();
    let held: Outcome<Vec<_>> = pieces[..4].iter().map(|bytes| lend(&mut rig, &duo, bytes)).collect();
    let held = held?;
    let is_copy = counters(&rig).copies > 0;
    ensure!(is_copy || counters(&rig).pieces == 4, "what is in use went: {:?}", counters(&rig));
    for lent in held {
        pull(bench, &mut rig, &duo, lent)?;
    }
    for bytes in pieces.iter().chain(&pieces[6..]) {
        let lent = lend(&mut rig, &duo, bytes)?;
        pull(bench, &mut rig, &duo, lent)?;
        let seen = counters(&rig);
        ensure!(seen.pieces <= 2 && seen.registered_bytes <= 100_000, "beyond the limits: {seen:?}");
    }
    // Of the first four the last two were left, and went before they were lent again.
    let seen = counters(&rig);
    let wanted = (2, 12, 10);
    let lent = (seen.hits, seen.misses, seen.evictions);
    ensure!(lent == wanted || (is_copy && seen.copies == 14), "{lent:?} in place of {wanted:?}");
    let refused = rig.ports[0].gate().lend(duo.ids[0], &UserBytes::new(vec![0; 90_001])).map(|_| ());
    let large = LoanError::TooLarge { bytes: 90_001, limit: 90_000 };
    ensure!(refused == Err(large), "above the limit: {refused:?}");
    Ok(())
}

fn survives_the_close<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let (bytes, drops) = watched(pattern(4, 150_000));
    let (idle, idle_drops) = watched(pattern(6, 1000));
    let lent = lend(&mut rig, &duo, &idle)?;
    pull(bench, &mut rig, &duo, lent)?;
    let (loan, _) = lend(&mut rig, &duo, &bytes)?;
    let now = bench.now();
    rig.ports[1].close(duo.ids[1], CloseReason::Local, now);
    bench.closed(&mut rig, 1, duo.ids[1])?;
    bench.closed(&mut rig, 0, duo.ids[0])?;
    let stale = rig.ports[0].gate().lend(duo.ids[0], &bytes).map(|_| ());
    ensure!(stale == Err(LoanError::Closed), "lent to a closed connection: {stale:?}");
    drop((rig, bytes, idle));
    bench.wait("the port to let go", |_| Ok((idle_drops() > 0).then_some(())))?;
    same(&loan, &pattern(4, 150_000))?;
    loan.set_aside();
    ensure!((drops(), idle_drops()) == (1, 1), "gone {} and {} times", drops(), idle_drops());
    Ok(())
}

/// A read of a peer's memory would write it; a write only reads it.
fn read_only<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let bytes = UserBytes::new(pattern(8, 5000));
    let exposed = rig.ports[1].gate().expose(duo.ids[1], 5000)?;
    let remote = rig.ports[1].show(duo.ids[1], &exposed)?;
    let into = rig.ports[0].gate().lend(duo.ids[0], &bytes)?;
    let from = match rig.ports[0].access(duo.ids[0], remote, OneSided::Read { at: 0, into }, 1) {
        Err((AccessError::ReadOnly, OneSided::Read { into, .. })) => into,
        other => return Err(format!("a read into user memory: {other:?}").into()),
    };
    let made = rig.ports[0].access(duo.ids[0], remote, OneSided::Write { at: 0, from }, 2);
    made.map_err(|(error, _)| error)?;
    let wanted = |event: &Came| matches!(event, Came::Accessed { .. });
    match bench.event(&mut rig, 0, duo.ids[0], "end of the write", wanted)? {
        Came::Accessed { result: Ok(Accessed::Loan(from)), .. } => same(&from, &bytes)?,
        other => return Err(format!("{other:?} in place of the loan").into()),
    }
    let mut seen = vec![0; 5000];
    bench.wait("the bytes", |now| {
        rig.poll(now);
        exposed.read(0, &mut seen)?;
        Ok((seen == bytes[..]).then_some(()))
    })
}
