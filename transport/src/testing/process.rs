//! This test binary again, in a process of its own, running one test that is ignored otherwise.

#![allow(clippy::unwrap_used, reason = "loud failures")]

use std::process::Command;

/// The variable that tells the other process its role.
pub(crate) const ROLE: &str = "GIMMAL_TRANSPORT_TEST";

/// This binary, to run `test` with `role` for it to read.
pub(crate) fn this_binary(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Runs `test` in a process of its own to its end.
#[cfg(any(feature = "shm", feature = "tls"))]
pub(crate) fn alone(test: &str) {
    let output = this_binary(test, "run").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let erred = String::from_utf8_lossy(&output.stderr);
    // A name that no test has would also be a success.
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{erred}");
}

/// The role of this process, if it is such a one.
pub(crate) fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok();
    if role.is_none() {
        println!("SKIP: this test is the other process of another one");
    }
    role
}
