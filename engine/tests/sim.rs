//! The engine on the simulated provider: many seeds, faults, virtual time; invariants after every run.
//!
//! I3 bytes are the expected ones, in order · I5 credit is conserved (the world saw no overwrite, no chain without a
//! receive) · I7 one close, by a bound · I8 when faults stop, everything sent arrives · I12 the fault really happened.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

mod support;

use std::{cell::Cell, time::Duration};

use gimmal_engine::transport::{CloseReason, PortConfig, SharedReceives, Time};
use gimmal_sim::{Fault, FaultKind, SimConfig, SimDevice, Step};
use support::{Pair, Traffic};

/// A medium, by name.
type Device = (&'static str, fn() -> SimDevice);

const DEVICES: [Device; 4] = [
    ("roce", SimDevice::roce),
    ("iwarp", SimDevice::iwarp),
    ("shared memory", SimDevice::shared_memory),
    ("shared receives", SimDevice::shared_receives),
];

fn config(seed: u64, device: SimDevice) -> SimConfig {
    SimConfig {
        seed,
        device,
        delay_min: Duration::from_nanos(200),
        delay_max: Duration::from_micros(20),
        shuffle: true,
        ..SimConfig::default()
    }
}

/// Seeds of a run: few in CI, more in a soak.
fn seeds() -> u64 {
    std::env::var("GIMMAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20)
}

/// Messages of a run there and back.
fn messages() -> u64 {
    std::env::var("GIMMAL_MESSAGES").ok().and_then(|messages| messages.parse().ok()).unwrap_or(200)
}

/// Everything that is sent comes back, whatever the medium and the order of completions.
#[test]
fn i3_i5_i8_all_traffic_returns_on_every_medium() {
    let messages = messages();
    for (name, device) in DEVICES {
        let mut picked = 0;
        for seed in 0..seeds() {
            let mut pair =
                Pair::new(config(seed, device()), Traffic { messages, bytes_max: 3000, bulk_every: 17 });
            pair.run_until(Time(messages * 500_000), |pair| pair.client().is_finished());
            let client = pair.client();
            assert_eq!(
                (client.echoed, client.loans_back),
                (messages, client.loans_sent()),
                "{name}, seed {seed}: {client:?}"
            );
            pair.assert_clean(&format!("{name}, seed {seed}"));
            picked += client.picked;
        }
        assert!(picked > 0, "{name}: nothing was looked for and found");
    }
}

/// R51: a busy connection is granted more of the receives that all share; when it is idle it says that it will not use them.
#[test]
fn r51_who_is_idle_gives_up_what_is_shared() {
    let mut granted = 0;
    for seed in 0..seeds() {
        let traffic = Traffic { messages: 300, bytes_max: 3000, bulk_every: 0 };
        let mut pair = Pair::with_heartbeats(config(seed, SimDevice::shared_receives()), traffic, [80, 80]);
        // What arrives is not taken at once, so more is granted.
        pair.server_every = 20;
        let least = Cell::new(u32::MAX);
        let look = |pair: &Pair| least.set(least.get().min(pair.common().1));
        pair.run_until(Time(1_000_000_000), |pair| {
            look(pair);
            pair.client().is_finished()
        });
        assert_eq!(pair.client().echoed, 300, "seed {seed}: {:?}", pair.client().closed);
        let (common, _) = pair.common();
        granted += u64::from(common - least.get());
        let idle_until = Time(pair.now().0 + 60_000_000);
        pair.run_until(idle_until, |_| false);
        // But for what it was not worth telling the client of.
        assert!(pair.common().1 + 2 >= common, "seed {seed}: {:?}", pair.common());
        // And it is had again.
        pair.more(300);
        pair.run_until(Time(idle_until.0 + 1_000_000_000), |pair| pair.client().is_finished());
        assert_eq!(pair.client().echoed, 600, "seed {seed}: {:?}", pair.client().closed);
        pair.assert_clean(&format!("seed {seed}"));
    }
    assert!(granted > 4 * seeds(), "hardly anything beyond the guarantee was granted: {granted}");
}

/// R44, R57: a receiver that takes turns a hundred times as seldom; memory is the ring's, RNR stays 0.
#[test]
fn r44_a_slow_receiver_is_back_pressure() {
    for (name, device) in DEVICES {
        let mut pair =
            Pair::new(config(7, device()), Traffic { messages: 500, bytes_max: 900, bulk_every: 0 });
        pair.server_every = 100;
        pair.run_until(Time(20_000_000_000), |pair| pair.client().is_finished());
        assert!(pair.client().blocked > 0, "{name}: the sender was never held back: not injected");
        assert_eq!(pair.client().echoed, 500, "{name}");
        pair.assert_clean(name);
    }
}

/// R48: queues of sends that are shorter than the credit. Word of credit finds one full, again and again, and is said later.
#[test]
fn r48_credit_that_finds_a_full_send_queue_is_not_lost() {
    for (name, device) in [DEVICES[0], DEVICES[1], DEVICES[3]] {
        for seed in 0..seeds() {
            let shared = SharedReceives { sends: 4, ..SharedReceives::default() };
            let port = PortConfig { sends: 4, signal_interval: 2, shared, ..PortConfig::default() };
            let traffic = Traffic { messages: 700, bytes_max: 8, bulk_every: 0 };
            let mut pair = Pair::with_port(config(seed, device()), traffic, [0, 0], port);
            pair.run_until(Time(5_000_000_000), |pair| pair.client().is_finished());
            let client = pair.client();
            assert_eq!(client.echoed, 700, "{name}, seed {seed}: {:?}", client.closed);
            assert!(client.blocked > 0, "{name}, seed {seed}: not injected");
            pair.assert_clean(&format!("{name}, seed {seed}"));
        }
    }
}

/// One by one, small messages use up receives long before they fill a ring: credit comes in time all the same.
#[test]
fn who_waits_for_each_answer_is_never_held_back() {
    for (name, device) in DEVICES {
        let config = SimConfig { seed: 5, device: device(), ..SimConfig::default() };
        let mut pair = Pair::new(config, Traffic { messages: 500, bytes_max: 8, bulk_every: 0 });
        pair.one_by_one();
        pair.run_until(Time(500_000_000), |pair| pair.client().is_finished());
        // Shared receives are so few that each answer has to carry the credit for the message that it answers.
        assert_eq!((pair.client().echoed, pair.client().blocked), (500, 0), "{name}");
        pair.assert_clean(name);
    }
}

/// R47: held frames come back in any order, and one never does: nothing is written over, and nobody waits for it.
#[test]
fn r47_held_frames_on_every_medium() {
    for (name, device) in DEVICES {
        let mut sums = (0, 0);
        for seed in 0..seeds() {
            let traffic = Traffic { messages: 100, bytes_max: 2000, bulk_every: 0 };
            let mut pair = Pair::new(config(seed, device()), traffic);
            pair.hold();
            pair.run_until(Time(150_000_000), |pair| pair.client().is_finished());
            assert_eq!(pair.client().echoed, 100, "{name}, seed {seed}: {:?}", pair.client());
            pair.assert_clean(&format!("{name}, seed {seed}"));
            let (held, copied) = pair.held();
            sums = (sums.0 + held, sums.1 + copied);
        }
        // A slot that is shared is kept by nobody: all are copied.
        let (held, copied) = (sums.0 > 0, sums.1 > 0);
        assert!(held == (name != "shared receives") && copied, "{name}: {sums:?} held and copied");
    }
}

/// R23, R25: the connection is lost at any step; both sides hear of it exactly once, and nobody hangs.
#[test]
fn r25_lost_at_any_step_is_told_once() {
    let steps =
        [Step::Grant(1), Step::Grant(2), Step::Frame(1), Step::Frame(40), Step::Completion(2), Step::Bulk(1)];
    for step in steps {
        for seed in 0..20 {
            let mut config = config(seed, SimDevice::roce());
            config.faults = vec![Fault::at(step, FaultKind::Lost)];
            let mut pair = Pair::new(config, Traffic { messages: 100, bytes_max: 2000, bulk_every: 5 });
            pair.run_until(Time(50_000_000), |pair| {
                pair.client().is_finished() && (!pair.server().closed.is_empty() || !pair.server().opened)
            });
            assert_eq!(pair.injected(), 1, "{step:?}, seed {seed}: not injected");
            let (client, server) = (pair.client(), pair.server());
            assert!(client.closed.len() <= 1 && server.closed.len() <= 1, "{step:?}, seed {seed}");
            assert!(
                !client.closed.is_empty() || !client.opened,
                "{step:?}, seed {seed}: nobody told the client"
            );
            let pulls = [client.pulls_pending, server.pulls_pending];
            assert_eq!(pulls, [0, 0], "{step:?}, seed {seed}: a pull never ended");
        }
    }
}

/// R68, R91: a frame with an impossible length closes that connection with a violation.
#[test]
fn r91_a_corrupt_frame_is_a_named_violation() {
    let mut config = config(3, SimDevice::roce());
    config.faults = vec![Fault::at(Step::Frame(30), FaultKind::Corrupt)];
    let mut pair = Pair::new(config, Traffic { messages: 100, bytes_max: 500, bulk_every: 0 });
    pair.run_until(Time(5_000_000_000), |pair| pair.client().is_finished());
    let seen: Vec<_> = pair.client().closed.iter().chain(&pair.server().closed).cloned().collect();
    assert!(seen.iter().any(|reason| matches!(reason, CloseReason::Violation(_))), "{seen:?}");
}

/// An orderly close: what was sent arrives first, the closer sees `Local`, the other `Peer`.
#[test]
fn r98_an_orderly_close_loses_nothing() {
    for (name, device) in DEVICES {
        for seed in 0..20 {
            let mut pair =
                Pair::new(config(seed, device()), Traffic { messages: 30, bytes_max: 400, bulk_every: 0 });
            pair.close_after_sending = true;
            pair.run_until(Time(5_000_000_000), |pair| {
                !pair.client().closed.is_empty() && !pair.server().closed.is_empty()
            });
            assert_eq!(pair.server().received, 30, "{name}, seed {seed}");
            assert!(pair.now() < Time(200_000_000), "{name}, seed {seed}: nobody answered the goodbye");
            assert_eq!(pair.client().closed, [CloseReason::Local], "{name}, seed {seed}");
            assert_eq!(pair.server().closed, [CloseReason::Peer], "{name}, seed {seed}");
        }
    }
}

/// R117: the same seed gives the same run.
#[test]
fn r117_a_seed_is_a_run() {
    let run = |seed| {
        let mut pair = Pair::new(
            config(seed, SimDevice::roce()),
            Traffic { messages: 100, bytes_max: 2000, bulk_every: 9 },
        );
        pair.run_until(Time(2_000_000_000), |pair| pair.client().is_finished());
        pair.digest()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// R63: positions that cross 2^32 while messages, held ones among them, and bulk are in flight: no difference.
#[test]
fn r63_positions_cross_32_bits_unnoticed() {
    for (name, device) in DEVICES {
        for seed in 0..seeds() {
            let mut config = config(seed, device());
            config.first_position = (1 << 32) - 16 * (1 + seed * 97);
            let mut pair = Pair::new(config, Traffic { messages: 150, bytes_max: 3000, bulk_every: 17 });
            pair.hold();
            pair.run_until(Time(150_000_000), |pair| pair.client().is_finished());
            assert_eq!(pair.client().echoed, 150, "{name}, seed {seed}: {:?}", pair.client());
            pair.assert_clean(&format!("{name}, seed {seed}"));
        }
    }
}
