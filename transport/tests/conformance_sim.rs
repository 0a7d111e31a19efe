//! The conformance suite on simulated worlds: every branch of the contract, with and without delays.
#![cfg(all(feature = "sim", feature = "conformance"))]

use std::time::Duration;

use gimmal_transport::{
    Address, ConnectError, ConnectOptions, Connecting, Port, Provider, Time,
    conformance::{Harness, Knock, run},
    sim::{Sim, SimConfig, SimDevice},
};

struct World {
    name: &'static str,
    sim: Sim,
    names: u32,
}

impl Harness<Sim> for World {
    fn name(&self) -> String {
        format!("sim/{}", self.name)
    }

    fn provider(&mut self, _side: usize) -> Sim {
        self.sim.clone()
    }

    fn address(&mut self) -> Address {
        self.names += 1;
        Address::Mem { name: format!("conformance-{}", self.names) }
    }

    fn wrong_address(&self) -> Address {
        Address::Rdma { host: "127.0.0.1".to_owned(), port: 1 }
    }

    fn now(&mut self) -> Time {
        self.sim.now()
    }

    /// To the next thing that happens, but not past a millisecond: quiet times and time-outs pass too.
    fn step(&mut self) {
        let soon = self.sim.now().plus(Duration::from_millis(1));
        self.sim.advance(self.sim.next_at().min(soon));
    }

    fn can_knock(&self) -> bool {
        true
    }

    fn knock(&mut self, address: &Address, private_data: &[u8]) -> Option<Knock> {
        let port = self.sim.open_port(&self.config()).ok()?;
        let options = ConnectOptions::default();
        let mut connecting = self.sim.connect_raw(address, &port.gate(), &options, private_data).ok()?;
        Some(Box::new(move || {
            let _keeps_its_gate = &port;
            connecting.poll(Duration::ZERO).map(|outcome: Result<_, ConnectError>| outcome.err())
        }))
    }

    fn check(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let findings = self.sim.findings();
        if findings.rnr == 0 && findings.misuses.is_empty() {
            return Ok(());
        }
        Err(format!("{} RNRs, misuses {:?}", findings.rnr, findings.misuses).into())
    }
}

fn conforms(name: &'static str, config: SimConfig) {
    let report = run(&mut World { name, sim: Sim::new(config), names: 0 });
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= 70, "{report}");
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
    conforms("roce", SimConfig::default());
}

#[test]
fn roce_with_delays() {
    conforms("roce-slow", slow(SimDevice::roce()));
}

#[test]
fn iwarp_at_once() {
    conforms("iwarp", SimConfig { device: SimDevice::iwarp(), ..SimConfig::default() });
}

#[test]
fn iwarp_with_delays() {
    conforms("iwarp-slow", slow(SimDevice::iwarp()));
}

#[test]
fn shared_memory_at_once() {
    conforms("shm-like", SimConfig { device: SimDevice::shared_memory(), ..SimConfig::default() });
}

#[test]
fn shared_memory_with_delays() {
    conforms("shm-like-slow", slow(SimDevice::shared_memory()));
}

#[test]
fn credit_words_beside_arrivals() {
    let device = SimDevice { credit_words: true, ..SimDevice::roce() };
    conforms("words", slow(device));
}
