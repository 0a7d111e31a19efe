//! Connections: how long one takes, step by step; and what many of them cost.

use std::time::Duration;

use gimmal_engine::{
    SendError,
    transport::{Address, ConnectOptions, Connecting as _, Provider},
    worker::thread::pin_to,
};

use crate::{
    against::Goal,
    args::{Cores, Run},
    clock::Stamp,
    environment::{Environment, raise_descriptors},
    error::BenchError,
    floors::Phase,
    inline::{Caller, InlineTarget, fill},
    plan::{ECHO, Plan, head},
    provider::{With, is_built, with_provider},
    record::Part,
    recorder::Recorder,
    report::Report,
    session::{Job, Loopback, blamed, plan, server_address},
    target::Target as _,
};

/// What one connection goes through, as the client sees it.
const STEPS: [&str; 4] =
    ["link: addresses, request, accept", "open: rings granted", "first echo", "goodbye and close"];

/// What tests of parts need.
pub(crate) struct Stage {
    pub(crate) loopback: Option<Loopback>,
    pub(crate) address: Address,
    pub(crate) plan: Plan,
    job: Job,
    environment: Environment,
    pub(crate) ring_bytes: u32,
}

impl Stage {
    pub(crate) fn set(run: &Run, test: &'static str, ring_bytes: u32) -> Result<Self, BenchError> {
        is_built(run.provider)?;
        raise_descriptors();
        let cores = Cores::choose(run.cpus)?;
        let environment = Environment::read(std::path::Path::new("/"), cores.client);
        let bytes = run.size.0.first().copied().unwrap_or(64);
        let job = Job { bytes, ..Job::new(test, Goal::Latency, 1) };
        let plan = Plan { keeps_accepting: true, ..plan(run, cores, &job) };
        let ring_bytes = run.ring_for(bytes, ring_bytes);
        let mut loopback = None;
        if run.loopback {
            loopback = Some(Loopback::start(run, &plan, ring_bytes, None)?.0);
        }
        let address = server_address(run, loopback.as_ref())?;
        pin_to(cores.client)?;
        Ok(Self { loopback, address, plan, job, environment, ring_bytes })
    }

    pub(crate) fn announce(&mut self, phase: Phase) -> Result<(), BenchError> {
        self.loopback.as_mut().map_or(Ok(()), |loopback| loopback.floors.announce(phase))
    }

    /// What was measured, and why no more; the error alone when it was nothing.
    pub(crate) fn report(
        &mut self,
        run: &Run,
        parts: Vec<Part>,
        all: &Recorder,
        done: Result<(), BenchError>,
    ) -> Result<(Report, Option<BenchError>), BenchError> {
        let report = Report::of(run, &self.job, &self.plan, all, self.environment.clone());
        match done {
            Ok(()) => {
                self.loopback.take().map_or(Ok(()), Loopback::end)?;
                Ok((Report { parts, ..report }, None))
            }
            Err(why) => {
                let why = blamed(self.loopback.as_ref(), why);
                if all.count() == 0 {
                    return Err(why);
                }
                Ok((Report { parts, is_complete: false, ..report }, Some(why)))
            }
        }
    }
}

/// Makes and ends `count` connections, one after the other.
struct Connect<'a> {
    stage: &'a Stage,
    count: u64,
    made: &'a mut Connected,
}

/// Times of the steps, and of all of them together.
struct Connected {
    steps: Vec<Recorder>,
    all: Recorder,
}

impl With for Connect<'_> {
    type Output = ();

    fn with<P: Provider>(self, provider: P) -> Result<(), BenchError> {
        let Self { stage: Stage { address, plan, ring_bytes, .. }, count, made } = self;
        // The plan is told last: until then the server waits for connections.
        let mut target = InlineTarget::connect_beside(&provider, address, plan, *ring_bytes)?;
        for _ in 0..count {
            let stamps = once(&provider, &mut target, address)?;
            for (step, recorder) in made.steps.iter_mut().enumerate() {
                recorder.record(stamps[step + 1].nanos_since(stamps[step]));
            }
            let took = stamps[STEPS.len()].nanos_since(stamps[0]);
            made.all.record(took);
            made.all.busy(took);
        }
        Box::new(target).close();
        Ok(())
    }
}

/// One connection, from nothing to nothing; when each step began, and the last ended.
fn once<P: Provider>(
    provider: &P,
    target: &mut InlineTarget<P>,
    address: &Address,
) -> Result<[Stamp; 5], BenchError> {
    let mut stamps = [Stamp::now(); 5];
    let gate = target.inline.handle().gate().clone();
    target.inline.app_mut().opened = None;
    target.inline.app_mut().closed = None;
    let mut connecting = provider.connect(address, &gate, &ConnectOptions::default())?;
    let link = loop {
        if let Some(link) = connecting.poll(Duration::from_micros(50)) {
            break link?;
        }
        target.inline.turn();
    };
    stamps[1] = Stamp::now();
    target.inline.adopt(link);
    target.turns(|app| app.opened.is_some() || app.closed.is_some(), "opening a connection")?;
    stamps[2] = Stamp::now();
    let conn =
        target.inline.app().opened.ok_or(BenchError::Wrong("a connection closed instead of opening"))?;
    let sent = target.inline.app().answered;
    target.send_on(conn)?;
    target.turns(|app| app.answered > sent, "waiting for the first echo")?;
    stamps[3] = Stamp::now();
    target.inline.with(|_, io| io.close(conn));
    while target.inline.app().closed.is_none() {
        if Stamp::now().since(stamps[3]) > crate::clock::PATIENCE {
            return Err(BenchError::stalled("closing a connection"));
        }
        target.inline.turn();
    }
    target.inline.app_mut().closed = None;
    stamps[4] = Stamp::now();
    Ok(stamps)
}

