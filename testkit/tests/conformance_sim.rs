//! The conformance suite on simulated worlds: every branch of the contract, with and without delays.

use std::time::Duration;

use gimmal_sim::{SimConfig, SimDevice};
use gimmal_testkit::conformance::{VirtualTime, run};

/// Runs the suite, of which `passed` cases apply to the world of `config`.
fn conforms(name: &str, config: SimConfig, passed: usize) {
    run(&mut VirtualTime::new(name, config)).expect(passed);
}

fn slow(device: SimDevice) -> SimConfig {
    SimConfig {
        seed: 7,
        device,
        delay_min: Duration::from_micros(1),
        delay_max: Duration::from_micros(300),
        read_ns_per_kib: 50,
        shuffle: true,
        ..SimConfig::default()
    }
}

#[test]
fn roce_at_once() {
    conforms("roce", SimConfig::default(), 130);
}

#[test]
fn roce_with_delays() {
    conforms("roce-slow", slow(SimDevice::roce()), 130);
}

#[test]
fn iwarp_at_once() {
    conforms("iwarp", SimConfig { device: SimDevice::iwarp(), ..SimConfig::default() }, 126);
}

#[test]
fn iwarp_with_delays() {
    conforms("iwarp-slow", slow(SimDevice::iwarp()), 126);
}

#[test]
fn shared_memory_at_once() {
    conforms("shared-memory", SimConfig { device: SimDevice::shared_memory(), ..SimConfig::default() }, 124);
}

#[test]
fn shared_memory_with_delays() {
    conforms("shared-memory-slow", slow(SimDevice::shared_memory()), 124);
}

#[test]
fn shared_receives_at_once() {
    conforms(
        "shared-receives",
        SimConfig { device: SimDevice::shared_receives(), ..SimConfig::default() },
        129,
    );
}

#[test]
fn shared_receives_with_delays() {
    conforms("shared-receives-slow", slow(SimDevice::shared_receives()), 129);
}

#[test]
fn credit_words_beside_arrivals() {
    conforms("words", slow(SimDevice { credit_words: true, ..SimDevice::roce() }), 130);
}
