//! One run from the client's side: the server, the connection, the others, the slices, the report.

use gimmal_engine::{transport::Address, worker::thread::pin_to};
use tempfile::TempDir;

use crate::{
    against::{
        Goal, Quantity, Role,
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
    measure::{Amount, CONTENDER_MAX, Measured, MeasuredFloors, Other, measure},
    plan::{Mode, Plan, ring_for},
    provider::{self, Beside},
    recorder::Recorder,
    report::{Report, Row},
    slices::{Estimate, median},
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
    /// Outstanding.
    pub(crate) window: usize,
    /// Bandwidth: whether every byte is written and read.
    pub(crate) is_whole: bool,
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
        let options = ChildOptions { beside: &beside, stall_ms: run.stall, corrupt: run.corrupt };
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
    let ring_bytes = ring_for(plan.bytes, 256 << 10);
    let mut choice =
        Choice { against: &run.against, goal: job.goal, provider: run.provider, plan: &plan, host: None };
    let mut loopback = None;
    let mut meetings = Vec::new();
    if run.loopback {
        let (started, places) = Loopback::start(run, &plan, ring_bytes, Some(&choice))?;
        loopback = Some(started);
        meetings = places;
    }
    let address = server_address(run, loopback.as_ref())?;
    if let Address::Rdma { host, .. } = &address {
        choice.host = Some(host.clone());
    }
    pin_to(cores.client)?;
    let beside = Beside { provider: run.provider, address: &address, plan: &plan, ring_bytes };
    let mut companions = loopback.as_ref().map_or_else(|| Ok(vec![]), |_| companions(job, &beside))?;
    let mut target = match job.goal {
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
    let warmup = run.warmup.unwrap_or_else(|| (run.count / 10).clamp(1, 20_000));
    let amount = Amount {
        count: run.count,
        warmup,
        slices: run.pairs.min(run.count),
        is_quiet: run.json || run.csv,
        server: loopback.as_ref().map(|loopback| loopback.server.id()),
    };
    let floors = loopback.as_mut().map(|loopback| {
        loopback.server.connected();
        &mut loopback.floors
    });
    let measured = measure(&mut *target, floors, chosen.contenders, &amount)?;
    let report = report(run, job, &plan, &measured, chosen.absent, environment);
    if let Some(why) = measured.ended {
        return Ok((report, Some(blamed(loopback.as_ref(), why))));
    }
    close(loopback, target, measured.others)?;
    Ok((report, None))
}

/// See [`Floors::blame`].
pub(crate) fn blamed(loopback: Option<&Loopback>, why: BenchError) -> BenchError {
    match loopback {
        Some(loopback) => loopback.floors.blame(why),
        None => why,
    }
}

fn close(loopback: Option<Loopback>, target: Box<dyn Target>, others: Vec<Other>) -> Result<(), BenchError> {
    let Some(mut loopback) = loopback else {
        target.close();
        return Ok(());
    };
    // It answers our goodbye while it waits.
    loopback.floors.rest()?;
    drop(others);
    target.close();
    loopback.end()
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

/// As above, for the RPC layer, which is served elsewhere.
fn rpc_companion(
    job: &Job,
    beside: &Beside<'_>,
    target: &dyn Target,
) -> Result<Option<Companion>, BenchError> {
    let is_wanted = job.goal == Goal::Latency && beside.plan.mode == Mode::Handoff;
    if !is_wanted || beside.plan.layer != crate::plan::Layer::Rpc {
        return Ok(None);
    }
    let inline = beside.rpc_inline(target.served_at())?;
    Ok(Some(Companion::new("the same, inline", Role::Inline, inline)?))
}

/// The row of one contender.
#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
fn row(other: &Other, measured: &Measured, bytes: usize, count: u64) -> Row {
    let contender = &other.contender;
    let bandwidth: Vec<f64> = measured.rates.iter().map(|rate| rate * bytes as f64).collect();
    let ours = match contender.quantity() {
        Quantity::RoundTrip => &measured.medians_ns,
        Quantity::PerSecond => &measured.rates,
        Quantity::Bytes => &bandwidth,
    };
    let ratio = Estimate::of_ratios(ours, &other.values);
    Row {
        name: contender.name(),
        what: contender.label().to_owned(),
        value: median(&other.values),
        slices: other.values.len(),
        ratio: ratio.map(|ratio| ratio.median),
        ratio_interval: ratio.map(|ratio| [ratio.low, ratio.high]),
        note: other.failed.clone(),
        commands: contender.commands(count),
    }
}

/// Handed off: what it costs more than inline, in bare exchanges; of each pair, then the median.
fn handoff_per_exchange(measured: &Measured) -> Option<f64> {
    let of = |role| measured.others.iter().find(|other| other.contender.role() == role);
    let (inline, exchange) = (of(Role::Inline)?, of(Role::Exchange)?);
    let more: Vec<f64> =
        measured.medians_ns.iter().zip(&inline.values).map(|(ours, inline)| ours - inline).collect();
    Estimate::of_ratios(&more, &exchange.values).map(|ratio| ratio.median)
}

/// Every slice over the floors on both sides of it: of the medians, or of the rates, the floor's at window 1.
fn to_frame_floor(plan: &Plan, measured: &Measured, floors: &MeasuredFloors) -> Option<Estimate> {
    let frame = floors.frame.medians_ns().windows(2).map(|around| (around[0] + around[1]) / 2.0);
    if plan.window == 1 {
        return Estimate::of_ratios(&measured.medians_ns, &frame.collect::<Vec<_>>());
    }
    let rates: Vec<f64> = frame.map(|nanos| 1e9 / nanos.max(1.0)).collect();
    Estimate::of_ratios(&measured.rates, &rates)
}

fn report(
    run: &Run,
    job: &Job,
    plan: &Plan,
    measured: &Measured,
    absent: Vec<Row>,
    environment: Environment,
) -> Report {
    let Measured { test, floors, .. } = measured;
    let is_bulk = job.goal == Goal::Bandwidth;
    let ratio =
        floors.as_ref().filter(|_| !is_bulk).and_then(|floors| to_frame_floor(plan, measured, floors));
    let drift = floors.as_ref().map(|floors| floors.line.drift_pct().max(floors.frame.drift_pct()));
    let each = (run.count / run.pairs).clamp(1, CONTENDER_MAX);
    let mut rows: Vec<Row> =
        measured.others.iter().map(|other| row(other, measured, job.bytes, each)).collect();
    rows.extend(absent);
    Report {
        line_floor_p50_ns: floors.as_ref().map(|floors| floors.line.all().quantile_ns(0.5)),
        frame_floor_p50_ns: floors.as_ref().map(|floors| floors.frame.all().quantile_ns(0.5)),
        ratio_to_frame_floor: ratio.map(|ratio| ratio.median),
        ratio_to_frame_floor_interval: ratio.map(|ratio| [ratio.low, ratio.high]),
        floor_drift_pct: drift,
        handoff_per_exchange: handoff_per_exchange(measured),
        rows,
        cost: Some(measured.cost.clone()),
        is_complete: measured.ended.is_none(),
        ..Report::of(run, job, plan, test, environment)
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
            count: test.count(),
            min_ns: test.min_ns(),
            p50_ns: test.quantile_ns(0.5),
            p90_ns: test.quantile_ns(0.9),
            p99_ns: test.quantile_ns(0.99),
            p999_ns: test.quantile_ns(0.999),
            p9999_ns: test.quantile_ns(0.9999),
            max_ns: test.max_ns(),
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
