//! Workers on threads of their own: spawn, pin, run, stop.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use gimmal_transport::{Instant, Port, Provider, Wait, thread};

use super::{Duty, Station, Worker, WorkerHandle, contained, inbox::Inbox, runner::Runner};
#[cfg(doc)]
use crate::transport::CloseReason;
use crate::{
    app::App,
    config::Plan,
    error::{ConfigError, StartError},
    place::cores_are_few,
};

/// How long a stopping worker waits for goodbyes to be answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// From a panic to the successor: the first wait, doubled for each next one up to the last, and begun anew behind a worker
/// that lived so long.
const SUCCESSION: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const CALM: Duration = Duration::from_secs(10);

/// Poll threads. Dropping them stops them, within a bound.
///
/// A panic on a worker ends its connections, with [`CloseReason::WorkerPanicked`]; a fresh worker takes its place on the same
/// thread, found by the [`Station`].
#[derive(Debug)]
pub struct Workers<P: Provider, A: App> {
    stations: Vec<Station<P, A>>,
    threads: Vec<JoinHandle<()>>,
}

impl<P: Provider, A: App> Workers<P, A> {
    /// Starts `plan.workers` threads; `make` builds the application of each, on its thread.
    ///
    /// # Errors
    /// The first thread that could not start; those before it are stopped.
    pub fn spawn(
        provider: &P,
        plan: &Plan,
        make: impl Fn(usize) -> A + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        Self::spawn_with(provider, plan, |run| run(), move |index, _| make(index))
    }

    /// Starts `plan.workers` threads. `within` calls the function that it is given, which is all of a thread's work. `make`
    /// builds the application of each, on its thread, and knows the way to it.
    ///
    /// # Errors
    /// The first thread that could not start; those before it are stopped.
    pub fn spawn_with(
        provider: &P,
        plan: &Plan,
        within: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static,
        make: impl Fn(usize, &WorkerHandle<P, A>) -> A + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let (within, make) = (Arc::new(within), Arc::new(make));
        let mut workers = Self { stations: Vec::new(), threads: Vec::new() };
        for index in 0..plan.config().workers {
            let (sender, receiver) = mpsc::sync_channel(1);
            let (provider, plan) = (provider.clone(), plan.clone());
            let (within, make) = (Arc::clone(&within), Arc::clone(&make));
            let run = move || {
                let prepare = || prepare(&provider, &plan, |way| make(index, way));
                within(&mut || run(&prepare, &plan, index, &sender));
            };
            let thread = thread::spawn(format!("gimmal-{index}"), run)
                .map_err(|error| StartError::Thread(error.to_string()))?;
            workers.threads.push(thread);
            let started =
                receiver.recv().map_err(|_| StartError::Thread("it ended while starting".to_owned()))?;
            workers.stations.push(started?);
        }
        Ok(workers)
    }

    /// Where the workers are found, in order.
    #[must_use]
    pub fn stations(&self) -> &[Station<P, A>] {
        &self.stations
    }

    /// The workers that are there now, in order.
    #[must_use]
    pub fn handles(&self) -> Vec<WorkerHandle<P, A>> {
        self.stations.iter().map(Station::handle).collect()
    }

    /// Says goodbye to every peer and ends the threads. Returns whether all ended within `timeout`; a thread that did
    /// not is left behind.
    pub fn shutdown(mut self, timeout: Duration) -> bool {
        self.stop(timeout)
    }

    fn stop(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.stations.iter().for_each(Station::stop);
        let mut all = true;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            // One that is not finished is left behind.
            all &= thread.is_finished() && thread.join().is_ok();
        }
        all
    }
}

impl<P: Provider, A: App> Drop for Workers<P, A> {
    fn drop(&mut self) {
        // A worker's thread waits for nobody: it may be one of these, or the peer whose answer they wait for.
        self.stop(if IS_WORKER.get() { Duration::ZERO } else { STOP_TIMEOUT.saturating_mul(2) });
    }
}

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

type Started<P, A> = mpsc::SyncSender<Result<Station<P, A>, StartError>>;

