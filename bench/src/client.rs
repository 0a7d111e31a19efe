//! One run from the client's side: the server, the connection, the others, the slices, the report.

use std::time::Duration;

use gimmal_engine::{transport::Address, worker::thread::pin_to};
use tempfile::TempDir;

use crate::{
    against::{
        Goal, Role,
        choose::{Choice, Chosen},
        own::{BareBlock, Companion},
        sockets::Meeting,
    },
    args::{Cores, Run},
    child::{ChildOptions, Server},
    clock::Relax,
    environment::Environment,
    error::BenchError,
    floors::{Floors, Phase},
    measure::{Amount, Earlier, Measured, Other, measure},
    outcome,
    plan::{Mode, Plan},
    provider::{self, Beside},
    recorder::Recorder,
    report::Report,
    rounds,
    target::{Target, body},
};

/// Blocks above this have no floor, bytes: it would need twice as much memory.
const BLOCK_FLOOR_MAX: usize = 16 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Its name, as on the command line.
    pub(crate) test: &'static str,
    /// What it compares.
    pub(crate) goal: Goal,
    /// Bytes of one body; of one loan for bandwidth.
    pub(crate) bytes: usize,
    /// Outstanding, of all threads.
    pub(crate) window: usize,
    /// Threads that call.
    pub(crate) threads: usize,
    /// Bandwidth: whether every byte is written and read.
    pub(crate) is_whole: bool,
}

impl Job {
    /// On one thread, with small bodies.
    pub(crate) const fn new(test: &'static str, goal: Goal, window: usize) -> Self {
        Self { test, goal, bytes: 64, window, threads: 1, is_whole: false }
    }
}

/// A server process, the floors, and where it is told about sockets.
#[derive(Debug)]
pub(crate) struct Loopback {
    /// Shared with it.
    pub(crate) floors: Floors,
    /// The process.
    pub(crate) server: Server,
    /// Of sockets.
    _folder: TempDir,
}

impl Loopback {
    /// Starts it.
    pub(crate) fn start(
        run: &Run,
        plan: &Plan,
        ring_bytes: u32,
        choice: Option<&Choice<'_>>,
    ) -> Result<(Self, Vec<Meeting>), BenchError> {
        let folder = tempfile::Builder::new().prefix("gimmal-bench-").tempdir();
        let folder = folder.map_err(BenchError::system("creating a folder for sockets"))?;
        let meetings = choice.map_or_else(|| Ok(vec![]), |choice| choice.meetings(folder.path()))?;
        let beside = meetings.iter().map(Meeting::place).collect::<Result<Vec<_>, _>>()?;
        let relax = Relax::for_cores(plan.client_core, plan.server_core);
        let block = if plan.block <= BLOCK_FLOOR_MAX { plan.block } else { 0 };
        let (mut floors, fd) = Floors::create(body(plan.bytes), plan.window, block, relax)?;
        let options =
            ChildOptions { beside: &beside, piece: run.piece, stall_ms: run.stall, corrupt: run.corrupt };
        let server = Server::start(run.provider, run.address.as_ref(), ring_bytes, fd, &options)?;
        floors.watch(server.pidfd()?);
        Ok((Self { floors, server, _folder: folder }, meetings))
    }

    /// The client said goodbye.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        self.floors.announce(Phase::End)?;
        self.server.end()
    }
}

/// Whether this process and one at `address` are on one host for sure.
fn is_same_host(address: Option<&Address>) -> bool {
    matches!(address, Some(Address::Shm { .. } | Address::Mem { .. }))
}

/// The plan that the server is told.
pub(crate) fn plan(run: &Run, cores: Cores, job: &Job) -> Plan {
    let is_bulk = job.goal == Goal::Bandwidth;
    Plan {
        layer: run.layer,
        mode: run.mode,
        bytes: if is_bulk { 64 } else { job.bytes },
        window: job.window,
        threads: job.threads,
        block: if is_bulk { job.bytes } else { 0 },
        verify: run.verify,
        keeps_accepting: false,
        client_core: cores.client,
        server_core: cores.server,
        same_host: run.loopback || is_same_host(run.address.as_ref()),
    }
}

