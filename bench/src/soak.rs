//! Soak: calls for a given time, every byte of every answer compared; the server may be restarted meanwhile.
//!
//! ```text
//!  session   connect, tell the plan ──► a window of calls, sizes in turns ──► the server is gone
//! ▲ answered: compared, timed each call that fails has a fate: counted
//!     └─────────── again, until it is back or the time is over ◄───────────────┘
//! ```
//! With `--loopback --restart 5s` the server is killed during calls and started again.

use std::{collections::VecDeque, time::Duration};

use gimmal::{Channel, Fate, call::RawCall};
use gimmal_engine::{transport::Provider, worker::thread::pin_to};

use crate::{
    against::Goal,
    args::{Cores, Run},
    clock::Stamp,
    environment::Environment,
    error::BenchError,
    floors::Phase,
    inline::InlineTarget,
    plan::{Layer, Mode, Plan},
    provider::{With, is_built, with_provider},
    record::{Part, Soaked},
    recorder::Recorder,
    report::Report,
    service::{self, BenchClient},
    session::{Job, Loopback, plan, server_address},
    target::Target as _,
};

/// Between two attempts to reach a server that is gone.
const AGAIN: Duration = Duration::from_millis(50);
/// Places at which bodies begin in the noise: a prime, above the number of calls in flight.
const PLACES: u64 = 1_048_573;

/// How long, and what happens meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chaos {
    /// Until the last call starts.
    pub(crate) duration: Duration,
    /// From one kill of the server to the next.
    pub(crate) restart: Option<Duration>,
    /// From one line of progress to the next.
    pub(crate) interval: Duration,
}

/// What is sent: a stretch of noise, at another place and of another size for each call, so that no other answer fits.
struct Payload {
    noise: Vec<u8>,
    sizes: Vec<usize>,
}

