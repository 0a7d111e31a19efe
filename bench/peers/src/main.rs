//! 64-byte echoes of tarpc and tonic over a unix socket and of iceoryx2's request-response, beside gimmal's.
//!
//! ```text
//!  round 1: gimmal, tarpc, tonic, iceoryx2     round 2: gimmal, tarpc, …     each: server started, warmed up, measured, ended
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

/// Of one echo, each way.
pub(crate) const BYTES: usize = 64;
/// For a server to come.
const COME: Duration = Duration::from_secs(10);
/// Whom gimmal is compared with.
const PEERS: [&str; 3] = ["tarpc", "tonic", "iceoryx2"];

/// Round trips of one slice.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    /// One more.
    pub(crate) fn record(&mut self, start: Instant) {
        self.0.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// The middle one, nanoseconds.
    fn median(mut self) -> Result<f64> {
        self.0.sort_unstable();
        let middle = self.0.get(self.0.len() / 2).context("nothing was measured")?;
        Ok(f64::from(u32::try_from(*middle)?))
    }
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

/// One peer's median round trip, nanoseconds.
fn slice(peer: &str, calls: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("echo");
    let _server = Server::start(peer, &place)?;
    // On a thread of its own, which is pinned: gimmal's bench, started from here, chooses its cores itself.
    let measure = || {
        pin(0);
        match peer {
            "tarpc" => rpc::call(&place, calls),
            "tonic" => grpc::call(&place, calls),
            _ => iox::call(&place, calls),
        }
    };
    let times = std::thread::scope(|scope| scope.spawn(measure).join());
    times.map_err(|_| anyhow!("{peer}: its client panicked"))?.with_context(|| peer.to_owned())?.median()
}

/// gimmal's, of a raw method over shared memory.
fn gimmal(program: &str, calls: usize) -> Result<f64> {
    let output = Command::new(program)
        .args(["lat", "--layer", "rpc", "--loopback", "--json", "--pairs", "1", "-s", "64", "-n"])
        .arg(calls.to_string())
        .stderr(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program} ended with {}", output.status);
    let record: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    record["p50_ns"].as_f64().context("no p50_ns in its record")
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn compare(program: &str, calls: usize, rounds: usize) -> Result<()> {
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); PEERS.len()];
    for _ in 0..rounds {
        ours.push(gimmal(program, calls)?);
        for (peer, values) in PEERS.iter().zip(&mut theirs) {
            values.push(slice(peer, calls)?);
        }
    }
    println!(
        "{BYTES} B echo, one at a time, two processes; RTT p50, median of {rounds} rounds; ratios of pairs"
    );
    println!("{:<34} {:>10}", "who", "RTT");
    println!("{:<34} {:>7.0} ns", "gimmal, raw method, shm, inline", median(ours.clone()).unwrap_or(0.0));
    for (peer, values) in PEERS.iter().zip(theirs) {
        let ratio = median(ours.iter().zip(&values).map(|(ours, theirs)| ours / theirs).collect());
        let how = if *peer == "iceoryx2" { "request-response, polled" } else { "unix socket" };
        let rtt = median(values).unwrap_or(0.0);
        println!("{:<34} {rtt:>7.0} ns   gimmal is {:.3} x", format!("{peer}, {how}"), ratio.unwrap_or(0.0));
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
    compare(program, calls, rounds)
}
