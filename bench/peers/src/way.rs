//! Each way's server as a process of its own, and a slice of its calls.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use gimmal::Instant;
use gimmal_bench::against::{iperf3::Iperf3, ucx_echo::UcxEcho};
use gimmal_engine::worker::thread::pin_to;

use crate::{
    case::{BLOCK, BYTES, Case, Cores, Idling, Way},
    copies, exchange, grpc, iox,
    measure::{Job, Pins, Times, many_threads, runtime},
    ours,
    place::{Over, Place},
    post::Post,
    rpc, streams,
};

/// For a server to come.
const COME: Duration = Duration::from_secs(10);

/// What the process of a server is told.
#[derive(clap::Args, Debug)]
pub(crate) struct Serve {
    way: Way,
    path: PathBuf,
    core: usize,
    over: Over,
    idling: Idling,
}

/// A process of this program; ends with this.
struct Server(Child);

impl Server {
    fn spawn(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        child.map(Self).context("starting a process")
    }

    fn start(case: Case, place: &Place, core: usize) -> Result<Self> {
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        let named =
            [case.way.to_possible_value(), place.over.to_possible_value(), case.idling.to_possible_value()];
        let [Some(way), Some(over), Some(idling)] = named.map(name) else { bail!("every value has a name") };
        let path = place.path().to_str().context("the folder's name is no text")?;
        let server = Self::spawn(&["serve", &way, path, &core.to_string(), &over, &idling])?;
        let deadline = Instant::now() + COME;
        while !place.is_there() {
            ensure!(Instant::now() < deadline, "{}: its server did not come", case.name());
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

/// Programs of others that start both of their processes by themselves: calls in a second, of a case and a number of calls.
pub(crate) type Program = Box<dyn FnMut(Case, u64) -> Result<f64>>;

/// The program of a way that has one, or why it cannot take part.
pub(crate) fn program(way: Way, pins: Pins) -> Option<Result<Program, String>> {
    match way {
        Way::Ucx => Some(
            UcxEcho::for_cores(BYTES, pins.client, pins.server)
                .map(|mut ucx| -> Program { Box::new(move |case, calls| Ok(ucx.rate(case.window, calls)?)) }),
        ),
        Way::Iperf3 => Some(Iperf3::for_cores(pins.client, pins.server).map(|iperf3| -> Program {
            Box::new(move |_, calls| Ok(iperf3.bytes_per_second(calls * BLOCK as u64)? / BLOCK as f64))
        })),
        _ => None,
    }
}

/// One slice.
pub(crate) fn slice(case: Case, over: Over, pins: Pins, calls: usize) -> Result<Times> {
    let folder = tempfile::tempdir()?;
    let place = Place::new(folder.path().join("echo"), over);
    let server = Server::start(case, &place, pins.server)?;
    let job = Job { case, calls: case.calls(calls), pins, place, server: server.0.id() };
    let busy = if case.cores == Cores::Busy { vec![pins.client, pins.server] } else { vec![] };
    let busy: Result<Vec<Server>> =
        busy.into_iter().map(|core| Server::spawn(&["burn", &core.to_string()])).collect();
    let _busy = busy?;
    // On a thread of its own, which is pinned with all that it starts.
    let measure = || {
        pin_to(pins.client)?;
        call(&job)
    };
    let times = std::thread::scope(|scope| scope.spawn(measure).join());
    times.map_err(|_| anyhow!("{}: its client panicked", case.name()))?.with_context(|| case.name())
}

fn call(job: &Job) -> Result<Times> {
    match job.case.way {
        Way::Engine => ours::messages(job),
        Way::Inline => ours::inline_calls(job),
        Way::Flat => ours::flat_calls(job),
        Way::Vectors => ours::inline_vectors(job),
        Way::Polled => ours::polled_calls(job),
        Way::Driven | Way::Tokio => ours::driven_calls(job),
        Way::Handoff => ours::handed_off_calls(&runtime()?, job),
        Way::Threads => ours::handed_off_calls(&many_threads()?, job),
        Way::Blocking => ours::blocking_calls(job),
        Way::Exchange => exchange::run(job),
        Way::Tarpc | Way::TarpcStreams => rpc::call(&runtime()?, job),
        Way::TarpcThreads => rpc::call(&many_threads()?, job),
        Way::Tonic | Way::TonicStreams => runtime()?.block_on(grpc::call(job)),
        Way::TonicLocalStreams => grpc::call_over_local_stream(job),
        Way::TonicChannel => runtime()?.block_on(grpc::call_by_channel(job)),
        Way::TonicDriven => grpc::call_driven(job),
        Way::TonicAlone => grpc::call_alone(job),
        Way::Iceoryx2 => iox::call(job),
        Way::StreamChunks | Way::StreamBlocks | Way::SocketBlocks | Way::StreamEchoes | Way::SocketEchoes => {
            runtime()?.block_on(streams::call(job))
        }
        Way::StreamLocalChunks | Way::StreamLocalBlocks | Way::StreamLocalEchoes => streams::call_local(job),
        Way::Copies => copies::run(job),
        Way::Ucx | Way::Iperf3 => bail!("its processes are programs of their own"),
    }
}

/// Takes all of a core until the parent process ends.
pub(crate) fn burn(core: usize) -> Result<()> {
    let post = Post::new(Place::new(PathBuf::new(), Over::Shm), Idling::Spinning);
    pin_to(core)?;
    while !post.is_over() {
        std::hint::spin_loop();
    }
    Ok(())
}

/// The other side, until the parent process ends.
pub(crate) fn serve(serve: Serve) -> Result<()> {
    let Serve { way, path, core, over, idling } = serve;
    let post = Post::new(Place::new(path, over), idling);
    pin_to(core)?;
    match way {
        Way::Engine => {
            let place = post.place.path().to_owned();
            // It serves for ever; the one that started it is all it has.
            std::thread::spawn(move || {
                post.wait();
                std::process::exit(0);
            });
            ours::serve_messages(&place)
        }
        Way::Inline | Way::Flat | Way::Vectors | Way::Polled | Way::Driven | Way::Handoff | Way::Blocking => {
            ours::serve(&post)
        }
        Way::Tokio => runtime()?.block_on(ours::serve_on_one_thread(&post)),
        Way::Threads => ours::serve_in_runtime(&post),
        Way::Exchange | Way::Copies => exchange::serve(&post),
        Way::Tarpc | Way::TarpcStreams => rpc::serve(&runtime()?, way, &post),
        Way::TarpcThreads => rpc::serve(&many_threads()?, way, &post),
        Way::Tonic | Way::TonicStreams | Way::TonicLocalStreams => {
            runtime()?.block_on(grpc::serve(way, &post))
        }
        Way::TonicChannel | Way::TonicDriven | Way::TonicAlone => {
            runtime()?.block_on(grpc::serve_over_gimmal(&post))
        }
        Way::Iceoryx2 => iox::serve(&post),
        Way::StreamChunks | Way::StreamBlocks | Way::SocketBlocks | Way::StreamEchoes | Way::SocketEchoes => {
            runtime()?.block_on(streams::serve(way, &post))
        }
        Way::StreamLocalChunks | Way::StreamLocalBlocks | Way::StreamLocalEchoes => {
            runtime()?.block_on(streams::serve(way, &post))
        }
        Way::Ucx | Way::Iperf3 => bail!("its processes are programs of their own"),
    }
}
