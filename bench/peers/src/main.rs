//! 64-byte echoes of tarpc and tonic over a unix socket and of iceoryx2's request-response, beside gimmal's typed calls
//! and the echo of its engine, one at a time and 32 at once.
//!
//! ```text
//!  round 1: engine, inline, driven, handed off, tarpc, tonic, iceoryx2     round 2: the same …
//!  each: server started on its core, client on the other, warmed up, measured, ended
//! ```
//! `cargo run --release` prints one table and whether the targets are met; `--json` one object.

#![forbid(unsafe_code)]

mod compare;
mod grpc;
mod iox;
mod ours;
mod rpc;

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gimmal::Instant;
use gimmal_bench::{args::Cores, recorder::Recorder};
use gimmal_engine::worker::thread::pin_to;

/// Of one echo, each way.
pub(crate) const BYTES: usize = 64;
/// For a server to come.
const COME: Duration = Duration::from_secs(10);

/// 64-byte echoes between two processes: gimmal over shared memory, its peers beside it.
#[derive(Parser, Debug)]
#[command(version)]
pub(crate) struct Cli {
    /// Calls of one slice.
    #[arg(long, default_value = "20000", value_parser = clap::value_parser!(u32).range(10..))]
    calls: u32,
    /// Slices of each; everybody takes turns.
    #[arg(long, default_value = "7", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// One JSON object in place of the table.
    #[arg(long)]
    json: bool,
    /// Only these; targets that need others are left out.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Way>,
    #[command(subcommand)]
    serve: Option<Serve>,
}

#[derive(Subcommand, Debug)]
enum Serve {
    /// The other side; started by the first.
    #[command(hide = true)]
    Serve { way: Way, place: PathBuf, core: usize },
}

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
    /// Typed, driven by tokio's current thread.
    Driven,
    /// Typed, handed off and awaited on tokio.
    Handoff,
    /// Typed, handed off and waited for.
    Blocking,
    Tarpc,
    Tonic,
    Iceoryx2,
}

/// The two cores that every pair of programs runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pins {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

/// What one slice came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Of the round trips, nanoseconds.
    pub(crate) median_ns: f64,
    /// Calls in a second.
    pub(crate) per_second: f64,
}

impl Times {
    /// Of what was recorded since `first`.
    pub(crate) fn of(recorder: &mut Recorder, first: Instant) -> Result<Self> {
        recorder.busy(u64::try_from(first.elapsed().as_nanos())?);
        ensure!(recorder.count() > 0, "nothing was measured");
        Ok(Self { median_ns: recorder.fine_median_ns(), per_second: recorder.per_second() })
    }
}

/// `calls` of what `call` makes, after a tenth of that to warm up, by `window` callers that make one after the other.
pub(crate) async fn windowed(
    calls: usize,
    window: usize,
    call: impl AsyncFn() -> Result<()>,
) -> Result<Times> {
    let run = async |count: usize| -> Result<Recorder> {
        // One for all: its counts stay in the cache.
        let recorder = RefCell::new(Recorder::new()?);
        let caller = async || -> Result<()> {
            for _ in 0..count / window {
                let start = Instant::now();
                call().await?;
                recorder.borrow_mut().record(u64::try_from(start.elapsed().as_nanos())?);
            }
            Ok(())
        };
        let mut callers: FuturesUnordered<_> = (0..window).map(|_| caller()).collect();
        while let Some(ended) = callers.next().await {
            ended?;
        }
        drop(callers);
        Ok(recorder.into_inner())
    };
    run(calls / 10).await?;
    let first = Instant::now();
    let mut recorder = run(calls).await?;
    Times::of(&mut recorder, first)
}

/// What everybody's asynchronous side runs on.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
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
            Way::Driven => ours::driven_calls(&place, calls, window),
            Way::Handoff => ours::handed_off_calls(&place, calls, window),
            Way::Blocking => ours::blocking_calls(&place, calls),
            Way::Tarpc => rpc::call(&place, calls, window),
            Way::Tonic => grpc::call(&place, calls, window),
            Way::Iceoryx2 => iox::call(&place, calls),
        }
    };
    let times = std::thread::scope(|scope| scope.spawn(measure).join());
    times.map_err(|_| anyhow!("{way:?}: its client panicked"))?.with_context(|| format!("{way:?}"))
}

fn serve(way: Way, place: &Path, core: usize) -> Result<()> {
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
        Way::Inline | Way::Flat | Way::Vectors => ours::serve(place, true, &stop),
        Way::Driven | Way::Handoff | Way::Blocking => ours::serve(place, false, &stop),
        Way::Tarpc => rpc::serve(place, &stop),
        Way::Tonic => grpc::serve(place, &stop),
        Way::Iceoryx2 => iox::serve(place, &stop),
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Serve::Serve { way, place, core }) = &cli.serve {
        return serve(*way, place, *core);
    }
    let cores = Cores::choose(None)?;
    let pins = Pins { client: cores.client, server: cores.server };
    let comparison = compare::run(pins, cli.calls.try_into()?, cli.rounds, &cli.only)?;
    if cli.json {
        println!("{}", comparison.to_json());
    } else {
        print!("{comparison}");
    }
    Ok(())
}
