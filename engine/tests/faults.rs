//! Every kind of fault at every kind of moment, on every medium: one end for each side, the right cause, nothing left.
//!
//! `GIMMAL_FAULT_SEEDS` (10) runs for each kind; a failure names its seed, kind, step and medium.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use std::time::Duration;

use gimmal_engine::transport::{CloseReason, PortConfig, Time, Violation};
use gimmal_sim::{Fault, FaultKind, SimConfig, SimDevice, Step};
use support::{Pair, Traffic};

/// A medium.
type Device = fn() -> SimDevice;

const DEVICES: [(&str, Device); 3] =
    [("roce", SimDevice::roce), ("iwarp", SimDevice::iwarp), ("shm", SimDevice::shared_memory)];
/// `IBV_WC_RETRY_EXC_ERR`, `IBV_WC_REM_ACCESS_ERR`, a status of no known meaning.
const STATUSES: [u32; 3] = [12, 10, 250];
const HEARTBEAT_MS: u32 = 10;
/// After a fault both sides know within this: the heartbeat's bound, and a look more.
const TOLD_WITHIN_NS: u64 = 20_000_000;
const TRAFFIC: Traffic = Traffic { messages: 150, bytes_max: 2000, bulk_every: 4 };

fn seeds() -> u64 {
    std::env::var("GIMMAL_FAULT_SEEDS").map_or(10, |seeds| seeds.parse().expect("a number"))
}

fn steps(seed: u64) -> [Step; 3] {
    [Step::Frame(1 + seed * 7 % 200), Step::Completion(1 + seed % 12), Step::Bulk(1 + seed % 20)]
}

/// Whether the engine may give `reason` for a fault of this kind.
fn explains(kind: FaultKind, reason: &CloseReason) -> bool {
    match (kind, reason) {
        // The other side hears of it as an end of its peer; after an end a peer is silent.
        (_, CloseReason::Peer | CloseReason::PeerGone { .. } | CloseReason::Handshake) => true,
        (FaultKind::Silent, CloseReason::PeerSilent { bound_ms }) => *bound_ms == HEARTBEAT_MS,
        (FaultKind::Work(wanted), CloseReason::Work { status, .. }) => *status == wanted,
        (FaultKind::Corrupt, CloseReason::Violation(_)) => true,
        (FaultKind::DeviceRemoved, CloseReason::DeviceGone) => true,
        (_, CloseReason::Event { .. }) => true,
        _ => false,
    }
}

/// I1, I6 to I9, I11 and I12 for one connection with one fault. Returns whether it came.
fn one_fault(name: &str, device: SimDevice, seed: u64, step: Step, kind: FaultKind) -> bool {
    let what = format!("{name}, seed {seed}, {kind:?} at {step:?}");
    let config = SimConfig {
        seed,
        device,
        delay_min: Duration::from_nanos(seed % 3 * 500),
        delay_max: Duration::from_micros(1 + seed % 40),
        shuffle: true,
        faults: vec![Fault::at(step, kind)],
        ..SimConfig::default()
    };
    let mut pair = Pair::with_heartbeats(config, TRAFFIC, [HEARTBEAT_MS; 2]);
    pair.run_until(Time(500_000_000), |pair| pair.injected() > 0 || pair.client().is_finished());
    // I7.
    let until = Time(pair.now().0 + TOLD_WITHIN_NS);
    let told = |pair: &Pair| !pair.client().closed.is_empty() && !pair.server().closed.is_empty();
    if pair.injected() > 0 {
        pair.run_until(until, told);
    }
    let (client, server) = (pair.client(), pair.server());
    if pair.injected() == 0 {
        assert_eq!(client.echoed, TRAFFIC.messages, "{what}: nothing went wrong, and it is not done");
        pair.assert_clean(&what);
        return false;
    }
    for (side, node) in [("client", client), ("server", server)] {
        assert!(node.closed.len() <= 1, "{what}: the {side} was told twice: {:?}", node.closed);
        assert!(!node.opened || node.closed.len() == 1, "{what}: the {side} was not told");
        assert_eq!(node.pulls_pending, 0, "{what}: a pull of the {side} never ended");
        for reason in &node.closed {
            assert!(explains(kind, reason), "{what}: the {side} gives {reason}");
        }
    }
    assert!(client.echoed <= server.received && server.received <= client.sent, "{what}: out of nothing");
    pair.assert_clean(&what);
    true
}

fn every_moment(kind: impl Fn(u64) -> FaultKind) {
    let mut injected = 0;
    for (name, device) in DEVICES {
        for seed in 0..seeds() {
            for step in steps(seed) {
                injected += u64::from(one_fault(name, device(), seed, step, kind(seed)));
            }
        }
    }
    println!("{injected} faults");
    assert!(injected > seeds() * 5, "only {injected} faults happened");
}

/// R25, R42: the connection breaks.
#[test]
fn r25_lost_at_every_moment_on_every_medium() {
    every_moment(|_| FaultKind::Lost);
}