impl Payload {
    fn new(sizes: Vec<usize>) -> Self {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let places = usize::try_from(PLACES).unwrap_or(0);
        let noise = std::iter::repeat_with(|| {
            // Xorshift: every byte depends on all before it.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        });
        Self { noise: noise.take(places + largest).collect(), sizes }
    }

    /// Which size a call has, and its body.
    fn of(&self, number: u64) -> (usize, &[u8]) {
        let which = usize::try_from(number % self.sizes.len() as u64).unwrap_or(0);
        let place = usize::try_from(number % PLACES).unwrap_or(0);
        (which, &self.noise[place..place + self.sizes[which]])
    }
}

/// What was counted so far.
struct Tally {
    payload: Payload,
    soaked: Soaked,
    /// By size.
    times: Vec<Recorder>,
    started: u64,
    first: Stamp,
    end: Stamp,
    told: Stamp,
    chaos: Chaos,
    next_kill: Option<Stamp>,
}

impl Tally {
    fn new(sizes: Vec<usize>, chaos: Chaos) -> Result<Self, BenchError> {
        let now = Stamp::now();
        Ok(Self {
            times: sizes.iter().map(|_| Recorder::new()).collect::<Result<_, _>>()?,
            payload: Payload::new(sizes),
            soaked: Soaked::default(),
            started: 0,
            first: now,
            end: now.after(chaos.duration),
            told: now,
            next_kill: chaos.restart.map(|restart| now.after(restart)),
            chaos,
        })
    }

    /// There is a server again, or the first one; `since` tells since when there was none.
    fn connected(&mut self, loopback: Option<&mut Loopback>, since: Stamp) -> Result<(), BenchError> {
        if let Some(loopback) = loopback {
            loopback.server.connected();
            loopback.floors.announce(Phase::Test)?;
        }
        // The first connection is no return.
        if self.started > 0 {
            let away = u64::try_from(Stamp::now().since(since).as_millis()).unwrap_or(u64::MAX);
            self.soaked.reconnects += 1;
            self.soaked.away_ms_max = self.soaked.away_ms_max.max(away);
        }
        Ok(())
    }

    fn failed(&mut self, fate: Fate) {
        match fate {
            Fate::NotRun => self.soaked.not_run += 1,
            Fate::MaybeRan => self.soaked.maybe_ran += 1,
            Fate::Ran => self.soaked.ran += 1,
        }
    }

    /// Whether the server is to be killed now.
    fn is_kill_due(&mut self, now: Stamp) -> bool {
        let is_due = now < self.end && self.next_kill.is_some_and(|next| now >= next);
        if is_due {
            self.next_kill = self.chaos.restart.map(|restart| now.after(restart));
            self.soaked.kills += 1;
        }
        is_due
    }

    /// Prints progress from time to time.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn tell(&mut self, now: Stamp) {
        if now.since(self.told) < self.chaos.interval {
            return;
        }
        self.told = now;
        let Soaked { verified, reconnects, not_run, maybe_ran, ran, .. } = &self.soaked;
        let seconds = now.since(self.first).as_secs_f64();
        eprintln!(
            "soak {seconds:>8.0} s: {verified} calls verified, {:.0} per s, {reconnects} reconnects, {} failed",
            *verified as f64 / seconds.max(1.0),
            not_run + maybe_ran + ran,
        );
    }

    /// Makes calls until the time is over or one failed, and waits for those in flight. Returns whether one failed.
    fn calls<C: Channel>(
        &mut self,
        client: &BenchClient<C>,
        window: usize,
        mut kill: impl FnMut(),
    ) -> Result<bool, BenchError> {
        let mut under_way: VecDeque<(u64, Stamp, RawCall<C>)> = VecDeque::with_capacity(window);
        let (mut is_lost, mut now) = (false, Stamp::now());
        loop {
            while !is_lost && now < self.end && under_way.len() < window {
                let (_, body) = self.payload.of(self.started);
                under_way.push_back((self.started, now, client.echo(body)));
                self.started += 1;
            }
            if !is_lost && self.is_kill_due(now) {
                kill();
            }
            let Some((number, start, call)) = under_way.pop_front() else { return Ok(is_lost) };
            let (which, body) = self.payload.of(number);
            let answer = call.wait_with(|answer| answer == body);
            now = Stamp::now();
            match answer {
                Ok(true) => {
                    self.soaked.verified += 1;
                    self.soaked.verified_bytes += body.len() as u64;
                    self.times[which].record(now.nanos_since(start));
                }
                Ok(false) => return Err(BenchError::Wrong("another body in a soak")),
                Err(error) => {
                    is_lost = true;
                    self.failed(error.fate());
                }
            }
            self.tell(now);
        }
    }

    fn parts(&self) -> Result<(Vec<Part>, Recorder), BenchError> {
        let mut all = Recorder::new()?;
        let mut parts = Vec::new();
        for (times, bytes) in self.times.iter().zip(&self.payload.sizes) {
            all.add(times)?;
            let at = u32::try_from(*bytes).map_or(f64::MAX, f64::from);
            #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
            let per_s = times.count() as f64 / self.soaked.seconds.max(1e-9);
            parts.push(Part::of(format!("{bytes} B"), at, times, per_s));
        }
        Ok((parts, all))
    }
}

/// One connection, for as long as it lasts. Whether it was lost.
struct Session<'a> {
    run: &'a Run,
    plan: &'a Plan,
    ring_bytes: u32,
    loopback: Option<&'a mut Loopback>,
    tally: &'a mut Tally,
    /// Since when there is no server.
    since: Stamp,
}

impl With for Session<'_> {
    type Output = bool;

    fn with<P: Provider>(self, provider: P) -> Result<bool, BenchError> {
        let Self { run, plan, ring_bytes, mut loopback, tally, since } = self;
        let address = server_address(run, loopback.as_deref())?;
        let control = InlineTarget::connect(&provider, &address, plan, ring_bytes)?;
        let url = control.served_at().to_owned();
        let kill = |loopback: &mut Option<&mut Loopback>| {
            if let Some(loopback) = loopback {
                loopback.server.kill();
            }
        };
        let is_lost = match plan.mode {
            Mode::Inline | Mode::Asleep => {
                let client = service::inline(&url, plan, ring_bytes)?;
                tally.connected(loopback.as_deref_mut(), since)?;
                let calls = BenchClient::new(client.clone());
                let is_lost = tally.calls(&calls, plan.window, || kill(&mut loopback))?;
                if !is_lost {
                    // A server that does not answer our goodbye sees us go.
                    let _ = client.close(Duration::from_secs(1));
                }
                is_lost
            }
            Mode::Handoff => {
                let client = service::handed_off(&url, plan, ring_bytes)?;
                tally.connected(loopback.as_deref_mut(), since)?;
                tally.calls(&BenchClient::new(client), plan.window, || kill(&mut loopback))?
            }
        };
        if !is_lost {
            if let Some(loopback) = loopback {
                loopback.floors.announce(Phase::Idle)?;
            }
            Box::new(control).close();
        }
        Ok(is_lost)
    }
}

