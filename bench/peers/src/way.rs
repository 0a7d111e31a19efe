//! The ways of an echo: each one's server as a process of its own, and a slice of its calls.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use gimmal::Instant;
use gimmal_engine::worker::thread::pin_to;

use crate::{
    exchange, grpc, iox,
    measure::{Pins, Times, many_threads, runtime},
    ours, rpc,
};

/// For a server to come.
const COME: Duration = Duration::from_secs(10);

/// Ways of an echo.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// gimmal's engine.
    Engine,
    /// Typed, inline at both ends.
    Inline,
    /// Typed, inline, by the codec of zerocopy: read in place.
    Flat,
    /// Typed, inline, with an owned vector and an async handler.
    Vectors,
    /// Typed, with an async handler, polled in a loop without a runtime.
    Polled,
    /// Typed, driven by tokio's current thread.
    Driven,
    /// Typed, on tokio's current thread at both ends.
    Tokio,
    /// Typed, handed off and awaited on tokio's current thread.
    Handoff,
    /// Typed, handed off and awaited on a multi-thread runtime; handlers run inside one.
    Threads,
    /// Typed, handed off and waited for.
    Blocking,
    /// Two threads of one process, one of which blocks: what a hand-off costs at least.
    Exchange,
    Tarpc,
    /// tarpc on multi-thread runtimes.
    TarpcThreads,
    Tonic,
    /// tonic's stubs over gimmal's worker.
    TonicChannel,
    /// tonic's stubs over a driven client of gimmal.
    TonicDriven,
    /// tonic's client and server in one process, without a transport: what its code takes.
    TonicAlone,
    Iceoryx2,
    /// Active messages of UCX, by a program in C.
    Ucx,
}

/// Set when the parent process has ended.
fn stop_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    std::thread::spawn(move || {
        // The pipe ends with the parent.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        theirs.store(true, Ordering::Relaxed);
    });
    stop
}

/// A server of one way; ends with this.
struct Server(Child);

impl Server {
    fn start(way: Way, place: &Path, core: usize) -> Result<Self> {
        let name = way.to_possible_value().context("every way has a name")?;
        let child = Command::new(std::env::current_exe()?)
            .args(["serve", name.get_name()])
            .arg(place)
            .arg(core.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting a server")?;
        let server = Self(child);
        let deadline = Instant::now() + COME;
        while !place.exists() {
            ensure!(Instant::now() < deadline, "{way:?}: its server did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + Duration::from_millis(300);
        while Instant::now() < deadline {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One slice of one way, with `window` calls at once.
pub(crate) fn slice(way: Way, pins: Pins, calls: usize, window: usize) -> Result<Times> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("echo");
    let _server = Server::start(way, &place, pins.server)?;
    // On a thread of its own, which is pinned with all that it starts.
    let measure = || {
        pin_to(pins.client)?;
        match way {
            Way::Engine => ours::messages(&place, pins, calls),
            Way::Inline => ours::inline_calls(&place, calls),
            Way::Flat => ours::flat_calls(&place, calls),
            Way::Vectors => ours::inline_vectors(&place, calls),
            Way::Polled => ours::polled_calls(&place, calls, window),
            Way::Driven | Way::Tokio => ours::driven_calls(&place, calls, window),
            Way::Handoff => ours::handed_off_calls(&runtime()?, &place, calls, window),
            Way::Threads => ours::handed_off_calls(&many_threads()?, &place, calls, window),
            Way::Blocking => ours::blocking_calls(&place, calls),
            Way::Exchange => exchange::run(calls),
            Way::Tarpc => rpc::call(&runtime()?, &place, calls, window),
            Way::TarpcThreads => rpc::call(&many_threads()?, &place, calls, window),
            Way::Tonic => grpc::call(&place, calls, window),
            Way::TonicChannel => grpc::call_by_channel(&place, calls, window),
            Way::TonicDriven => grpc::call_driven(&place, calls, window),
            Way::TonicAlone => grpc::call_alone(calls, window),
            Way::Iceoryx2 => iox::call(&place, calls),
            Way::Ucx => bail!("its processes are programs of their own"),
        }
    };
    let times = std::thread::scope(|scope| scope.spawn(measure).join());
    times.map_err(|_| anyhow!("{way:?}: its client panicked"))?.with_context(|| format!("{way:?}"))
}

/// The other side, until the parent process ends.
pub(crate) fn serve(way: Way, place: &Path, core: usize) -> Result<()> {
    let stop = stop_flag();
    pin_to(core)?;
    match way {
        Way::Engine => {
            // It serves for ever; the one that started it is all it has.
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                std::process::exit(0);
            });
            ours::serve_messages(place)
        }
        Way::Inline | Way::Flat | Way::Vectors | Way::Polled => ours::serve(place, true, &stop),
        Way::Driven | Way::Handoff | Way::Blocking => ours::serve(place, false, &stop),
        Way::Tokio => ours::serve_on_one_thread(place, &stop),
        Way::Threads => ours::serve_in_runtime(place, &stop),
        Way::Exchange => exchange::serve(place, &stop),
        Way::Tarpc => rpc::serve(&runtime()?, place, &stop),
        Way::TarpcThreads => rpc::serve(&many_threads()?, place, &stop),
        Way::Tonic => grpc::serve(place, &stop),
        Way::TonicChannel | Way::TonicDriven | Way::TonicAlone => grpc::serve_over_gimmal(place, &stop),
        Way::Iceoryx2 => iox::serve(place, &stop),
        Way::Ucx => bail!("its processes are programs of their own"),
    }
}