/// Where the server is, once it is there.
pub(crate) fn server_address(run: &Run, loopback: Option<&Loopback>) -> Result<Address, BenchError> {
    match (loopback, &run.address) {
        (Some(loopback), _) => Ok(loopback.server.address().clone()),
        (None, Some(address)) => Ok(address.clone()),
        (None, None) => Err(BenchError::Arguments("--address or --loopback".to_owned())),
    }
}

/// One start of the processes.
struct Session {
    loopback: Option<Loopback>,
    target: Box<dyn Target>,
    chosen: Chosen,
}

impl Session {
    fn open(run: &Run, job: &Job, plan: &Plan) -> Result<Self, BenchError> {
        let ring_bytes = run.ring_for(plan.bytes, 256 << 10);
        let mut choice =
            Choice { against: &run.against, goal: job.goal, provider: run.provider, plan, host: None };
        let mut loopback = None;
        let mut meetings = Vec::new();
        if run.loopback {
            let (started, places) = Loopback::start(run, plan, ring_bytes, Some(&choice))?;
            loopback = Some(started);
            meetings = places;
        }
        let address = server_address(run, loopback.as_ref())?;
        if let Address::Rdma { host, .. } = &address {
            choice.host = Some(host.clone());
        }
        pin_to(plan.client_core)?;
        let beside = Beside { provider: run.provider, address: &address, plan, ring_bytes };
        let mut companions = loopback.as_ref().map_or_else(|| Ok(vec![]), |_| companions(job, &beside))?;
        let target = match job.goal {
            Goal::Bandwidth => beside.bulk(job.is_whole)?,
            Goal::Latency | Goal::Rate => beside.target()?,
        };
        let mut chosen = Chosen::default();
        if loopback.is_some() {
            companions.extend(rpc_companion(job, &beside, &*target)?);
            chosen = choice.contenders(meetings)?;
            let (whole, bytes) = (job.is_whole && job.goal == Goal::Bandwidth, plan.block);
            if whole && bytes <= BLOCK_FLOOR_MAX {
                chosen.contenders.insert(0, Box::new(BareBlock { bytes }));
            }
            for companion in companions {
                chosen.contenders.insert(0, Box::new(companion));
            }
        }
        Ok(Self { loopback, target, chosen })
    }

    fn measure(&mut self, amount: &Amount) -> Result<Measured, BenchError> {
        let amount =
            Amount { server: self.loopback.as_ref().map(|loopback| loopback.server.id()), ..*amount };
        let floors = self.loopback.as_mut().map(|loopback| {
            loopback.server.connected();
            &mut loopback.floors
        });
        measure(&mut *self.target, floors, std::mem::take(&mut self.chosen.contenders), &amount)
    }

    /// Ends it; `others` are what took turns.
    fn close(self, others: Vec<Other>) -> Result<(), BenchError> {
        let Self { loopback, target, .. } = self;
        let Some(mut loopback) = loopback else {
            target.close();
            return Ok(());
        };
        // It answers our goodbye while it waits.
        loopback.floors.announce(Phase::Idle)?;
        drop(others);
        target.close();
        loopback.end()
    }
}

/// The calls, pairs and time of one of the starts.
fn amount(run: &Run, start: u32) -> Amount {
    let (start, starts) = (u64::from(start), u64::from(run.starts));
    let share = |of: u64| of * (start + 1) / starts - of * start / starts;
    let count = share(run.count).max(1);
    Amount {
        count,
        warmup: run.warmup.unwrap_or_else(|| (run.count / 10).clamp(1, 20_000)),
        pairs: share(run.pairs).clamp(1, count),
        slice: Duration::from_millis(run.slice_ms.into()),
        limit: run
            .limit_s
            .map(|seconds| Duration::from_millis(u64::from(seconds) * 1000 / u64::from(run.starts))),
        is_quiet: run.json || run.csv,
        server: None,
    }
}

