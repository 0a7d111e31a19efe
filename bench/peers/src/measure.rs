//! One slice: what is called, how often, and what it came to.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gimmal::Instant;
use gimmal_bench::recorder::Recorder;
use tokio::runtime::{Builder, Runtime, RuntimeFlavor};

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
        if window == 1 {
            // A set of futures wakes itself after a look at each of them: one more pass of the runtime for each call.
            caller().await?;
            return Ok(recorder.into_inner());
        }
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

/// [`windowed`] on `runtime`: where that has several threads, every caller is a task of it.
pub(crate) fn windowed_on<C, F>(runtime: &Runtime, calls: usize, window: usize, call: C) -> Result<Times>
where
    C: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<()>> + Send,
{
    if runtime.handle().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return runtime.block_on(windowed(calls, window, async || call().await));
    }
    let run = async |count: usize| -> Result<Recorder> {
        let caller = |call: C| async move {
            let mut times = Vec::with_capacity(count / window);
            for _ in 0..count / window {
                let start = Instant::now();
                call().await?;
                times.push(u64::try_from(start.elapsed().as_nanos())?);
            }
            anyhow::Ok(times)
        };
        let callers: Vec<_> = (0..window).map(|_| tokio::spawn(caller(call.clone()))).collect();
        let mut recorder = Recorder::new()?;
        for caller in callers {
            caller.await??.into_iter().for_each(|time| recorder.record(time));
        }
        Ok(recorder)
    };
    runtime.block_on(async {
        run(calls / 10).await?;
        let first = Instant::now();
        let mut recorder = run(calls).await?;
        Times::of(&mut recorder, first)
    })
}

/// What everybody's asynchronous side runs on.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// What it runs on where it may have several threads.
pub(crate) fn many_threads() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}
