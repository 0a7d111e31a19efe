//! The conformance suite on TCP, over the loopback interface.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use gimmal_testkit::conformance::{RealTime, knock_on_tcp, run_some};
use gimmal_transport::{Address, tcp::Tcp};

/// Cases of the suite that apply to TCP.
const PASSED: usize = 124;

#[test]
fn tcp_conforms() {
    conforms("tcp", "127.0.0.1");
}

#[test]
fn tcp_over_ipv6_conforms() {
    conforms("tcp/ipv6", "::1");
}

fn conforms(name: &str, host: &str) {
    let (host, wrong) = (host.to_owned(), "rdma://127.0.0.1:1".parse().unwrap());
    let address = move |_| Address::Tcp { host: host.clone(), port: 0, tls: false };
    let mut harness = RealTime::new(name, Tcp, address, wrong).with_knocker(knock_on_tcp);
    let filter = std::env::var("GIMMAL_CASES").unwrap_or_default();
    let report = run_some(&mut harness, &filter, |case| eprintln!("{case}"));
    if filter.is_empty() { report.expect(PASSED) } else { println!("{report}") }
}