/// Measures one job.
///
/// # Errors
/// When nothing was measured. A run that broke off has a report, and beside it the reason.
pub(crate) fn measure_job(
    run: &Run,
    job: &Job,
    cores: Cores,
) -> Result<(Report, Option<BenchError>), BenchError> {
    provider::is_built(run.provider)?;
    let environment = Environment::read(std::path::Path::new("/"), cores.client);
    let plan = plan(run, cores, job);
    let (mut start, mut earlier) = (0, None::<Earlier>);
    loop {
        let mut session = Session::open(run, job, &plan)?;
        let mut measured = session.measure(&amount(run, start))?;
        start += 1;
        if let Some(earlier) = earlier.take() {
            measured = measured.after(earlier)?;
        }
        if start < run.starts && measured.ended.is_none() {
            let (kept, others) = measured.set_aside(start);
            session.close(others)?;
            earlier = Some(kept);
            if run.in_turns {
                rounds::wait()?;
            }
            continue;
        }
        if let Some(path) = run.hgrm_of(job.bytes) {
            std::fs::write(path, measured.test.distribution())
                .map_err(BenchError::system("writing the distribution"))?;
        }
        let absent = std::mem::take(&mut session.chosen.absent);
        let report = outcome::report(run, job, &plan, &measured, absent, environment);
        if let Some(why) = measured.ended {
            return Ok((report, Some(blamed(session.loopback.as_ref(), why))));
        }
        session.close(measured.others)?;
        return Ok((report, None));
    }
}

/// See [`Floors::blame`].
pub(crate) fn blamed(loopback: Option<&Loopback>, why: BenchError) -> BenchError {
    match loopback {
        Some(loopback) => loopback.floors.blame(why),
        None => why,
    }
}

/// Targets on the same server that a row needs; those of the engine connect before the plan is told.
fn companions(job: &Job, beside: &Beside<'_>) -> Result<Vec<Companion>, BenchError> {
    let plan = beside.plan;
    let is_handed_off = plan.mode == Mode::Handoff && plan.layer == crate::plan::Layer::Engine;
    Ok(match job.goal {
        Goal::Latency if is_handed_off => {
            vec![Companion::new("the same, inline", Role::Inline, beside.inline()?)?]
        }
        Goal::Bandwidth => vec![Companion::new("64 B echo of the engine", Role::Row, beside.inline()?)?],
        _ => vec![],
    })
}

/// Measures an inline RPC client beside a worker client. The RPC server is elsewhere.
fn rpc_companion(
    job: &Job,
    beside: &Beside<'_>,
    target: &dyn Target,
) -> Result<Option<Companion>, BenchError> {
    let is_wanted = job.goal == Goal::Latency && beside.plan.mode == Mode::Handoff;
    if !is_wanted || beside.plan.layer == crate::plan::Layer::Engine {
        return Ok(None);
    }
    let inline = beside.rpc_inline(target.served_at())?;
    Ok(Some(Companion::new("the same, inline", Role::Inline, inline)?))
}

impl Report {
    /// What every test reports, with the times of `test`.
    pub(crate) fn of(run: &Run, job: &Job, plan: &Plan, test: &Recorder, environment: Environment) -> Self {
        let cpus = [plan.client_core, plan.server_core];
        Self {
            test: job.test.to_owned(),
            provider: run.provider.to_string(),
            layer: plan.layer.to_string(),
            mode: plan.mode.to_string(),
            bytes: job.bytes,
            window: plan.window,
            threads: plan.threads,
            count: test.count(),
            min_ns: test.min_ns(),
            p50_ns: test.quantile_ns(0.5),
            p90_ns: test.quantile_ns(0.9),
            p99_ns: test.quantile_ns(0.99),
            p999_ns: test.quantile_ns(0.999),
            p9999_ns: test.quantile_ns(0.9999),
            max_ns: test.max_ns(),
            mean_ns: test.mean_ns(),
            stdev_ns: test.stdev_ns(),
            half_p50_ns: test.quantile_ns(0.5) / 2,
            calls_per_s: test.per_second(),
            cpus,
            is_complete: true,
            commit: environment.commit.clone(),
            warnings: environment.warnings(cpus),
            environment,
            ..Self::default()
        }
    }
}
