//! Workers on threads of their own: spawn, pin, run, stop.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use gimmal_transport::{Instant, Port, Provider, thread};

use super::{
    Duty, Worker, WorkerHandle,
    inbox::{Command, Inbox},
};
use crate::{
    app::App,
    config::Plan,
    error::{ConfigError, StartError},
    inline::Runner,
};

/// How long a stopping worker waits for goodbyes to be answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Poll threads. Dropping them stops them, within a bound.
#[derive(Debug)]
pub struct Workers<P: Provider, A: App> {
    handles: Vec<WorkerHandle<P, A>>,
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
        let make = Arc::new(make);
        let mut workers = Self { handles: Vec::new(), threads: Vec::new() };
        for index in 0..plan.config().workers {
            let (sender, receiver) = mpsc::sync_channel(1);
            let (provider, plan, make) = (provider.clone(), plan.clone(), Arc::clone(&make));
            let run = move || run(&provider, &plan, index, &*make, &sender);
            let thread = thread::spawn(format!("gimmal-{index}"), run)
                .map_err(|error| StartError::Thread(error.to_string()))?;
            workers.threads.push(thread);
            let started =
                receiver.recv().map_err(|_| StartError::Thread("it ended while starting".to_owned()))?;
            workers.handles.push(started?);
        }
        Ok(workers)
    }

    /// The workers, in order.
    #[must_use]
    pub fn handles(&self) -> &[WorkerHandle<P, A>] {
        &self.handles
    }

    /// Says goodbye to every peer and ends the threads. Returns whether all ended within `timeout`; a thread that did
    /// not is left behind.
    pub fn shutdown(mut self, timeout: Duration) -> bool {
        self.stop(timeout)
    }

    fn stop(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        for handle in &self.handles {
            let mut command = Command::Stop;
            while let Err(back) = handle.inbox.push(command) {
                if Instant::now() >= deadline {
                    break;
                }
                command = back;
                std::thread::yield_now();
            }
        }
        let mut all = true;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A panic was reported by the thread's own hook; its connections are closed by its unwinding.
                all &= thread.join().is_ok();
            } else {
                all = false;
            }
        }
        all
    }
}

impl<P: Provider, A: App> Drop for Workers<P, A> {
    fn drop(&mut self) {
        self.stop(STOP_TIMEOUT.saturating_mul(2));
    }
}

type Started<P, A> = mpsc::SyncSender<Result<WorkerHandle<P, A>, StartError>>;

fn run<P: Provider, A: App>(
    provider: &P,
    plan: &Plan,
    index: usize,
    make: &(impl Fn(usize) -> A + ?Sized),
    started: &Started<P, A>,
) {
    let prepared = pin(plan, index).and_then(|()| prepare(provider, plan, make(index)));
    let mut runner = match prepared {
        Ok((runner, handle)) => {
            let _ = started.send(Ok(handle));
            runner
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    while !runner.worker.stopping {
        runner.run_once(Duration::from_millis(100));
    }
    let now = runner.now();
    runner.worker.close_all(now);
    let deadline = now.plus(STOP_TIMEOUT);
    while runner.worker.connections() > 0 && runner.now() < deadline {
        runner.run_once(Duration::from_millis(10));
    }
}

/// A worker and the way to it.
type Prepared<P, A> = (Runner<<P as Provider>::Port, A>, WorkerHandle<P, A>);

/// Opens the port of the calling thread and puts a worker on it.
pub(crate) fn prepare<P: Provider, A: App>(
    provider: &P,
    plan: &Plan,
    app: A,
) -> Result<Prepared<P, A>, StartError> {
    let config = plan.config();
    let port = provider.open_port(&config.port)?;
    let inbox = Arc::new(Inbox::new(config.inbox, port.waker()));
    let duty = Arc::new(Duty::default());
    let handle = WorkerHandle {
        provider: provider.clone(),
        gate: port.gate(),
        inbox: Arc::clone(&inbox),
        duty: Arc::clone(&duty),
        connect: config.connect.clone(),
        handshakes_max: config.handshakes_max,
        accepted_max: config.accepted_max,
    };
    Ok((Runner::new(Worker::new(port, app, plan, inbox, duty), config.idle), handle))
}

/// Pins the calling thread to its core of the plan and reads back that it worked.
fn pin(plan: &Plan, index: usize) -> Result<(), StartError> {
    match plan.config().cores.get(index) {
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