/// A worker's thread: one worker, and after each that panicked the next.
fn run<P: Provider, A: App>(
    prepare: &impl Fn() -> Result<Prepared<P, A>, StartError>,
    plan: &Plan,
    index: usize,
    started: &Started<P, A>,
) {
    IS_WORKER.set(true);
    let (station, mut runner) = match pin(plan, index).and_then(|()| prepare()) {
        Ok((runner, handle)) => (Station::from(handle), runner),
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(station.clone()));
    let shares_core = plan.cores().is_empty() && cores_are_few();
    let mut pause = SUCCESSION.0;
    loop {
        let began = Instant::now();
        if shares_core {
            runner.shares_core();
        }
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| serve(&mut runner, &station))) else { return };
        let words = words_of(&*panic);
        tracing::error!(
            worker = index,
            words,
            "a worker panicked: its connections end, and another takes its place"
        );
        station.note_panic(words);
        let now = runner.now();
        runner.worker.abandon(words, now);
        contained(move || drop(runner));
        if began.elapsed() > CALM {
            pause = SUCCESSION.0;
        }
        let Some(next) = successor(&station, prepare, &mut pause) else { return };
        runner = next;
    }
}

/// The next worker, as soon as there can be one; `None` when none is wanted any more.
fn successor<P: Provider, A: App>(
    station: &Station<P, A>,
    prepare: &impl Fn() -> Result<Prepared<P, A>, StartError>,
    pause: &mut Duration,
) -> Option<Runner<P::Port, A>> {
    while !station.is_stopping() {
        std::thread::sleep(*pause);
        *pause = pause.saturating_mul(2).min(SUCCESSION.1);
        match prepare() {
            Ok((runner, handle)) => {
                station.succeed(handle);
                return Some(runner);
            }
            Err(error) => tracing::warn!(%error, "no other worker yet"),
        }
    }
    None
}

/// What a panic says.
fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it has no words")
}

/// Turns until somebody stops it, then says goodbye.
fn serve<P: Provider, A: App>(runner: &mut Runner<P::Port, A>, station: &Station<P, A>) {
    while !station.is_stopping() {
        runner.run_once(Duration::from_millis(100));
    }
    runner.take_commands();
    let deadline = runner.close_all(STOP_TIMEOUT);
    while runner.worker.connections() > 0 && runner.now() < deadline {
        runner.run_once(Duration::from_millis(10));
    }
}

/// A worker and the way to it.
type Prepared<P, A> = (Runner<<P as Provider>::Port, A>, WorkerHandle<P, A>);

/// Opens the port of the calling thread and puts a worker on it, with the application that `make` builds.
pub(crate) fn prepare<P: Provider, A: App>(
    provider: &P,
    plan: &Plan,
    make: impl FnOnce(&WorkerHandle<P, A>) -> A,
) -> Result<Prepared<P, A>, StartError> {
    let config = plan.config();
    let port = provider.open_port(&config.port)?;
    let inbox = Arc::new(Inbox::new(config.inbox, port.waker(), A::refused));
    let duty = Arc::new(Duty::default());
    let handle = WorkerHandle {
        provider: provider.clone(),
        gate: port.gate(),
        inbox: Arc::clone(&inbox),
        duty: Arc::clone(&duty),
        connect: Arc::new(config.connect.clone()),
        handshakes_max: config.handshakes_max,
        accepted_max: config.accepted_max,
        connections: config.port.connections as usize,
    };
    let app = make(&handle);
    Ok((Runner::new(Worker::new(port, app, plan, inbox, duty), config.idle), handle))
}

/// Pins the calling thread to its core of the plan and reads back that it worked.
fn pin(plan: &Plan, index: usize) -> Result<(), StartError> {
    match plan.cores().get(index) {
        None => Ok(()),
        Some(&core) => pin_to(core).map_err(StartError::Config),
    }
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// [`ConfigError::Core`] when the kernel does not let us run there.
pub fn pin_to(core: usize) -> Result<(), ConfigError> {
    let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: core });
    let set = rustix::thread::sched_getaffinity(None);
    match set {
        Ok(set) if pinned && set.is_set(core) && set.count() == 1 => Ok(()),
        _ => Err(ConfigError::Core { core, why: "it is offline, or outside this process's cpu set" }),
    }
}
