//! What every test of the client begins with: the job, the plan, the server process and where it is.

use gimmal_engine::transport::Address;

use crate::{
    against::{Goal, choose::Choice, sockets::Meeting},
    args::{Cores, Run},
    child::{ChildOptions, Server},
    clock::Relax,
    environment::Environment,
    error::BenchError,
    floors::{Floors, Phase},
    invocation,
    leave::Folder,
    plan::{Mode, Plan},
    recorder::Recorder,
    report::Report,
    target::body,
};

/// Blocks above this have no floor, bytes: it would need twice as much memory.
pub(crate) const BLOCK_FLOOR_MAX: usize = 16 << 20;

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
    _folder: Folder,
}

impl Loopback {
    /// Starts it.
    pub(crate) fn start(
        run: &Run,
        plan: &Plan,
        ring_bytes: u32,
        choice: Option<&Choice<'_>>,
    ) -> Result<(Self, Vec<Meeting>), BenchError> {
        let folder = Folder::new()?;
        let meetings = choice.map_or_else(|| Ok(vec![]), |choice| choice.meetings(folder.path()))?;
        let beside = meetings.iter().map(Meeting::place).collect::<Result<Vec<_>, _>>()?;
        let relax = Relax::for_cores(plan.client_core, plan.server_core);
        let block = if plan.block <= BLOCK_FLOOR_MAX { plan.block } else { 0 };
        let (mut floors, fd) = Floors::create(body(plan.bytes), plan.window, block, relax)?;
        let options = ChildOptions {
            is_asleep: run.mode == Mode::Asleep,
            beside: &beside,
            piece: run.piece,
            stall_ms: run.stall,
            corrupt: run.corrupt,
        };
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

/// See [`Floors::blame`].
pub(crate) fn blamed(loopback: Option<&Loopback>, why: BenchError) -> BenchError {
    match loopback {
        Some(loopback) => loopback.floors.blame(why),
        None => why,
    }
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
            bytes_per_s: (job.test == "bw").then(|| test.per_second() * job.bytes as f64),
            cpus,
            is_complete: true,
            date: invocation::date(),
            command: invocation::command(),
            commit: environment.commit.clone(),
            warnings: environment.warnings(cpus),
            environment,
            ..Self::default()
        }
    }
}
