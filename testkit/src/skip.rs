//! Tests that find that they lack something.

use std::io::Write as _;

/// Reports that the calling test skips itself, and why. Return from the test afterwards.
///
/// Rust's test runner counts the test among those that passed. `cargo xtask test` counts it as skipped.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    // Not by a macro: the test runner hides what those print in a test that passes. A line of its own, in any case.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {why}");
}
