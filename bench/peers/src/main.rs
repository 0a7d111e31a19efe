//! 64-byte echoes of tarpc and tonic over a unix socket and of iceoryx2's request-response, beside gimmal's typed calls,
//! one at a time and 32 at once.
//!
//! ```text
//!  round 1: gimmal inline, handed off, tarpc, tonic, iceoryx2     round 2: the same …
//!  each: server started, warmed up, measured, ended
//! ```
//! Usage: `gimmal-bench-peers [PATH OF gimmal-bench] [CALLS] [ROUNDS]`.

#![forbid(unsafe_code)]

mod grpc;
mod iox;
mod rpc;

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::StreamExt as _;

/// Of one echo, each way.
pub(crate) const BYTES: usize = 64;
/// For a server to come.
const COME: Duration = Duration::from_secs(10);
/// Whom gimmal is compared with.
const PEERS: [&str; 3] = ["tarpc", "tonic", "iceoryx2"];
/// Ways into gimmal.
const MODES: [&str; 2] = ["inline", "handoff"];
/// Calls at once.
const WINDOWS: [usize; 2] = [1, 32];

/// Round trips of one slice, and how long all of them took.
#[derive(Debug, Default)]
pub(crate) struct Times {
    nanos: Vec<u64>,
    whole: Duration,
}

impl Times {
    /// One more.
    pub(crate) fn record(&mut self, start: Instant) {
        self.nanos.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// All are done, since `first`.
    pub(crate) fn finish(&mut self, first: Instant) {
        self.whole = first.elapsed();
    }

    /// The middle one, nanoseconds.
    fn median(mut self) -> Result<f64> {
        self.nanos.sort_unstable();
        let middle = self.nanos.get(self.nanos.len() / 2).context("nothing was measured")?;
        Ok(f64::from(u32::try_from(*middle)?))
    }

    /// Calls in a second.
    fn per_second(self) -> Result<f64> {
        ensure!(!self.whole.is_zero(), "nothing was measured");
        Ok(f64::from(u32::try_from(self.nanos.len())?) / self.whole.as_secs_f64())
    }
}

/// `calls` of what `call` makes, after a tenth of that to warm up; never more than `window` of them at once.
pub(crate) async fn windowed<F: Future<Output = Result<()>>>(
    calls: usize,
    window: usize,
    call: impl Fn() -> F,
) -> Result<Times> {
    let timed = || async {
        let start = Instant::now();
        call().await.map(|()| start)
    };
    let run = |count: usize| futures::stream::iter(0..count).map(|_| timed()).buffer_unordered(window);
    let mut warm = std::pin::pin!(run(calls / 10));
    while let Some(done) = warm.next().await {
        done?;
    }
    let mut times = Times::default();
    let first = Instant::now();
    let mut measured = std::pin::pin!(run(calls));
    while let Some(done) = measured.next().await {
        times.record(done?);
    }
    times.finish(first);
    Ok(times)
}

/// Set when whoever started this process is gone.
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

fn pin(which: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(which.min(cores.len().saturating_sub(1))) {
        core_affinity::set_for_current(*core);
    }
}

/// A server of one peer; ends with this.
struct Server(Child);

impl Server {
    fn start(peer: &str, place: &Path) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["serve", peer])
            .arg(place)
            .stdin(Stdio::piped())
            .spawn()
            .context("starting a server")?;
        let server = Self(child);
        let deadline = Instant::now() + COME;
        while !place.exists() {
            ensure!(Instant::now() < deadline, "{peer}: its server did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(2);
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

/// One peer's median round trip, nanoseconds; with a window its calls per second.
fn slice(peer: &str, calls: usize, window: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("echo");
    let _server = Server::start(peer, &place)?;
    // On a thread of its own, which is pinned: gimmal's bench, started from here, chooses its cores itself.
    let measure = || {
        pin(0);
        match peer {
            "tarpc" => rpc::call(&place, calls, window),
            "tonic" => grpc::call(&place, calls, window),
            _ => iox::call(&place, calls),
        }
    };
    let times = std::thread::scope(|scope| scope.spawn(measure).join());
    let times =
        times.map_err(|_| anyhow!("{peer}: its client panicked"))?.with_context(|| peer.to_owned())?;
    if window == 1 { times.median() } else { times.per_second() }
}

/// gimmal's, of a typed method over shared memory.
fn gimmal(program: &str, mode: &str, calls: usize, window: usize) -> Result<f64> {
    let test: &[&str] = if window == 1 { &["lat"] } else { &["rate", "-O", "32"] };
    let output = Command::new(program)
        .args(test)
        .args(["--layer", "typed", "--mode", mode, "--loopback", "--json", "--pairs", "1", "-s", "64", "-n"])
        .arg(calls.to_string())
        .stderr(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program} ended with {}", output.status);
    let record: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let key = if window == 1 { "p50_ns" } else { "calls_per_s" };
    record[key].as_f64().with_context(|| format!("no {key} in its record"))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// All of one window, in turns.
fn compare(program: &str, calls: usize, rounds: usize, window: usize) -> Result<()> {
    // iceoryx2's clients have one request under way each.
    let peers: Vec<&str> = PEERS.into_iter().filter(|peer| window == 1 || *peer != "iceoryx2").collect();
    let mut ours = vec![Vec::new(); MODES.len()];
    let mut theirs = vec![Vec::new(); peers.len()];
    for _ in 0..rounds {
        for (mode, values) in MODES.iter().zip(&mut ours) {
            values.push(gimmal(program, mode, calls, window)?);
        }
        for (peer, values) in peers.iter().zip(&mut theirs) {
            values.push(slice(peer, calls, window)?);
        }
    }
    let (what, unit) = if window == 1 { ("RTT p50", "ns") } else { ("calls", "per s") };
    println!("{BYTES} B echo, {window} at a time, two processes; {what}, median of {rounds} rounds in turns");
    for (mode, values) in MODES.iter().zip(&ours) {
        let value = median(values.clone()).unwrap_or(0.0);
        println!("{:<34} {value:>9.0} {unit}", format!("gimmal, typed, shm, {mode}"));
    }
    for (peer, values) in peers.iter().zip(&theirs) {
        let how = if *peer == "iceoryx2" { "request-response, polled" } else { "unix socket" };
        let value = median(values.clone()).unwrap_or(0.0);
        print!("{:<34} {value:>9.0} {unit}", format!("{peer}, {how}"));
        for (mode, ours) in MODES.iter().zip(&ours) {
            let mut ratios: Vec<f64> = ours.iter().zip(values).map(|(ours, theirs)| ours / theirs).collect();
            ratios.sort_by(f64::total_cmp);
            let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
            let middle = median(ratios).unwrap_or(0.0);
            print!("   {mode} is {middle:.3} x ({low:.3} to {high:.3})");
        }
        println!();
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, peer, place] = &*arguments
        && command == "serve"
    {
        pin(1);
        let (place, stop) = (Path::new(place), stop_flag());
        return match &**peer {
            "tarpc" => rpc::serve(place, &stop),
            "tonic" => grpc::serve(place, &stop),
            "iceoryx2" => iox::serve(place, &stop),
            other => bail!("no such peer: {other}"),
        };
    }
    let program = arguments.first().map_or("target/release/gimmal-bench", String::as_str);
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (calls, rounds) = (number(1, 20_000)?, number(2, 7)?);
    if !Path::new(program).is_file() {
        bail!(
            "{program} is not there: cargo build --release -p gimmal-bench, or name it as the first argument"
        );
    }
    ensure!(rounds > 0, "no rounds");
    WINDOWS.iter().try_for_each(|window| compare(program, calls, rounds, *window))
}
