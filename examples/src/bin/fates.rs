//! What is known of every call when a server dies: a server that is killed in the middle of 100 calls.
//!
//! The server journals each call before it runs it. The client must get an outcome for every call within a bound, no
//! call whose fate is `NotRun` may be in the journal, and both `NotRun` and `MaybeRan` must occur. Afterwards nothing
//! is left behind, and a restarted server is reached at the same address.
//!
//! `fates --address shm://fates`, `fates --address tcp://127.0.0.1:7600` or, in the lab, `fates --address rdma://$GIMMAL_RXE_ADDR:7600 --bound-ms 30000`

#![forbid(unsafe_code)]

use std::{
    collections::HashSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::Parser;
use gimmal::{Client, Config, Cx, Fate, Instant, Server};

const CALLS: u64 = 100;
/// Fewer than the calls, so that some are still in the client when the server dies.
const WINDOW: usize = 32;

/// Kills a server in the middle of 100 calls and checks what the client says of each.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Where: shm://name, tcp://host:port, rdma://host:port.
    #[arg(long)]
    address: String,
    /// Every call must have ended this long after the kill.
    #[arg(long, default_value_t = 1000)]
    bound_ms: u64,
    /// Be the server, and journal here.
    #[arg(long, hide = true)]
    journal: Option<PathBuf>,
}

/// Work that leaves a trace.
#[gimmal::service]
trait Work {
    /// Journals `number`, then takes a while.
    async fn run(&self, cx: &Cx, number: u64) -> u64;
}

struct Journal {
    file: Mutex<fs::File>,
}

impl Work for Journal {
    async fn run(&self, _: &Cx, number: u64) -> u64 {
        if let Ok(mut file) = self.file.lock() {
            // One write call: it is in the kernel's hands before the handler goes on, whatever happens to us.
            let _ = file.write_all(format!("{number}\n").as_bytes());
        }
        std::thread::sleep(Duration::from_millis(10));
        number
    }
}

fn serve(address: &str, journal: &Path) -> anyhow::Result<()> {
    let file = fs::OpenOptions::new().create(true).append(true).open(journal)?;
    let server = Server::builder().service(serve_work(Journal { file: Mutex::new(file) })).listen(address)?;
    println!("listening on {}", server.address());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    ensure!(server.shutdown(Duration::from_secs(20)), "calls were still running after 20 s");
    Ok(())
}

/// A server process; killed on every way out.
struct Process(Child);

impl Process {
    fn start(args: &Args, journal: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--address", &args.address, "--journal"])
            .arg(journal)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server")?;
        let stdout = child.stdout.take().context("its output")?;
        let process = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.starts_with("listening on "), "the server did not start");
        Ok(process)
    }

    /// Lets it end in an orderly way, which leaves no socket behind.
    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.0.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the restarted server did not end when it was asked to");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn connect(address: &str) -> anyhow::Result<Client> {
    // Far above any bound: no call ends by it.
    let config = Config { window: WINDOW, deadline: Duration::from_secs(120), ..Config::default() };
    Client::builder().config(config).connect(address).with_context(|| format!("connecting to {address}"))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(journal) = &args.journal {
        return serve(&args.address, journal);
    }
    let journal = std::env::temp_dir().join(format!("fates-{}", std::process::id()));
    let outcome = run(&args, &journal);
    let _ = fs::remove_file(&journal);
    outcome
}

fn run(args: &Args, journal: &Path) -> anyhow::Result<()> {
    let mut server = Process::start(args, journal)?;
    let client = connect(&args.address)?;
    let work = WorkClient::new(client);
    let calls: Vec<_> = (0..CALLS).map(|number| (number, work.run(number))).collect();
    // In the middle: some were answered, most have not begun.
    let limit = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(journal)?.lines().count() < 10 {
        ensure!(Instant::now() < limit, "ten calls did not begin in 60 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.kill();
    let killed = Instant::now();

    let (mut answered, mut not_run, mut maybe_ran) = (0, HashSet::new(), HashSet::new());
    for (number, call) in calls {
        match call.wait() {
            Ok(echoed) => {
                ensure!(echoed == number, "call {number} got the answer of {echoed}");
                answered += 1;
            }
            Err(error) => match error.fate() {
                Fate::NotRun => drop(not_run.insert(number)),
                Fate::MaybeRan => drop(maybe_ran.insert(number)),
                Fate::Ran => anyhow::bail!("call {number} failed after it ran: {error}"),
            },
        }
    }
    let ended = killed.elapsed();
    let ran: HashSet<u64> =
        fs::read_to_string(journal)?.lines().filter_map(|line| line.parse().ok()).collect();
    let wrong: Vec<_> = not_run.intersection(&ran).collect();
    println!(
        "{CALLS} calls: {answered} answered, {} not run, {} may have run; journal {}; all ended {ended:?} after the kill",
        not_run.len(),
        maybe_ran.len(),
        ran.len()
    );
    ensure!(wrong.is_empty(), "told NotRun, but the journal has {wrong:?}");
    ensure!(!not_run.is_empty() && !maybe_ran.is_empty(), "both fates must occur: not injected");
    ensure!(
        ended < Duration::from_millis(args.bound_ms),
        "the last call ended only {ended:?} after the kill"
    );

    let again = Process::start(args, journal)?;
    let client = connect(&args.address)?;
    ensure!(
        WorkClient::new(client).run(7).wait().map_err(|error| anyhow::anyhow!("{error}"))? == 7,
        "wrong answer"
    );
    println!("a restarted server is reached at {}", args.address);
    again.stop()
}
