//! Echoes with both ends on one thread: something for callgrind and perf to count.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/pair 64 1 100000     bytes, window (0: empty turns), rounds, idle connections
//! target/release/examples/pair 64 1 5000 0 rdma://10.77.1.1:7800         the same over a device, in the lab
//! ```
//! The difference of two runs, divided by the difference of their rounds, is the instructions of one round: exact
//! where times are not. Over a device it counts what is ours and what is the library's, not the kernel's.

#![forbid(unsafe_code)]

use std::time::Duration;

use gimmal::Instant;
use gimmal_bench::{clock::Stamp, pair::Pair};
use gimmal_transport::{Address, Provider};

type Outcome = Result<(), Box<dyn std::error::Error>>;

struct Work {
    bytes: usize,
    window: u64,
    rounds: u64,
    idle: usize,
}

fn run<P: Provider>(provider: &P, address: &Address, work: &Work) -> Outcome {
    let Work { bytes, window, rounds, idle } = *work;
    let mut pair = Pair::connect_among(provider, address, bytes, idle)?;
    if idle > 0 {
        // Long enough for the idle ones to be noticed.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            pair.idle();
        }
    }
    let start = Stamp::now();
    for _ in 0..rounds {
        if window == 0 {
            pair.idle();
        } else {
            pair.echo(window)?;
        }
    }
    let nanos = Stamp::now().nanos_since(start);
    println!("{} ns for {window} x {bytes} bytes there and back, nobody waiting", nanos / rounds.max(1));
    Ok(())
}

#[cfg(feature = "shm")]
fn over_memory(work: &Work) -> Outcome {
    let folder = tempfile::tempdir()?;
    run(&gimmal_transport::shm::Shm, &Address::Shm { path: folder.path().join("pair") }, work)
}

#[cfg(not(feature = "shm"))]
fn over_memory(_: &Work) -> Outcome {
    println!("SKIP: built without shm");
    Ok(())
}

#[cfg(feature = "verbs")]
fn over_device(address: &Address, work: &Work) -> Outcome {
    run(&gimmal_transport::verbs::Verbs::new(), address, work)
}

#[cfg(not(feature = "verbs"))]
fn over_device(_: &Address, _: &Work) -> Outcome {
    println!("SKIP: built without verbs");
    Ok(())
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (bytes, window, rounds) = (usize::try_from(next(64)?)?, next(1)?, next(100_000)?);
    let work = Work { bytes, window, rounds, idle: usize::try_from(next(0)?)? };
    match arguments.next() {
        Some(url) => over_device(&url.parse()?, &work),
        None => over_memory(&work),
    }
}
