//! Echoes over shared memory with both ends on one thread: something for callgrind and perf to count.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/pair 64 1 100000     bytes, window (0: empty turns), rounds, idle connections
//! ```
//! The difference of two runs, divided by the difference of their rounds, is the instructions of one round: exact
//! where times are not.

#![forbid(unsafe_code)]

#[cfg(feature = "shm")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::{Duration, Instant};

    use gimmal_bench::{clock::Stamp, pair::Pair};
    use gimmal_transport::{Address, shm::Shm};

    let mut arguments = std::env::args().skip(1);
    let mut next = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (bytes, window, rounds) = (usize::try_from(next(64)?)?, next(1)?, next(100_000)?);
    let folder = tempfile::tempdir()?;
    let idle = usize::try_from(next(0)?)?;
    let address = Address::Shm { path: folder.path().join("pair") };
    let mut pair = Pair::connect_among(&Shm, &address, bytes, idle)?;
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

#[cfg(not(feature = "shm"))]
fn main() {
    println!("SKIP: built without shm");
}
