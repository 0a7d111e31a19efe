//! The conformance suite on shared memory.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use gimmal_testkit::conformance::{RealTime, knock_on_socket, run};
use gimmal_transport::{
    Address, ConnectError, ConnectOptions, ListenError, ListenOptions, PortConfig, PortError, Provider,
    Trust,
    shm::{Shm, ShmConnecting, ShmGate, ShmLink, ShmListener, ShmPort},
};

/// Shared memory whose two sides trust nobody.
#[derive(Clone, Debug)]
struct Untrusting;

impl Provider for Untrusting {
    type Port = ShmPort;
    type Gate = ShmGate;
    type Link = ShmLink;
    type Listener = ShmListener;
    type Connecting = ShmConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<ShmPort, PortError> {
        Shm.open_port(config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<ShmListener, ListenError> {
        Shm.listen(address, &ListenOptions { trust: Trust::None, ..options.clone() })
    }

    fn connect(
        &self,
        address: &Address,
        gate: &ShmGate,
        options: &ConnectOptions,
    ) -> Result<ShmConnecting, ConnectError> {
        Shm.connect(address, gate, &ConnectOptions { trust: Trust::None, ..options.clone() })
    }
}

/// Cases of the suite that apply to shared memory.
const PASSED: usize = 124;

#[test]
fn shared_memory_conforms() {
    conforms("shm", Shm);
}

#[test]
fn shared_memory_of_those_who_trust_nobody_conforms() {
    conforms("shm/untrusting", Untrusting);
}

#[test]
fn names_of_a_process_conform() {
    let address = |number: u32| Address::Mem { name: format!("names-{number}") };
    let harness = RealTime::new("mem", Shm, address, "rdma://127.0.0.1:1".parse().unwrap());
    run(&mut harness.with_knocker(knock_on_socket)).expect(PASSED);
}

fn conforms(name: &str, provider: impl Provider) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_owned();
    let address = move |number: u32| Address::Shm { path: base.join(format!("{number}.sock")) };
    let wrong: Address = "rdma://127.0.0.1:1".parse().unwrap();
    let mut harness = RealTime::new(name, provider, address, wrong).with_knocker(knock_on_socket);
    run(&mut harness).expect(PASSED);
    let left: Vec<_> = folder.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
