//! The hot path of an inline echo: no allocation, and over shared memory no system call. Counted.

#![cfg(all(feature = "shm", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{path::Path, process::Command, sync::mpsc, thread, time::Duration};

use allocation_counter::measure;
use gimmal_bench::{
    echo::Echo,
    inline::InlineTarget,
    plan::{Layer, Mode, Plan, engine_plan},
    recorder::Recorder,
    target::Target as _,
};
use gimmal_engine::{
    Acceptor, Idle, Inline,
    transport::{Address, Instant, ListenOptions, Listener as _, Provider, shm::Shm, tcp::Tcp},
};
use gimmal_testkit::skip;

const WARM_UP: u64 = 5_000;
const CALLS: u64 = 20_000;

/// Echoes `calls` messages in all.
fn echo<P: Provider>(server: &mut Inline<P, Echo>, calls: u64) {
    while server.app().served() < calls {
        if server.turn() == 0 {
            // The other side may need this core.
            thread::yield_now();
        }
    }
}

#[test]
fn an_inline_echo_allocates_nothing_on_either_side() {
    let folder = tempfile::tempdir().unwrap();
    allocates_nothing(&Shm, &Address::Shm { path: folder.path().join("echo") });
}

#[test]
fn an_inline_echo_over_tcp_allocates_nothing_on_either_side() {
    allocates_nothing(&Tcp, &"tcp://127.0.0.1:0".parse().unwrap());
}

fn allocates_nothing<P: Provider>(provider: &P, address: &Address) {
    for window in [1, 32] {
        let (theirs, listens) = (address.clone(), provider.clone());
        let (ready, listening) = mpsc::channel();
        let server = thread::spawn(move || {
            let plan = engine_plan(64, 0, Idle::Spin).unwrap();
            let mut server = Inline::new(&listens, &plan, Echo::default()).unwrap();
            let listener = listens.listen(&theirs, &ListenOptions::default()).unwrap();
            let address = listener.address();
            let _acceptor = Acceptor::spawn(listener, vec![server.handle()]).unwrap();
            ready.send(address).unwrap();
            while server.app().asked().is_none() {
                server.turn();
            }
            server.with(|app, io| app.accept(io, ""));
            // The answer to the plan is the first of them.
            echo(&mut server, 1 + WARM_UP);
            measure(|| echo(&mut server, 1 + WARM_UP + CALLS))
        });
        let address = listening.recv().unwrap();
        // Equal cores: whoever waits yields, for machines with one core and busy ones with two.
        let plan = Plan {
            layer: Layer::Engine,
            mode: Mode::Inline,
            bytes: 64,
            window,
            threads: 1,
            block: 0,
            verify: false,
            keeps_accepting: false,
            client_core: 0,
            server_core: 0,
            same_host: false,
        };
        let mut client = InlineTarget::connect(provider, &address, &plan, 0).unwrap();
        let mut recorder = Recorder::new().unwrap();
        client.run(WARM_UP, &mut recorder).unwrap();
        let ours = measure(|| client.run(CALLS, &mut recorder).unwrap());
        let theirs = server.join().unwrap();
        assert_eq!(recorder.count(), WARM_UP + CALLS);
        assert_eq!((ours.count_total, theirs.count_total), (0, 0), "window {window}");
    }
}

/// System calls of both processes together over a whole run.
#[derive(Clone, Copy, Debug)]
struct Calls {
    /// Looks at the sockets: one in 10 ms of a side that waits, which on a still machine never happens in a run.
    looks: u64,
    /// Sleeps of the threads that move the processes' pulses on: one in 25 ms in each, however many messages there are.
    pulses: u64,
    others: u64,
    took: Duration,
}

impl Calls {
    /// The least of each kind that two runs made.
    fn or_less(self, other: Self) -> Self {
        let stiller = if other.looks < self.looks { other } else { self };
        Self { others: self.others.min(other.others), pulses: self.pulses.min(other.pulses), ..stiller }
    }
}

/// Counts over `count` echoes; `None`: strace may not trace.
fn system_calls(folder: &Path, count: u64) -> Option<Calls> {
    let started = Instant::now();
    let summary = folder.join(format!("strace-{count}"));
    let status = Command::new("strace")
        .args(["-f", "-qq", "-c", "-o"])
        .arg(&summary)
        .arg(env!("CARGO_BIN_EXE_gimmal-bench"))
        // As many slices however many calls: at both ends of one, times and phases are read by system calls.
        .args(["lat", "--loopback", "--json", "--cpus", "0,1", "--warmup", "20k", "--slice-ms", "60000"])
        .args(["-n", &count.to_string()])
        .stdout(std::process::Stdio::null())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return None;
    }
    let text = std::fs::read_to_string(summary).ok()?;
    // % time, seconds, usecs/call, calls, errors or not, name
    let calls = |line: &str| line.split_whitespace().nth(3)?.parse::<u64>().ok();
    let of = |name: &str| text.lines().filter(|line| line.trim_end().ends_with(name)).find_map(calls);
    let looks = of("epoll_wait").unwrap_or(0) + of("epoll_pwait").unwrap_or(0);
    let pulses = of("clock_nanosleep").unwrap_or(0);
    Some(Calls {
        looks,
        pulses,
        others: of("total")?.saturating_sub(looks + pulses),
        took: started.elapsed(),
    })
}

/// Echoes that one run has more than the other: all there is between the two is their measured part.
const MORE: u64 = 1_000_000;
/// What is allowed for them.
const LIMIT: u64 = 10;
/// Between two looks of one side at its sockets while nothing comes, milliseconds.
const LOOK_MS: u64 = 10;
/// Between two beats of a process's pulse, milliseconds.
const PULSE_MS: u64 = 25;
/// From here on the floors' slices have their full length.
const FEW: u64 = 200_000;

#[test]
fn a_million_inline_echoes_make_at_most_ten_system_calls() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("strace is not installed");
    }
    if thread::available_parallelism().map_or(1, Into::into) < 2 {
        return skip("two processes need a core each");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut last = String::new();
    let mut least: Option<[Calls; 2]> = None;
    // Whoever the scheduler stops, or whose peer it stops, looks around: still runs are what is meant. Two of them, or of
    // each length the stillest so far.
    for _ in 0..6 {
        let [Some(few), Some(many)] = [FEW, FEW + MORE].map(|count| system_calls(folder.path(), count))
        else {
            return skip("strace cannot trace here");
        };
        let stillest = least.map_or([few, many], |[least, most]| [few.or_less(least), many.or_less(most)]);
        least = Some(stillest);
        for [few, many] in [[few, many], stillest] {
            let others = many.others.saturating_sub(few.others);
            let looks = many.looks.saturating_sub(few.looks);
            let pulses = many.pulses.saturating_sub(few.pulses);
            let took_ms = u64::try_from(many.took.as_millis()).unwrap();
            let (waits, beats) = (took_ms / LOOK_MS * 2, took_ms / PULSE_MS * 2);
            last = format!(
                "{others} system calls, {looks} looks ({waits} intervals) and {pulses} beats of a pulse (of {beats}) more \
                 for {MORE} echoes more"
            );
            println!("{last}: {few:?}, {many:?}");
            let is_few = others + looks <= LIMIT || (others <= LIMIT && looks <= waits);
            if is_few && pulses <= beats {
                return;
            }
        }
    }
    panic!("{last}");
}
