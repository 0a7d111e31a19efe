//! Waiting in tests.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use gimmal_transport::Instant;

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns when `ready` is true; asks every millisecond.
///
/// # Panics
/// After 30 seconds, with `what` was waited for.
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < LIMIT, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sets a flag when it is dropped, by a panic too: for threads that go on until the flag is set, and would outlive the test
/// that failed.
#[derive(Debug)]
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