/// Soaks. Beside the report the reason when it broke off.
///
/// # Errors
/// When there was no server to begin with.
pub(crate) fn soak(
    run: &Run,
    window: usize,
    chaos: &Chaos,
) -> Result<(Report, Option<BenchError>), BenchError> {
    is_built(run.provider)?;
    let cores = Cores::choose(run.cpus)?;
    let environment = Environment::read(std::path::Path::new("/"), cores.client);
    let sizes = run.sizes();
    let bytes = sizes.iter().copied().max().unwrap_or(64);
    let job = Job { bytes, ..Job::new("soak", Goal::Rate, window) };
    let plan = Plan { layer: Layer::Rpc, verify: true, ..plan(run, cores, &job) };
    pin_to(cores.client)?;
    let mut tally = Tally::new(sizes, *chaos)?;
    let ended = sessions(run, &plan, &mut tally).err();
    if tally.soaked.verified == 0
        && let Some(why) = ended
    {
        return Err(why);
    }
    let took = Stamp::now().since(tally.first);
    tally.soaked.seconds = took.as_secs_f64();
    let (parts, mut all) = tally.parts()?;
    all.busy(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    let report = Report::of(run, &job, &plan, &all, environment);
    let (soak, is_complete) = (Some(tally.soaked), ended.is_none());
    Ok((Report { parts, soak, is_complete, ..report }, ended))
}

/// One connection after the other, until the time is over.
fn sessions(run: &Run, plan: &Plan, tally: &mut Tally) -> Result<(), BenchError> {
    let ring_bytes = run.ring_for(plan.bytes, 256 << 10);
    let mut since = Stamp::now();
    loop {
        let mut loopback = None;
        if run.loopback {
            loopback = Some(Loopback::start(run, plan, ring_bytes, None)?.0);
        }
        let session =
            Session { run, plan, ring_bytes, loopback: loopback.as_mut(), tally: &mut *tally, since };
        match with_provider(run.provider, session) {
            Ok(false) => return loopback.map_or(Ok(()), Loopback::end),
            Ok(true) => since = Stamp::now(),
            // What was never there does not come back, and a wrong answer stays wrong.
            Err(error @ BenchError::Wrong(_)) => return Err(error),
            Err(error) if tally.started == 0 || Stamp::now() >= tally.end => return Err(error),
            Err(error) => tracing::debug!(%error, "no server yet"),
        }
        std::thread::sleep(AGAIN);
        tally.tell(Stamp::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_bodies_of_a_window_are_the_same() {
        let payload = Payload::new(vec![64, 8, 1000]);
        let mut seen = std::collections::HashSet::new();
        for number in 0..3000 {
            let (which, body) = payload.of(number);
            assert_eq!(body.len(), payload.sizes[which]);
            assert!(seen.insert(body.to_vec()), "{number}");
        }
        assert_eq!(payload.of(PLACES).1[..8], payload.of(PLACES * 3).1[..8]);
    }

    #[test]
    fn kills_are_due_until_the_end() {
        let second = Duration::from_secs(1);
        let chaos = Chaos { duration: 3 * second, restart: Some(second), interval: second };
        let mut tally = Tally::new(vec![64], chaos).unwrap();
        let at = |seconds| tally.first.after(second * seconds);
        let (early, first, late) = (tally.first, at(1), at(3));
        assert!(!tally.is_kill_due(early) && tally.is_kill_due(first) && !tally.is_kill_due(first));
        assert!(!tally.is_kill_due(late), "the time is over");
        for fate in [Fate::NotRun, Fate::MaybeRan, Fate::MaybeRan, Fate::Ran] {
            tally.failed(fate);
        }
        let text = tally.soaked.to_string();
        assert!(text.contains("1 kills") && text.contains("4: 1 did not run, 2 may have, 1 did"), "{text}");
    }
}
