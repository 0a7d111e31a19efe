//! One slice: what is called, how often, and what it came to.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gimmal::Instant;
use gimmal_bench::recorder::Recorder;

/// Of one echo, each way.
pub(crate) const BYTES: usize = 64;

/// The two cores that every pair of programs runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pins {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

/// What one slice came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Of the round trips, nanoseconds.
    pub(crate) median_ns: f64,
    /// Calls in a second.
    pub(crate) per_second: f64,
}

impl Times {
    /// Of what was recorded since `first`.
    pub(crate) fn of(recorder: &mut Recorder, first: Instant) -> Result<Self> {
        recorder.busy(u64::try_from(first.elapsed().as_nanos())?);
        ensure!(recorder.count() > 0, "nothing was measured");
        Ok(Self { median_ns: recorder.fine_median_ns(), per_second: recorder.per_second() })
    }
}

/// `calls` of what `call` makes, after a tenth of that to warm up, by `window` callers that make one after the other.
pub(crate) async fn windowed(
    calls: usize,
    window: usize,
    call: impl AsyncFn() -> Result<()>,
) -> Result<Times> {
    let run = async |count: usize| -> Result<Recorder> {
        // One for all: its counts stay in the cache.
        let recorder = RefCell::new(Recorder::new()?);
        let caller = async || -> Result<()> {
            for _ in 0..count / window {
                let start = Instant::now();
                call().await?;
                recorder.borrow_mut().record(u64::try_from(start.elapsed().as_nanos())?);
            }
            Ok(())
        };
        let mut callers: FuturesUnordered<_> = (0..window).map(|_| caller()).collect();
        while let Some(ended) = callers.next().await {
            ended?;
        }
        drop(callers);
        Ok(recorder.into_inner())
    };
    run(calls / 10).await?;
    let first = Instant::now();
    let mut recorder = run(calls).await?;
    Times::of(&mut recorder, first)
}

/// What everybody's asynchronous side runs on.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
