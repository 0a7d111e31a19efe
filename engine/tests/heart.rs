//! Heartbeats on simulated media, by seeds: silence is reported within the bound, life is never mistaken for it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use gimmal_engine::transport::{CloseReason, Time};
use gimmal_sim::{Fault, FaultKind, SimConfig, SimDevice, Step};
use support::{Pair, Traffic};

const BOUND_MS: u32 = 12;
const MS: u64 = 1_000_000;
const QUIET: Traffic = Traffic { messages: 3, bytes_max: 100, bulk_every: 0 };

fn media() -> [(&'static str, SimDevice); 3] {
    [
        ("roce", SimDevice::roce()),
        ("iwarp", SimDevice::iwarp()),
        ("shared memory", SimDevice::shared_memory()),
    ]
}

fn config(seed: u64, device: SimDevice) -> SimConfig {
    let (delay_min, delay_max) = (Duration::from_nanos(200), Duration::from_micros(20));
    SimConfig { seed, device, delay_min, delay_max, shuffle: true, ..SimConfig::default() }
}

fn run_for(pair: &mut Pair, span: u64) {
    let end = Time(pair.now().0 + span);
    pair.run_until(end, |pair| !pair.client().closed.is_empty() || !pair.server().closed.is_empty());
}

/// R26: the peer's host loses power at any time of an exchange; every call-like wait ends, within the bound.
#[test]
fn r26_a_peer_that_goes_silent_is_reported_within_the_bound() {
    for (name, device) in media() {
        for seed in 0..4 {
            let traffic = Traffic { messages: 5000, bytes_max: 300, bulk_every: 50 };
            let mut pair = Pair::with_heartbeats(config(seed, device.clone()), traffic, [BOUND_MS, 0]);
            run_for(&mut pair, seed * 300_000 + 400_000);
            assert_eq!(pair.client().closed, [], "{name}, seed {seed}");
            pair.server_stopped = true;
            let stopped = pair.now();
            run_for(&mut pair, 10 * u64::from(BOUND_MS) * MS);
            let silent = CloseReason::PeerSilent { bound_ms: BOUND_MS };
            assert_eq!(pair.client().closed, [silent], "{name}, seed {seed}");
            assert_eq!(pair.client().pulls_pending, 0, "{name}, seed {seed}: a pull never ended");
            let took = pair.now().since(stopped);
            // What was in flight when it stopped still arrived: at most 20 us each, and a look's eighth before.
            let bound = Duration::from_millis(BOUND_MS.into());
            assert!((bound * 3 / 4..=bound).contains(&took), "{name}, seed {seed}: {took:?}");
        }
    }
}

/// R27: a pause shorter than the bound kills nothing.
#[test]
fn r27_a_pause_within_the_bound_is_survived() {
    for (name, device) in media() {
        for seed in 0..4 {
            let traffic = Traffic { messages: 300, bytes_max: 1000, bulk_every: 7 };
            let mut pair = Pair::with_heartbeats(config(seed, device.clone()), traffic, [BOUND_MS; 2]);
            for _ in 0..3 {
                run_for(&mut pair, seed * 50_000 + 100_000);
                pair.server_stopped = true;
                run_for(&mut pair, u64::from(BOUND_MS) * MS * 3 / 4);
                pair.server_stopped = false;
            }
            let end = Time(pair.now().0 + 2000 * MS);
            pair.run_until(end, |pair| pair.client().is_finished());
            assert_eq!((pair.client().echoed, &pair.client().closed[..]), (300, &[][..]), "{name}, {seed}");
            assert_eq!(pair.server().closed, [], "{name}, seed {seed}");
            pair.assert_clean(name);
        }
    }
}

/// A worker that does not turn while its process runs is busy for as long as it likes.
#[test]
fn a_busy_worker_is_not_a_dead_peer() {
    for (name, device) in media() {
        for seed in 0..4 {
            let traffic = Traffic { messages: 300, bytes_max: 1000, bulk_every: 7 };
            let config = SimConfig { pulses: true, ..config(seed, device.clone()) };
            let mut pair = Pair::with_heartbeats(config, traffic, [BOUND_MS; 2]);
            run_for(&mut pair, seed * 50_000 + 100_000);
            pair.server_stopped = true;
            run_for(&mut pair, 20 * u64::from(BOUND_MS) * MS);
            pair.server_stopped = false;
            let end = Time(pair.now().0 + 2000 * MS);
            pair.run_until(end, |pair| pair.client().is_finished());
            assert_eq!((pair.client().echoed, &pair.client().closed[..]), (300, &[][..]), "{name}, {seed}");
            assert_eq!(pair.server().closed, [], "{name}, seed {seed}");
            pair.assert_clean(name);
        }
    }
}

/// A pulse that is not seen any more is no sign of life.
#[test]
fn a_peer_that_goes_with_its_process_is_reported_within_the_bound() {
    for (name, device) in media() {
        let faults = vec![Fault::at(Step::Frame(40), FaultKind::Silent)];
        let config = SimConfig { pulses: true, faults, ..config(5, device) };
        let traffic = Traffic { messages: 5000, bytes_max: 300, bulk_every: 50 };
        let mut pair = Pair::with_heartbeats(config, traffic, [BOUND_MS, 0]);
        let began = pair.now();
        run_for(&mut pair, 10 * u64::from(BOUND_MS) * MS);
        assert_eq!(pair.client().closed, [CloseReason::PeerSilent { bound_ms: BOUND_MS }], "{name}");
        // A few frames, then the silence.
        assert!(pair.now().since(began) <= Duration::from_millis(2 * u64::from(BOUND_MS)), "{name}");
    }
}

/// R40, R41: after our own absence, frames that arrived are read before the peer is judged.
#[test]
fn r40_our_own_absence_is_nobodys_death() {
    for (name, device) in media() {
        // The peer's answer comes later than the look behind the question.
        let slow =
            SimConfig { delay_max: Duration::from_millis(u64::from(BOUND_MS) / 8), ..config(3, device) };
        let mut pair = Pair::with_heartbeats(slow, QUIET, [BOUND_MS, 0]);
        run_for(&mut pair, MS);
        for _ in 0..3 {
            pair.client_stopped = true;
            run_for(&mut pair, 20 * u64::from(BOUND_MS) * MS);
            pair.client_stopped = false;
            run_for(&mut pair, 2 * u64::from(BOUND_MS) * MS);
        }
        assert_eq!(pair.client().closed, [], "{name}");
    }
}

/// While messages flow no ping is sent; while none do, three in a bound are enough.
#[test]
fn pings_are_only_for_silence() {
    // Its credit lies in words, so every frame is a message, an echo, or a heartbeat's.
    let device = SimDevice::shared_memory();
    let traffic = Traffic { messages: 120_000, bytes_max: 30, bulk_every: 0 };
    // So slow that the traffic lasts for several bounds.
    let slow = SimConfig { delay_max: Duration::from_micros(150), ..config(1, device.clone()) };
    let mut pair = Pair::with_heartbeats(slow, traffic, [BOUND_MS; 2]);
    let end = Time(pair.now().0 + 4000 * MS);
    pair.run_until(end, |pair| pair.client().is_finished());
    assert_eq!(pair.client().echoed, 120_000);
    assert!(pair.now().0 > 3 * u64::from(BOUND_MS) * MS, "too short to have pinged at all: {:?}", pair.now());
    assert_eq!(pair.frames_sent(), [120_000, 120_000], "pings among traffic");

    let mut pair = Pair::with_heartbeats(config(1, device), QUIET, [BOUND_MS; 2]);
    run_for(&mut pair, 20 * u64::from(BOUND_MS) * MS);
    let sent: u64 = pair.frames_sent().iter().sum::<u64>() - 6;
    // Both ask, and both answer, when they ask at the same moment; otherwise one's question is the other's sign of life.
    assert!((20..=2 * 2 * 3 * 20 + 8).contains(&sent), "{sent} heartbeat frames in 20 bounds");
    assert_eq!((&pair.client().closed[..], &pair.server().closed[..]), (&[][..], &[][..]));
}

/// A ping finds room although data has none, and its answer comes although bulk is in flight.
#[test]
fn a_ping_never_waits_behind_data_or_bulk() {
    for (name, device) in media() {
        let mut config = config(9, device);
        config.read_ns_per_kib = 200_000;
        let traffic = Traffic { messages: 200, bytes_max: 3500, bulk_every: 1 };
        let mut pair = Pair::with_heartbeats(config, traffic, [BOUND_MS; 2]);
        pair.server_every = 1000;
        let end = Time(pair.now().0 + 20_000 * MS);
        pair.run_until(end, |pair| pair.client().is_finished());
        assert!(pair.client().blocked > 0, "{name}: data was never held back");
        assert_eq!(pair.client().closed, [], "{name}");
        assert_eq!((pair.client().echoed, &pair.server().closed[..]), (200, &[][..]), "{name}");
    }
}
