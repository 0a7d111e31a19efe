//! One run from the client's side: the server, the connection, the others, the slices, the report.

use std::time::Duration;

use gimmal_engine::{transport::Address, worker::thread::pin_to};

use crate::{
    against::{
        Goal, Role,
        choose::{Choice, Chosen},
        own::{BareBlock, Companion},
    },
    args::{Cores, Run},
    beside::Beside,
    environment::Environment,
    error::BenchError,
    floors::Phase,
    measure::{Amount, Earlier, Measured, Other, measure},
    outcome,
    plan::{Mode, Plan},
    provider,
    report::Report,
    rounds,
    session::{BLOCK_FLOOR_MAX, Job, Loopback, blamed, plan, server_address},
    target::Target,
};

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
