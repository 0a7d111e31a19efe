//! Loans over shared memory with both ends on one thread, each touched at its first word by both: something for callgrind
//! to count, as `pair` is for messages.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/pair_loan 1048576 1 100000      bytes, window, rounds
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "shm")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use gimmal_bench::{clock::Stamp, pair::Pair};
    use gimmal_transport::{Address, shm::Shm};

    let mut arguments = std::env::args().skip(1);
    let mut next = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (bytes, window, rounds) = (usize::try_from(next(1 << 20)?)?, next(1)?, next(100_000)?);
    let folder = tempfile::tempdir()?;
    let mut pair = Pair::connect(&Shm, &Address::Shm { path: folder.path().join("pair") }, 64)?;
    let start = Stamp::now();
    for _ in 0..rounds {
        pair.lend(bytes, window)?;
    }
    let nanos = Stamp::now().nanos_since(start);
    println!("{} ns for {window} loans of {bytes} bytes, nobody waiting", nanos / rounds.max(1));
    Ok(())
}

#[cfg(not(feature = "shm"))]
fn main() {
    println!("SKIP: built without shm");
}