/// Connections per second, and the time of every step. Beside the report the reason when it broke off.
///
/// # Errors
/// When nothing was measured.
pub(crate) fn connections(run: &Run) -> Result<(Report, Option<BenchError>), BenchError> {
    let mut stage = Stage::set(run, "conn", 64 << 10)?;
    let mut made = Connected {
        steps: STEPS.iter().map(|_| Recorder::new()).collect::<Result<_, _>>()?,
        all: Recorder::new()?,
    };
    let done = with_provider(run.provider, Connect { stage: &stage, count: run.count, made: &mut made });
    let steps = STEPS.iter().zip(&made.steps);
    let parts = steps.enumerate().map(|(at, (name, recorder))| {
        let at = u32::try_from(at).map_or(0.0, f64::from);
        Part::of((*name).to_owned(), at, recorder, 0.0)
    });
    let parts = parts.collect();
    stage.report(run, parts, &made.all, done)
}

/// Grows the number of connections and calls on one of them, then on all.
struct Grow<'a> {
    stage: &'a mut Stage,
    numbers: &'a [usize],
    count: u64,
    parts: &'a mut Vec<Part>,
    /// Of the last number, one active.
    one: &'a mut Recorder,
}

impl With for Grow<'_> {
    type Output = ();

    #[expect(clippy::cast_precision_loss, reason = "numbers of connections")]
    fn with<P: Provider>(self, provider: P) -> Result<(), BenchError> {
        let Self { stage, numbers, count, parts, one } = self;
        let (address, ring_bytes) = (stage.address.clone(), stage.ring_bytes);
        let mut target = InlineTarget::connect(&provider, &address, &stage.plan, ring_bytes)?;
        let mut conns = vec![target.conn];
        let server = stage.loopback.as_ref().map(|loopback| loopback.server.id());
        let all_before = memory_kib(server);
        for number in numbers {
            stage.announce(Phase::Idle)?;
            while conns.len() < *number {
                let connected = target.inline.connect(&address);
                let (conn, _) =
                    connected.map_err(|why| BenchError::NoServer { address: address.to_string(), why })?;
                conns.push(conn);
            }
            stage.announce(Phase::Test)?;
            target.conn = *conns.last().unwrap_or(&target.conn);
            target.run((count / 10).clamp(1, 20_000), &mut Recorder::new()?)?;
            one.reset();
            target.run(count, one)?;
            let mut active =
                Part::of(format!("{number} connections, 1 active"), *number as f64, one, one.per_second());
            let grown = memory_kib(server).saturating_sub(all_before);
            let others = (*number as u64).saturating_sub(1).max(1);
            active.note = (*number > 1).then(|| format!("{} KiB a connection, both ends", grown / others));
            parts.push(active);
            let mut all = Recorder::new()?;
            target.on_all(&conns, count.div_ceil(*number as u64), &mut all)?;
            parts.push(Part::of(
                format!("{number} connections, all active"),
                *number as f64,
                &all,
                all.per_second(),
            ));
        }
        stage.announce(Phase::Idle)?;
        Box::new(target).close();
        Ok(())
    }
}

/// What both processes hold in memory, shared pages by halves, KiB; the kernel's own share is not in it.
fn memory_kib(server: Option<u32>) -> u64 {
    let of = |process: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("Pss:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let theirs: u64 = server.map_or(0, |id| of(&id.to_string()));
    of("self") + theirs
}

/// What a call costs beside `numbers` of connections, and what a connection costs. Beside the report the reason when
/// it broke off.
///
/// # Errors
/// When nothing was measured.
pub(crate) fn scale(run: &Run, numbers: &[usize]) -> Result<(Report, Option<BenchError>), BenchError> {
    let mut stage = Stage::set(run, "scale", 16 << 10)?;
    let (mut parts, mut one) = (Vec::new(), Recorder::new()?);
    let grow = Grow { stage: &mut stage, numbers, count: run.count, parts: &mut parts, one: &mut one };
    let done = with_provider(run.provider, grow);
    stage.report(run, parts, &one, done)
}

impl<P: Provider> InlineTarget<P> {
    /// One echo on `conn`.
    fn send_on(&mut self, conn: gimmal_engine::transport::ConnId) -> Result<(), BenchError> {
        let Self { inline, body, .. } = self;
        let sent = inline.with(|_: &mut Caller, io| io.send(conn, head(ECHO, 0), body.len(), fill(body)));
        sent.map_err(|error| BenchError::Closed(error.to_string()))
    }

    /// `rounds` of one call on each connection at once.
    fn on_all(
        &mut self,
        conns: &[gimmal_engine::transport::ConnId],
        rounds: u64,
        recorder: &mut Recorder,
    ) -> Result<(), BenchError> {
        let first = Stamp::now();
        for _ in 0..rounds {
            let start = Stamp::now();
            self.sent += conns.len() as u64;
            let wanted = self.sent;
            let Self { inline, body, .. } = self;
            let mut next = 0;
            while let Some(conn) = conns.get(next) {
                match inline.with(|_, io| io.send(*conn, head(ECHO, 0), body.len(), fill(body))) {
                    Ok(()) => next += 1,
                    Err(SendError::Blocked) => {
                        inline.turn();
                    }
                    Err(error) => return Err(BenchError::Closed(error.to_string())),
                }
            }
            self.turns(|app| app.answered >= wanted, "waiting for echoes on all connections")?;
            let took = Stamp::now().nanos_since(start);
            conns.iter().for_each(|_| recorder.record(took));
        }
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }
}
