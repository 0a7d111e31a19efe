//! Many seeds on every medium, and how one of them is run again.

use std::time::Duration;

use super::{SimConfig, SimDevice};

/// A medium: its name, and what is like it.
pub type Device = (&'static str, fn() -> SimDevice);

const DEVICES: [Device; 3] =
    [("roce", SimDevice::roce), ("iwarp", SimDevice::iwarp), ("shared memory", SimDevice::shared_memory)];

/// A world of a seed, whose messages take some time, and come in any order between connections.
#[must_use]
pub fn world(seed: u64, device: SimDevice) -> SimConfig {
    SimConfig {
        seed,
        device,
        delay_min: Duration::from_nanos(200),
        delay_max: Duration::from_micros(20),
        shuffle: true,
        ..SimConfig::default()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

/// Seeds of a run: few here, more in the tier `worlds` and in a soak.
#[must_use]
pub fn seeds() -> u64 {
    number("GIMMAL_SEEDS").unwrap_or(40)
}

/// Says how a run that failed is done again.
struct Again<'a>(&'a str, &'a str, u64);

impl Drop for Again<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(test, medium, seed) = self;
            let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
            eprintln!("{medium}, seed {seed}; again: GIMMAL_SEED={seed} cargo test -p {package} {test}");
        }
    }
}

/// Runs `test` with `seeds` seeds on each medium; with the one of `GIMMAL_SEED`, if it is given. Whether it was not.
pub fn each(test: &str, seeds: u64, mut run: impl FnMut(&str, u64, SimDevice)) -> bool {
    let one = number("GIMMAL_SEED");
    for (medium, device) in DEVICES {
        for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
            let _again = Again(test, medium, seed);
            run(&format!("{medium}, seed {seed}"), seed, device());
        }
    }
    one.is_none()
}
