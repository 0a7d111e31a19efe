//! The open loop: calls leave when they are due, whether or not earlier ones came back, and are timed from when they
//! were due. A closed loop waits for a slow answer and so asks less of a slow server: it hides what stalls do.
//!
//! ```text
//!  closed   call ──► answer, call ──► (stall: one slow call) ──► answer, call
//!  open     │ │  │    │ │   │ (stall: every call due in it waits) │ │   │       due at random: Poisson
//! ```

use std::time::Duration;

use crate::{
    against::Goal,
    args::{Cores, Run},
    arrivals::Arrivals,
    beside::Beside,
    environment::Environment,
    error::BenchError,
    floors::Phase,
    provider,
    record::{Part, knee},
    recorder::Recorder,
    report::Report,
    session::{Job, Loopback, blamed, plan, server_address},
    target::Target,
};

/// Of what a closed loop reached, in percent, when no rates are given.
const SWEEP_PCT: [u64; 9] = [10, 25, 50, 70, 80, 90, 95, 100, 110];
/// A closed loop first, then every load. Beside the report the reason when it broke off.
///
/// # Errors
/// When nothing was measured.
pub(crate) fn sweep(
    run: &Run,
    window: usize,
    rates: &[u64],
    seconds: u64,
) -> Result<(Report, Option<BenchError>), BenchError> {
    provider::is_built(run.provider)?;
    let cores = Cores::choose(run.cpus)?;
    let environment = Environment::read(std::path::Path::new("/"), cores.client);
    let bytes = run.size.0.first().copied().unwrap_or(64);
    let job = Job { bytes, ..Job::new("load", Goal::Rate, window) };
    let plan = plan(run, cores, &job);
    let ring_bytes = run.ring_for(bytes, 256 << 10);
    let mut loopback = None;
    if run.loopback {
        loopback = Some(Loopback::start(run, &plan, ring_bytes, None)?.0);
    }
    let address = server_address(run, loopback.as_ref())?;
    gimmal_engine::worker::thread::pin_to(cores.client)?;
    let beside = Beside { provider: run.provider, address: &address, plan: &plan, ring_bytes };
    let mut target = beside.target()?;
    if let Some(loopback) = &mut loopback {
        loopback.server.connected();
        loopback.floors.announce(Phase::Test)?;
    }
    let mut closed = Recorder::new()?;
    target.run(run.warmup.unwrap_or(run.count / 10).max(1), &mut closed)?;
    closed.reset();
    let mut parts = Vec::new();
    let ended = target
        .run(run.count, &mut closed)
        .and_then(|()| loads(&mut *target, &chosen_rates(rates, closed.per_second()), seconds, &mut parts));
    note_knee(&mut parts);
    let report = Report { parts, ..Report::of(run, &job, &plan, &closed, environment) };
    if let Err(why) = ended {
        let why = blamed(loopback.as_ref(), why);
        return Ok((Report { is_complete: false, ..report }, Some(why)));
    }
    if let Some(loopback) = &mut loopback {
        loopback.floors.announce(Phase::Idle)?;
    }
    target.close();
    if let Some(loopback) = loopback {
        loopback.end()?;
    }
    Ok((report, None))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates far below 2^53, none below 0"
)]
fn chosen_rates(asked: &[u64], closed: f64) -> Vec<u64> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    SWEEP_PCT.iter().map(|percent| ((closed * *percent as f64 / 100.0) as u64).max(1)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "rates far below 2^53")]
fn loads(
    target: &mut dyn Target,
    rates: &[u64],
    seconds: u64,
    parts: &mut Vec<Part>,
) -> Result<(), BenchError> {
    for rate in rates {
        let mut recorder = Recorder::new()?;
        let mut arrivals = Arrivals::poisson(*rate, Duration::from_secs(seconds), *rate);
        let done = target.offer(&mut arrivals, &mut recorder);
        let mut made =
            Part::of(format!("offered {rate} per s"), *rate as f64, &recorder, recorder.per_second());
        made.note = done.is_err().then(|| "broke off".to_owned());
        parts.extend((made.count > 0).then_some(made));
        done?;
    }
    Ok(())
}

fn note_knee(parts: &mut [Part]) {
    if let Some(knee) = knee(parts) {
        parts[knee].note = Some("the knee: the last load that was reached in good time".to_owned());
    }
}