/// R26, R30, R42: nothing is heard any more, and no event says so.
#[test]
fn r26_silence_at_every_moment_on_every_medium() {
    every_moment(|_| FaultKind::Silent);
}

/// R18, R43: a work request fails; also with a status that nobody knows.
#[test]
fn r43_a_failed_work_request_at_every_moment_on_every_medium() {
    every_moment(|seed| FaultKind::Work(STATUSES[usize::try_from(seed).unwrap() % STATUSES.len()]));
}

/// R19: the device goes.
#[test]
fn r19_the_device_goes_at_every_moment_on_every_medium() {
    every_moment(|_| FaultKind::DeviceRemoved);
}

/// R49: the completion queue loses a completion: an event says so, and what is on that queue ends with it.
#[test]
fn r49_a_completion_queue_that_overruns_ends_its_connections() {
    every_moment(|_| FaultKind::Overrun);
    let mut seen = 0;
    for seed in 0..seeds() {
        let faults = vec![Fault::at(Step::Completion(1 + seed % 5), FaultKind::Overrun)];
        let config = SimConfig { seed, faults, ..SimConfig::default() };
        let mut pair = Pair::new(config, TRAFFIC);
        pair.run_until(Time(50_000_000), |pair| !pair.client().closed.is_empty());
        let overrun = CloseReason::Event { event: "CQ_ERR", status: 0 };
        let closed = [&pair.client().closed, &pair.server().closed];
        seen += u64::from(closed.iter().any(|closed| closed[..] == [overrun.clone()]));
    }
    assert_eq!(seen, seeds(), "an overrun that nobody was told of");
}

/// R95: a provider tells a chain twice, on every medium: nothing is believed twice, and the connection closes with the
/// cause.
#[test]
fn r95_a_chain_that_is_told_twice_is_never_believed() {
    for (name, device) in DEVICES {
        for seed in 0..seeds() {
            let what = format!("{name}, seed {seed}");
            let faults = vec![Fault::at(Step::Frame(1 + seed * 13 % 200), FaultKind::Doubled)];
            let config = SimConfig { seed, device: device(), faults, ..SimConfig::default() };
            let mut pair = Pair::new(config, TRAFFIC);
            pair.run_until(Time(50_000_000), |pair| {
                !pair.client().closed.is_empty() && !pair.server().closed.is_empty()
            });
            assert_eq!(pair.injected(), 1, "{what}: not injected");
            let closed = || pair.client().closed.iter().chain(&pair.server().closed);
            let named = closed().any(|reason| {
                matches!(
                    reason,
                    CloseReason::Violation(Violation::OutOfSequence { .. } | Violation::Chain { .. })
                )
            });
            assert!(named, "{what}: {:?}", closed().collect::<Vec<_>>());
        }
    }
}

/// R35: with sums agreed on, a bit that changed on its way is found before anybody sees it; in frames and in bulk.
#[test]
fn r35_a_flipped_bit_is_found() {
    let port = PortConfig { checksum: true, ..PortConfig::default() };
    for (name, device) in DEVICES {
        for seed in 0..seeds() {
            for step in [Step::Frame(1 + seed * 7 % 200), Step::Bulk(1 + seed % 20)] {
                let what = format!("{name}, seed {seed}, {step:?}");
                let faults = vec![Fault::at(step, FaultKind::Flipped)];
                let config = SimConfig { seed, device: device(), faults, ..SimConfig::default() };
                let mut pair = Pair::with_port(config, TRAFFIC, [0, 0], port.clone());
                pair.run_until(Time(50_000_000), |pair| {
                    !pair.client().closed.is_empty() && !pair.server().closed.is_empty()
                });
                assert_eq!(pair.injected(), 1, "{what}: not injected");
                let closed: Vec<_> = pair.client().closed.iter().chain(&pair.server().closed).collect();
                let named = |reason: &&&CloseReason| matches!(reason, CloseReason::Violation(_));
                assert!(closed.iter().any(|reason| named(&reason)), "{what}: {closed:?}");
                pair.assert_clean(&what);
            }
        }
    }
}

/// With sums and without faults everything arrives, at the largest size and with bulk.
#[test]
fn sums_change_nothing_else() {
    for (name, device) in DEVICES {
        for checksum in [true, false] {
            let port = PortConfig { checksum, ..PortConfig::default() };
            let config = SimConfig { seed: 4, device: device(), ..SimConfig::default() };
            let traffic = Traffic { messages: 200, bytes_max: 4000, bulk_every: 7 };
            let mut pair = Pair::with_port(config, traffic, [0, 0], port);
            pair.hold();
            pair.run_until(Time(100_000_000), |pair| pair.client().is_finished());
            assert_eq!(pair.client().echoed, 200, "{name}: {:?}", pair.client());
            pair.assert_clean(name);
        }
    }
}
