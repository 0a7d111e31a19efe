//! Deadlines and the worker's readings of its clock.

use std::time::Instant;

use super::*;

#[test]
fn time_0_is_when_the_clock_was_started() {
    let before = Instant::now();
    let mut run = Run::apart(1, world(1, SimDevice::roce()), 0);
    let started = before..=Instant::now();
    // As if the worker had been away between reading the clock and opening the connection.
    std::thread::sleep(Duration::from_millis(20));
    run.connect();
    let (_, here) = run.server.app_mut().conns.iter_mut().next().unwrap();
    assert!(started.contains(&here.peer.epoch), "{:?} later", here.peer.epoch - *started.end());
}
