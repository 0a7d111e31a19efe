//! One slice: what is called, how often, and what it came to.

use std::{cell::RefCell, time::Duration};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gimmal::Instant;
use gimmal_bench::{cost::cpu_ns, recorder::Recorder};
use tokio::runtime::{Builder, Runtime, RuntimeFlavor};

use crate::{
    case::{Case, Cores},
    place::Place,
};

/// The shortest time whose processor time is told: the kernel adds up that of a thread which runs every 4 ms.
const COUNTED: Duration = Duration::from_millis(40);
/// A connection is left alone before it is watched, and watched.
const REST: Duration = Duration::from_millis(500);

/// The two cores that every pair of programs runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pins {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

/// What a client is told.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) case: Case,
    pub(crate) calls: usize,
    pub(crate) pins: Pins,
    pub(crate) place: Place,
    /// The process of the server.
    pub(crate) server: u32,
}

/// What one slice came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Of the round trips, nanoseconds.
    pub(crate) median_ns: f64,
    /// What 99 % of them do not exceed.
    pub(crate) p99_ns: f64,
    /// Calls in a second.
    pub(crate) per_second: f64,
    /// Processor time of client and server, nanoseconds: of a call, or in a second without calls. Not a number where nobody counted.
    pub(crate) cpu_ns: [f64; 2],
}

/// The time in which calls are made.
pub(crate) struct Stretch {
    processes: [u32; 2],
    cpu_ns: [Option<u64>; 2],
    began: Instant,
}

impl Stretch {
    pub(crate) fn begin(job: &Job) -> Self {
        let processes = [std::process::id(), job.server];
        Self { processes, cpu_ns: processes.map(cpu_ns), began: Instant::now() }
    }

    /// Processor time of both sides, nanoseconds, by `count`.
    fn cpu_ns(&self, count: f64) -> [f64; 2] {
        if self.began.elapsed() < COUNTED {
            return [f64::NAN; 2];
        }
        let now = self.processes.map(cpu_ns);
        std::array::from_fn(|side| match (now[side], self.cpu_ns[side]) {
            (Some(now), Some(then)) => now.saturating_sub(then) as f64 / count,
            _ => f64::NAN,
        })
    }

    /// Of the calls in it, which `recorder` has.
    pub(crate) fn end(self, recorder: &mut Recorder) -> Result<Times> {
        recorder.busy(u64::try_from(self.began.elapsed().as_nanos())?);
        ensure!(recorder.count() > 0, "nothing was measured");
        let (median_ns, p99_ns) = (recorder.fine_median_ns(), recorder.quantile_ns(0.99) as f64);
        let (per_second, cpu_ns) = (recorder.per_second(), self.cpu_ns(recorder.count() as f64));
        Ok(Times { median_ns, p99_ns, per_second, cpu_ns })
    }

    /// Of `count` of something, none of which has a time of its own.
    pub(crate) fn end_all(self, count: usize) -> Result<Times> {
        ensure!(count > 0, "nothing was measured");
        let (took, count) = (self.began.elapsed().as_secs_f64(), count as f64);
        let (median_ns, p99_ns) = (f64::NAN, f64::NAN);
        Ok(Times { median_ns, p99_ns, per_second: count / took, cpu_ns: self.cpu_ns(count) })
    }
}

/// The job's calls, which `call` makes, after a tenth of that to warm up, by as many callers that make one after the other as it has
/// calls at once.
pub(crate) async fn windowed(job: &Job, call: impl AsyncFn() -> Result<()>) -> Result<Times> {
    let (calls, window) = (job.calls, job.case.window);
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
    if job.case.cores == Cores::AtRest {
        return at_rest(job).await;
    }
    let stretch = Stretch::begin(job);
    let mut recorder = run(calls).await?;
    stretch.end(&mut recorder)
}

/// What a connection takes that nobody uses.
async fn at_rest(job: &Job) -> Result<Times> {
    tokio::time::sleep(REST).await;
    let stretch = Stretch::begin(job);
    tokio::time::sleep(REST).await;
    let cpu_ns = stretch.cpu_ns(REST.as_secs_f64());
    Ok(Times { median_ns: f64::NAN, p99_ns: f64::NAN, per_second: f64::NAN, cpu_ns })
}

/// [`windowed`] on `runtime`: where that has several threads, every caller is a task of it.
pub(crate) fn windowed_on<C, F>(runtime: &Runtime, job: &Job, call: C) -> Result<Times>
where
    C: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let (calls, window) = (job.calls, job.case.window);
    if runtime.handle().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return runtime.block_on(windowed(job, async || call().await));
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
        let stretch = Stretch::begin(job);
        let mut recorder = run(calls).await?;
        stretch.end(&mut recorder)
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
