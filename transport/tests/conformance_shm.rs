//! The conformance suite on shared memory.
#![cfg(all(feature = "shm", feature = "conformance"))]

use gimmal_transport::{
    Address,
    conformance::{RealTime, knock_on_socket, run},
    shm::Shm,
};

#[test]
fn shared_memory_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_owned();
    let address = move |number: u32| Address::Shm { path: base.join(format!("{number}.sock")) };
    let wrong = Address::Mem { name: "wrong".to_owned() };
    let mut harness = RealTime::new("shm", Shm, address, wrong).with_knocker(knock_on_socket);
    let report = run(&mut harness);
    println!("{report}");
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= 80, "{report}");
    let left: Vec<_> = folder.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
