//! A bare exchange of two threads on one core: one blocks until the other, which yields while it has nothing to do, has answered.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use gimmal::Instant;
use gimmal_bench::recorder::Recorder;

use crate::measure::Times;

/// Ends the partner.
const OVER: u64 = u64::MAX;

/// There is no other process: this one makes the place that tells that it is there, and waits.
pub(crate) fn serve(place: &Path, stop: &AtomicBool) -> Result<()> {
    std::fs::write(place, [])?;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// `calls` exchanges after a tenth of that to warm up.
pub(crate) fn run(calls: usize) -> Result<Times> {
    let (asked, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let partner = {
        let (asked, answered, caller) = (Arc::clone(&asked), Arc::clone(&answered), thread::current());
        thread::spawn(move || answer(&asked, &answered, &caller))
    };
    let times = exchanges(calls, &asked, &answered);
    asked.store(OVER, Ordering::Release);
    ensure!(partner.join().is_ok(), "the partner panicked");
    times
}

fn answer(asked: &AtomicU64, answered: &AtomicU64, caller: &thread::Thread) {
    let mut last = 0;
    loop {
        match asked.load(Ordering::Acquire) {
            OVER => return,
            same if same == last => thread::yield_now(),
            next => {
                last = next;
                answered.store(next, Ordering::Release);
                caller.unpark();
            }
        }
    }
}

fn exchanges(calls: usize, asked: &AtomicU64, answered: &AtomicU64) -> Result<Times> {
    let exchange = |number: u64| {
        asked.store(number, Ordering::Release);
        while answered.load(Ordering::Acquire) != number {
            thread::park();
        }
    };
    let (calls, warm_up) = (u64::try_from(calls)?, u64::try_from(calls / 10)?);
    (1..=warm_up).for_each(exchange);
    let mut recorder = Recorder::new()?;
    let first = Instant::now();
    for number in 1..=calls {
        let start = Instant::now();
        exchange(warm_up + number);
        recorder.record(u64::try_from(start.elapsed().as_nanos())?);
    }
    Times::of(&mut recorder, first)
}
