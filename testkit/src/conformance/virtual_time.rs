//! A harness for simulated worlds: time goes from one happening to the next.

use std::time::Duration;

use super::{
    harness::{Harness, Knock},
    patience,
};
use gimmal_sim::{Sim, SimConfig};
use gimmal_transport::{Address, Connecting, Port, Provider, Time};

/// One world for all cases; its findings are looked at after each.
#[derive(Debug)]
pub struct VirtualTime {
    name: String,
    sim: Sim,
    names: u32,
}

impl VirtualTime {
    /// A world of this kind.
    #[must_use]
    pub fn new(name: &str, config: SimConfig) -> Self {
        Self { name: format!("sim/{name}"), sim: Sim::new(config), names: 0 }
    }
}

impl Harness<Sim> for VirtualTime {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn provider(&mut self, _side: usize) -> Sim {
        self.sim.clone()
    }

    fn address(&mut self) -> Address {
        self.names += 1;
        Address::Mem { name: format!("conformance-{}", self.names) }
    }

    fn wrong_address(&self) -> Address {
        Address::Rdma { host: "127.0.0.1".to_owned(), port: 1, via: gimmal_transport::Via::default() }
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
        let options = patience::connecting();
        let mut connecting = self.sim.connect_raw(address, &port.gate(), &options, private_data).ok()?;
        Some(Box::new(move || {
            let _keeps_its_gate = &port;
            connecting.poll(Duration::ZERO).map(Result::err)
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
