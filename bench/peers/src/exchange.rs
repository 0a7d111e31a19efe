//! A bare exchange of two threads on one core: one blocks until the other, which yields while it has nothing to do, has answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Result, ensure};
use gimmal::Instant;
use gimmal_bench::recorder::Recorder;

use crate::{
    measure::{Job, Stretch, Times},
    post::Post,
};

/// Ends the partner.
const OVER: u64 = u64::MAX;

/// There is no other process: this one makes the place that tells that it is there, and waits.
pub(crate) fn serve(post: &Post) -> Result<()> {
    std::fs::write(post.place.path(), [])?;
    post.wait();
    Ok(())
}

/// The job's exchanges after a tenth of that to warm up.
pub(crate) fn run(job: &Job) -> Result<Times> {
    let (asked, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let partner = {
        let (asked, answered, caller) = (Arc::clone(&asked), Arc::clone(&answered), thread::current());
        thread::spawn(move || answer(&asked, &answered, &caller))
    };
    let times = exchanges(job, &asked, &answered);
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

fn exchanges(job: &Job, asked: &AtomicU64, answered: &AtomicU64) -> Result<Times> {
    let exchange = |number: u64| {
        asked.store(number, Ordering::Release);
        while answered.load(Ordering::Acquire) != number {
            thread::park();
        }
    };
    let (calls, warm_up) = (u64::try_from(job.calls)?, u64::try_from(job.calls / 10)?);
    (1..=warm_up).for_each(exchange);
    let mut recorder = Recorder::new()?;
    let stretch = Stretch::begin(job);
    for number in 1..=calls {
        let start = Instant::now();
        exchange(warm_up + number);
        recorder.record(u64::try_from(start.elapsed().as_nanos())?);
    }
    stretch.end(&mut recorder)
}
